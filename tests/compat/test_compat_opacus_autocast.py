"""Under ``torch.autocast``: outputs have torch's types, as in Opacus, and clipping has that of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compat_helpers import made_private, train
from torch import Tensor, nn

import saltflat.compat.opacus.grad_sample as ours
from saltflat.compat.opacus.grad_sample import GradSampleModule


class Several(nn.Module):
    """Outputs of different types, whose number depends on an argument that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 5), nn.Linear(5, 3)

    def forward(self, tokens: Tensor, more: bool = False) -> Any:
        found = self.table(tokens).mean(1)
        logits = self.head(found)
        return (logits, {"found": found, "loss": logits.float().logsumexp(1)}) if more else logits


X, TOKENS = torch.linspace(-2, 2, 24).reshape(6, 4), torch.arange(18).reshape(6, 3) % 7
MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), X),
    "norm": (lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5)), X),
    "convolution": (lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten()), X),
    "frozen head": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3).requires_grad_(False)), X),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 3)), TOKENS),
    "several": (Several, TOKENS),
}
MODES = ["hooks", "functorch", "ew", "ghost", "unwrapped"]


def made(library: Any, name: str, mode: str) -> tuple[nn.Module, Callable[..., Any]]:
    """The model, and what is called in its place."""
    torch.manual_seed(0)
    model = MODELS[name][0]()
    if mode == "unwrapped":
        library.prepare_module(model, "hooks", False)
        return model, model
    return model, library.wrap_model(model, mode)


def types(out: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda t: t.dtype, out)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_have_the_types_that_torch_gives_them(name: str, mode: str) -> None:
    """Failed with float32 wherever the last operation met a trained weight."""
    (plain, rows), (model, call) = MODELS[name], made(ours, name, mode)
    for more in [{}, {"more": True}, {}] if name == "several" else [{}]:
        with torch.autocast("cpu", torch.bfloat16):
            found, wanted = call(rows, **more), plain()(rows, **more)
        assert types(found) == types(wanted)
        first = found[0] if isinstance(found, tuple) else found
        first.float().square().flatten(1).sum(1).mean().backward()
        model.zero_grad()
        for p in model.parameters():
            if p.requires_grad:
                p.grad_sample = None
    with torch.autocast("cpu", torch.float16):
        assert types(call(rows)) == types(plain()(rows)) or name == "embedding"
    assert types(call(rows)) == torch.float32


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost", "unwrapped"])
@pytest.mark.parametrize("name", ["linear", "norm", "convolution", "frozen head", "embedding"])
def test_those_are_the_types_of_opacus(name: str, mode: str) -> None:
    theirs = pytest.importorskip("opacus.grad_sample", reason="Opacus is a peer, not a dependency")
    from opacus.grad_sample.utils import prepare_module as their_own

    class Theirs:
        wrap_model, prepare_module = staticmethod(theirs.wrap_model), staticmethod(their_own)

    with torch.autocast("cpu", torch.bfloat16):
        found = [types(made(library, name, mode)[1](MODELS[name][1])) for library in (ours, theirs)]
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore:poisson_sampling=False")
def test_the_clip_norm_holds_and_gradients_keep_the_type_of_the_weights() -> None:
    """With a loss a thousand times as large: the mean of six clipped gradients is no longer than the clip norm."""
    private = made_private(rows=6, batch_size=6, poisson_sampling=False, max_grad_norm=0.3, lr=1.0)
    before = [p.detach().clone() for p in private.module.parameters()]

    def loss(out: Tensor, labels: Tensor) -> Tensor:
        assert out.dtype == torch.bfloat16
        return 1000 * nn.functional.cross_entropy(out, labels)

    with torch.autocast("cpu", torch.bfloat16):
        train(private, criterion=loss)
    moved = [p.detach() - b for p, b in zip(private.module.parameters(), before)]
    assert 0.1 < torch.cat([m.flatten() for m in moved]).norm() <= 0.3 * (1 + 1e-5)
    assert all(p.grad_sample.dtype == p.grad.dtype == torch.float32 for p in private.module.parameters())


def test_gradients_are_those_of_the_rounded_outputs() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(4, 3)
    model = GradSampleModule(nn.Linear(4, 3))
    model._module.load_state_dict(plain.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        model(X).float().square().sum(1).mean().backward()
    at_outputs = 2 * plain(X).bfloat16().float() / 6
    by_hand = torch.einsum("no,ni->noi", 6 * at_outputs.bfloat16().float(), X)
    torch.testing.assert_close(model._module.weight.grad_sample, by_hand)


def test_the_look_at_types_draws_nothing() -> None:
    """Failed without a fork of the generators: dropout drew once more."""

    def after(autocast: bool) -> Tensor:
        torch.manual_seed(3)
        model = GradSampleModule(nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5)))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(X)
        return torch.rand(3)

    assert torch.equal(after(True), after(False))
