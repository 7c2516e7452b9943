"""The same script with either library: without noise, the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compat_helpers import MODELS, assert_same, made_private, rows_for, train, weights
from torch import Tensor, nn

import saltflat.compat.opacus as ours

theirs = pytest.importorskip("opacus", reason="Opacus is a peer, not a dependency")
pytestmark = [
    pytest.mark.filterwarnings("ignore:poisson_sampling=False"),
    pytest.mark.filterwarnings("ignore::UserWarning:opacus"),
    pytest.mark.filterwarnings("ignore:Secure RNG"),
    pytest.mark.filterwarnings("ignore:Full backward hook"),
    pytest.mark.filterwarnings("ignore:Optimal order"),
]
CLOSE = {"atol": 2e-5, "rtol": 2e-4}


@pytest.mark.parametrize("mode", ["hooks", "ghost", "functorch", "ew"])
@pytest.mark.parametrize("name", MODELS)
def test_two_epochs_leave_the_same_weights(name: str, mode: str) -> None:
    """Should fail when rows are not scaled by the batch size under a mean."""
    options = {"name": name, "poisson_sampling": False, "grad_sample_mode": mode, "rows": 20}
    mine = made_private(ours, **options)
    train(mine, epochs=2)
    # Its other modes do not take every model; all of them mean the same.
    peer = made_private(theirs, **options | {"grad_sample_mode": "hooks"})
    train(peer, epochs=2)
    assert_same(weights(mine.module), weights(peer.module), **CLOSE)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_both_reductions(reduction: str) -> None:
    def run(library: Any) -> dict[str, Tensor]:
        made = made_private(library, loss_reduction=reduction, poisson_sampling=False, lr=0.05)
        train(made, criterion=nn.CrossEntropyLoss(reduction=reduction))
        return weights(made.module)

    assert_same(run(ours), run(theirs), **CLOSE)


@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
def test_clipping(clipping: str) -> None:
    norm = [0.1, 0.2, 0.3, 0.4] if clipping == "per_layer" else 0.2

    def run(library: Any) -> tuple[dict[str, Tensor], float]:
        made = made_private(library, clipping=clipping, max_grad_norm=norm, poisson_sampling=False)
        train(made)
        return weights(made.module), made.optimizer.max_grad_norm

    (mine, own), (peer, its) = run(ours), run(theirs)
    assert_same(mine, peer, **CLOSE)
    assert own == pytest.approx(its)


@pytest.mark.parametrize("name", MODELS)
def test_per_example_gradients(name: str) -> None:
    """Read after the step, when the weights have changed. Should fail when they are computed at those."""

    def run(library: Any) -> list[Tensor]:
        made = made_private(library, name=name, poisson_sampling=False, rows=6, batch_size=6)
        train(made)
        return [p.grad_sample for p in made.module.parameters()]

    for a, b in zip(run(ours), run(theirs), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_two_calls_before_one_backward_pass_are_one_batch() -> None:
    """As in the GAN that Opacus ships: example i of both calls is clipped once. Should fail when each is clipped."""
    x, _ = rows_for("linear", 6)

    def run(library: Any) -> dict[str, Tensor]:
        made = made_private(library, rows=6, batch_size=6, poisson_sampling=False, max_grad_norm=0.3)
        made.optimizer.zero_grad()
        loss = made.module(x).square().mean() + made.module(-2 * x).sin().mean()
        loss.backward()
        made.optimizer.step()
        return weights(made.module)

    assert_same(run(ours), run(theirs), **CLOSE)


def test_accumulated_batches() -> None:
    def run(library: Any) -> tuple[dict[str, Tensor], int]:
        made = made_private(library, poisson_sampling=False)
        for x, y in made.loader:
            nn.CrossEntropyLoss()(made.module(x), y).backward()
        count = made.optimizer.accumulated_iterations
        made.optimizer.step()
        return weights(made.module), count

    (mine, own), (peer, its) = run(ours), run(theirs)
    assert own == its == 3
    assert_same(mine, peer, **CLOSE)


def test_a_gradient_for_the_input() -> None:
    """What a generator learns through a private discriminator."""

    def run(library: Any) -> Tensor:
        made = made_private(library, rows=6, batch_size=6, poisson_sampling=False)
        x = rows_for("linear", 6)[0].requires_grad_()
        made.module(x).square().mean().backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(run(ours), run(theirs))


def test_returns_and_attributes_are_the_same() -> None:
    for mode, count in (("hooks", 3), ("ghost", 4)):
        mine, peer = (
            made_private(library, grad_sample_mode=mode, batch_size=7) for library in (ours, theirs)
        )
        assert hasattr(mine, "criterion") == hasattr(peer, "criterion") == (count == 4)
        assert list(mine.module.state_dict()) == list(peer.module.state_dict())
        for attribute in ("noise_multiplier", "max_grad_norm", "expected_batch_size", "loss_reduction"):
            assert getattr(mine.optimizer, attribute) == getattr(peer.optimizer, attribute), attribute
        assert mine.loader.sample_rate == peer.loader.sample_rate
        assert len(mine.loader) == len(peer.loader)
        assert type(mine.module).__name__ == type(peer.module).__name__
        assert type(mine.optimizer).__name__ == type(peer.optimizer).__name__


def test_ghost_tp_returns_what_opacus_returns() -> None:
    """Its step does nothing in Opacus but fail, so what it leaves is compared with that of ghost mode there."""
    options = {"grad_sample_mode": "ghost_tp", "wrap_model": False, "poisson_sampling": False}
    mine, peer = (made_private(library, **options) for library in (ours, theirs))
    for name in ("module", "optimizer", "criterion", "loader"):
        assert type(getattr(mine, name)).__name__ == type(getattr(peer, name)).__name__
    for library in (ours, theirs):
        with pytest.raises(ValueError, match="Unexpected grad_sample_mode: ghost_tp"):
            made_private(library, **options | {"wrap_model": True})
    train(mine, call=mine.plain)
    ghost = made_private(theirs, grad_sample_mode="ghost", poisson_sampling=False)
    train(ghost)
    assert_same(weights(mine.plain), weights(ghost.module), **CLOSE)


@pytest.mark.parametrize("wrap", [True, False])
def test_the_classes_of_ghost_tp_do_what_those_of_opacus_do(wrap: bool) -> None:
    """Those of Opacus want a process group, also for a model that one process holds whole."""

    def run(library: Any) -> list[Any]:
        torch.manual_seed(1)
        model, (x, y) = MODELS["linear"](), rows_for("linear", 6)
        made = library.grad_sample
        kind = (
            made.GradSampleModuleFastGradientClippingTP
            if wrap
            else made.GradSampleHooksFastGradientClippingTP
        )
        held = kind(model, max_grad_norm=0.4)
        optimizer = library.optimizers.DPOptimizerFastGradientClipping(
            torch.optim.SGD(model.parameters(), lr=0.5), noise_multiplier=0.0, max_grad_norm=0.4,
            expected_batch_size=6,
        )  # fmt: skip
        of_loss = library.utils.fast_gradient_clipping_utils.DPLossFastGradientClipping
        of_loss(held, optimizer, nn.CrossEntropyLoss())((held if wrap else model)(x), y).backward()
        norms, factors = held.get_norm_sample(), held.get_clipping_coef()
        assert all(p.grad_sample is None for p in model.parameters())
        optimizer.step()
        return [norms, factors, *[p.grad for p in model.parameters()]]

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        found = run(ours), run(theirs)
    finally:
        torch.distributed.destroy_process_group()
    for mine, peer in zip(*found, strict=True):
        assert mine.dtype == peer.dtype
        torch.testing.assert_close(mine, peer, **CLOSE)


def test_arguments_are_the_same() -> None:
    """Every argument of Opacus exists, with its default; new ones come after."""
    import inspect

    for method in (
        "make_private",
        "make_private_with_epsilon",
        "save_checkpoint",
        "load_checkpoint",
        "get_epsilon",
    ):
        mine = inspect.signature(getattr(ours.PrivacyEngine, method)).parameters
        peer = inspect.signature(getattr(theirs.PrivacyEngine, method)).parameters
        assert set(peer) <= set(mine)
        for name, parameter in peer.items():
            if name not in ("criterion", "kwargs"):  # a module as a default would be shared by all callers
                assert mine[name].default == parameter.default, name


def test_a_checkpoint_of_opacus_is_read(tmp_path: Any) -> None:
    peer = made_private(theirs, noise_multiplier=1.0, accountant="rdp")
    train(peer)
    peer.engine.save_checkpoint(
        path=tmp_path / "it.pt", module=peer.module, optimizer=peer.optimizer, checkpoint_dict={"epoch": 3}
    )
    mine = made_private(ours, noise_multiplier=1.0, accountant="rdp")
    found = mine.engine.load_checkpoint(path=tmp_path / "it.pt", module=mine.module, optimizer=mine.optimizer)
    assert found["epoch"] == 3
    assert_same(weights(mine.module), weights(peer.module), atol=0, rtol=0)
    assert mine.engine.accountant.history == peer.engine.accountant.history
    assert mine.engine.get_epsilon(1e-5) == pytest.approx(peer.engine.get_epsilon(1e-5), rel=1e-4)
