"""Passes inside somebody else's loop: the same sums as `clipped_sum`, however the rows are dealt out."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saltflat.engine import batch, passes
from saltflat.engine.acquaintance import Acquaintance
from saltflat.engine.apart import run_apart
from saltflat.engine.clipped_sum import clipped_sum
from saltflat.engine.clipping import flat
from saltflat.engine.one_call import Call
from saltflat.engine.passes import Clip, Pass
from saltflat.errors import RefusedError

CLIP = Clip(flat, 0.3, "flat")


class Cube(torch.autograd.Function):
    """An operation that hides from the tape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grads[0] * weight**3, (grads[0] * x * 3 * weight**2).sum(0)


class Hiding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 4)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(self.layer(x.flatten(1)), self.weight)


class Standardised(nn.Conv2d):
    """A weight that is derived from a parameter."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight / weight.flatten(1).norm(dim=1)[:, None, None, None], self.bias)


MODELS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 4)),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 4)
    ),
    "derived": lambda: nn.Sequential(Standardised(3, 4, 2), nn.Flatten(), nn.Linear(4, 4)),
    "hiding": Hiding,
}


def drawn(rows: int = 23) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, 3, 2, 2) * 2, torch.randint(0, 4, (rows,))


def one_pass(model: nn.Module, x: Tensor, known: Any = None, clip: Clip | None = CLIP, **more: Any) -> Any:
    """The pass and its output."""
    call = Call.of(model, lambda m, *args: m(*args), (x,), {})
    assert call is not None
    known = (known or Acquaintance()).with_call(call)
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = Pass(
        call,
        parameters,
        known,
        scale=lambda: float(len(x)),
        clip=lambda: clip,
        arrived=lambda _: None,
        **more,
    )
    return found, found.forward()


def sums(found: Pass, model: nn.Module) -> dict[str, Tensor]:
    assert found.clipped is not None
    return {name: found.clipped[1][id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_clipped_sum(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in lanes and micro-batches of 16. Should fail when the parts' gradients are not cut to their rows."""
    monkeypatch.setattr(batch, "WORTH_LANES", 0)
    monkeypatch.setattr(batch, "MICRO_BATCH_BYTES", 0)
    torch.manual_seed(1)
    model = MODELS[name]()
    x, y = drawn(70)
    expected = clipped_sum(model, nn.CrossEntropyLoss(reduction="none"), x, y, 0.3)
    known = Acquaintance()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for attempt in range(2):  # the first one learns, the second one deals the rows out
            found, out = one_pass(model, x, known)
            parts = len(found.parts)
            nn.CrossEntropyLoss()(out, y).backward()
            assert found.clipped is not None
            torch.testing.assert_close(found.clipped[2], expected.norms, atol=1e-5, rtol=1e-4)
            for key, value in sums(found, model).items():
                torch.testing.assert_close(value, expected.grads[key], atol=1e-5, rtol=1e-4)
            assert parts == 1 or (attempt == 1 and name != "hiding")
        assert parts > 1 or name == "hiding"
    finally:
        torch.set_num_threads(before)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_computed_again_where_they_were(name: str) -> None:
    torch.manual_seed(1)
    model, (x, y) = MODELS[name](), drawn(6)
    kept, out = one_pass(model, x, clip=None)
    nn.CrossEntropyLoss()(out, y).backward()
    again, out = one_pass(model, x)
    nn.CrossEntropyLoss()(out, y).backward()
    again.weights = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.data.mul_(3)
    first, second = kept.kept(), again.kept()
    for p in model.parameters():
        torch.testing.assert_close(
            passes.gradients_in(p, first), passes.gradients_in(p, second), atol=1e-5, rtol=1e-4
        )


def test_other_weights_leave_no_trace() -> None:
    torch.manual_seed(1)
    model, (x, y) = MODELS["derived"](), drawn()
    before = [p.detach().clone() for p in model.parameters()]
    moved = [p + 0.3 for p in before]
    found, out = one_pass(model, x, weights=moved)
    nn.CrossEntropyLoss()(out, y).backward()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))
    for p, w in zip(model.parameters(), moved):
        p.data.copy_(w)
    expected = clipped_sum(model, nn.CrossEntropyLoss(reduction="none"), x, y, 0.3)
    for key, value in sums(found, model).items():
        torch.testing.assert_close(value, expected.grads[key], atol=1e-5, rtol=1e-4)


def test_a_graph_that_is_kept_goes_back_twice() -> None:
    model, (x, y) = MODELS["linear"](), drawn()
    found, out = one_pass(model, x)
    loss = nn.CrossEntropyLoss()(out, y)
    loss.backward(retain_graph=True)
    first = sums(found, model)
    loss.backward()
    for name, value in sums(found, model).items():
        torch.testing.assert_close(value, first[name])
    with pytest.raises(RuntimeError, match=r"freed|second time"):
        loss.backward()


def test_nothing_but_scalars_is_refused() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1)).square().mean()

    with pytest.raises(RefusedError, match="one row per example"):
        one_pass(Whole(), drawn()[0])


def test_other_lengths_are_looked_at_once() -> None:
    """A model whose units have one row throughout is not examined again for each length of its input."""
    torch.manual_seed(0)
    model, known = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), Acquaintance()
    seen = set()
    for length in (3, 4, 7):
        x = torch.randn(6, length, 5)
        call = Call.of(model, lambda m, *args: m(*args), (x,), {})
        assert call is not None
        seen.add(id(known.with_call(call)))
    assert len(seen) == 1


def test_memory_is_flat() -> None:
    """Should fail when a pass keeps its parts after the backward pass."""
    model, (x, y), known = MODELS["convolution"](), drawn(), Acquaintance()

    def live() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    counts = []
    for _ in range(12):
        found, out = one_pass(model, x, known)
        nn.CrossEntropyLoss()(out, y).backward()
        del found, out
        counts.append(live())
    assert counts[-1] <= counts[3]


@pytest.mark.parametrize("length", [1, 3])
def test_units_of_their_own_come_back_where_the_model_puts_them(length: int) -> None:
    """With the batch in the second dimension, a sequence of length one is not taken for the batch."""
    model = nn.Linear(4, 2)
    x = torch.randn(length, 5, 4)
    call = Call.of(model, lambda m, x: (m(x), m(x).sum(0)), (x,), {}, dim=1)
    assert call is not None
    sequences, sums = run_apart(call, list(model.parameters()), slice(0, 5)).everything
    torch.testing.assert_close(sequences, model(x))
    torch.testing.assert_close(sums, model(x).sum(0))
