"""Adding one example moves the un-noised sum by at most the clip norm, whatever the example holds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from engine_helpers import distance, explicit, first_tensor, length, rows_of, targets_for
from engine_zoo import ZOO
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from core_helpers import bounded
from saltflat.engine import clipped_sum, uses
from saltflat.engine.clipping import automatic, flat, per_layer
from saltflat.engine.uses import LookupUse, OuterUse, TiedUse

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # of torch's own layer
CLIP = 0.7
ALLOWED = CLIP * (1 + 1e-5)
HELD = {
    "zero": 0.0, "large": 1e6, "larger": 1e13, "huge": 1e30, "infinite": math.inf, "negative": -math.inf,
    "not a number": math.nan, "tiny": 1e-30,
}  # fmt: skip


def open_loss(outputs: Any, targets: Tensor) -> Tensor:
    """A loss without bound: what is large in a row is large in its gradient."""
    flat = first_tensor(outputs).flatten(1)
    return (flat * torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)).sum(1) * targets


def with_one_more(inputs: Any, targets: Tensor, extra: Any, held: float, place: int) -> tuple[Any, Tensor]:
    """The batch with one example put in at a place: its numbers, or else its target, hold ``held``."""
    bad = torch.full_like(extra, held) if extra.is_floating_point() else extra
    target = targets[:1] if extra.is_floating_point() else torch.full_like(targets[:1], held)
    joined = torch.cat([inputs[:place], bad, inputs[place:]])
    return joined, torch.cat([targets[:place], target, targets[place:]])


@pytest.mark.parametrize("name", ZOO)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(name: str) -> None:
    """Every kind of layer, every kind of bad example, first in the batch or last, for each micro-batch.

    Fails when non-finite rows are multiplied by zero instead of masked, and when the bias is left out of the
    norm (tried).
    """
    torch.manual_seed(0)
    kind = ZOO[name]
    model, inputs, extra = kind.build(), kind.inputs(5), kind.inputs(1)
    targets = targets_for(5, torch.float32)
    before = clipped_sum(model, open_loss, inputs, targets, CLIP)
    for held in HELD.values():
        results = []
        for place, micro_batch in ((0, 1), (0, 4), (5, None)):
            batch, answers = with_one_more(inputs, targets, extra, held, place)
            after = clipped_sum(model, open_loss, batch, answers, CLIP, micro_batch=micro_batch)
            assert all(bool(value.isfinite().all()) for value in after.grads.values()), held
            assert distance(after.grads, before.grads) <= ALLOWED, (held, place, micro_batch)
            results.append(after.grads)
        assert max(distance(results[0], other) for other in results[1:]) <= 1e-5 * length(before.grads), held


@pytest.mark.parametrize("name", ZOO)
def test_a_bad_target_is_a_bad_example(name: str) -> None:
    """The loss of one row is huge, infinite or NaN. Fails when its gradients are not silenced (tried)."""
    torch.manual_seed(0)
    kind = ZOO[name]
    model, inputs = kind.build(), kind.inputs(5)
    targets = targets_for(5, torch.float32)
    before = clipped_sum(model, open_loss, rows_of(inputs, slice(1, 5)), targets[1:], CLIP)
    for held in HELD.values():
        bad = torch.cat([torch.tensor([held]), targets[1:]])
        after = clipped_sum(model, open_loss, inputs, bad, CLIP, micro_batch=3)
        assert all(bool(value.isfinite().all()) for value in after.grads.values()), held
        assert distance(after.grads, before.grads) <= ALLOWED, held


@pytest.mark.parametrize("name", ZOO)
def test_an_empty_batch_gives_zeros_with_the_right_names(name: str) -> None:
    """Fails when an empty batch has no names (tried)."""
    model, inputs = ZOO[name].build(), ZOO[name].inputs(2)
    found = clipped_sum(model, open_loss, rows_of(inputs, slice(0, 0)), torch.zeros(0), CLIP)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert {name: value.shape for name, value in found.grads.items()} == {
        n: p.shape for n, p in trainable.items()
    }
    assert length(found.grads) == 0
    assert found.norms.shape == (0,)


@pytest.mark.parametrize("name", ZOO)
def test_without_a_clip_the_sum_is_the_gradient_of_the_summed_loss(name: str) -> None:
    """C = ∞. Fails when one unit's factor is not exactly one (tried)."""
    torch.manual_seed(0)
    kind = ZOO[name]
    model, inputs, targets = kind.build().double(), kind.inputs(6), targets_for(6)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    found = clipped_sum(model, open_loss, inputs, targets, math.inf, micro_batch=4)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    plain = torch.autograd.grad(open_loss(model(inputs), targets).sum(), list(parameters.values()))
    assert distance(found.grads, dict(zip(parameters, plain))) <= 1e-10 * length(found.grads)


# --- ghost norms: never understated -----------------------------------------------------------------


def nearly_cancelling(units: int, steps: int, width: int, rest: float, seed: int) -> tuple[Tensor, Tensor]:
    """Outer products that come in pairs of opposite sign, but for a small rest."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(units, steps, width, generator=generator)
    right = torch.randn(units, 1, width, generator=generator).expand(-1, steps, -1).clone()
    left[:, steps // 2 :] = -left[:, : steps // 2] * (1 + rest)
    return left, right


def exact_norms(left: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.vector_norm(torch.bmm(left.double().mT, right.double()).flatten(1), dim=1)


@bounded(60)
@given(st.sampled_from([2, 8, 64]), st.sampled_from([1e-8, 1e-6, 1e-4, 1e-2, 1.0]), st.integers(0, 99))
def test_a_ghost_norm_is_never_understated(steps: int, rest: float, seed: int) -> None:
    """And hardly overstated. Fails without the second look in float64 (tried)."""
    left, right = nearly_cancelling(3, steps, 5, rest, seed)
    exact = exact_norms(left, right)
    terms = (
        torch.linalg.vector_norm(left, dim=2).double().sum(1)
        * torch.linalg.vector_norm(right[:, 0], dim=1).double()
    )
    found = OuterUse(left, right).ghost_norms().double().sqrt()
    assert bool((found >= exact * (1 - 1e-5)).all())
    assert bool((found <= exact * (1 + 1e-5) + 1e-6 * terms).all())


@bounded(30)
@given(st.sampled_from([2, 8, 64]), st.sampled_from([1e-8, 1e-6, 1e-4, 1.0]), st.integers(0, 99))
def test_a_cancelling_unit_adds_no_rounding_to_the_sum(steps: int, rest: float, seed: int) -> None:
    """One unit, clipped to one, adds at most one. Fails when it is added up in float32 (tried)."""
    left, right = nearly_cancelling(1, steps, 5, rest, seed)
    for use in (
        OuterUse(left, right),
        TiedUse(
            OuterUse(left, right), LookupUse(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, 5), 5)
        ),
    ):
        norm = use.ghost_norms().sqrt() if isinstance(use, OuterUse) else use.squared_norms().sqrt()
        total = use.weighted_sum((1 / norm).float())
        assert float(total.double().norm()) <= 1 + 1e-5


@pytest.mark.parametrize("steps", [1, 3])
def test_a_short_vector_beside_a_long_one_is_not_lost(steps: int) -> None:
    """Squares that vanish in float32 matter beside large numbers. Fails without the look at both (tried)."""
    left, right = torch.full((1, steps, 1000), 2e-23), torch.full((1, steps, 1000), 2e15)
    use = OuterUse(left, right)
    squared = use.squared_norms() if steps == 1 else use.ghost_norms()
    assert float(squared.sqrt()) == pytest.approx(float(exact_norms(left, right)), rel=1e-5)


@pytest.mark.parametrize(
    "name", ["Linear on sequences", "Conv2d", "ConvTranspose2d", "re-used", "tied", "Conv3d"]
)
def test_ghosts_and_gradients_give_the_same_sum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when patches and output gradients are in different orders (tried)."""
    torch.manual_seed(0)
    kind = ZOO[name]
    model, inputs, targets = kind.build().double(), kind.inputs(6), targets_for(6)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    expected, norms = explicit(model, open_loss, inputs, targets, CLIP, rows_per_unit=2)
    for limit in (0, 10**12):
        monkeypatch.setattr(uses, "INSTANTIATION_LIMIT", limit)
        found = clipped_sum(model, open_loss, inputs, targets, CLIP, rows_per_unit=2)
        assert distance(found.grads, expected) <= 1e-10
        torch.testing.assert_close(found.norms, norms)


@pytest.mark.parametrize("layer", ["linear", "convolution", "tied"])
def test_an_example_made_to_cancel_is_still_bounded(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a whole model, with ghost norms. Fails without the second look in float64 (tried)."""
    monkeypatch.setattr(uses, "INSTANTIATION_LIMIT", 0)
    torch.manual_seed(0)
    pattern = torch.randn(1, 1, 16).repeat(1, 32, 1)
    pattern[:, ::2] *= -1 + 1e-6  # with the same gradient everywhere, the terms all but cancel
    if layer == "linear":
        model, extra = nn.Linear(16, 16, bias=False), 1e4 * pattern
    elif layer == "convolution":
        model, extra = nn.Conv1d(16, 16, 1, bias=False), 1e4 * pattern.mT.contiguous()
    else:
        model, extra = nn.Linear(16, 16, bias=False), 1e4 * pattern

    def plain_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.flatten(1).sum(1) * targets

    if layer == "tied":
        inner = model
        model = nn.ModuleDict({"inner": inner})
        model.forward = lambda x: inner(x) + 0.5 * inner(x.flip(1))  # type: ignore[method-assign]
    found = clipped_sum(model, plain_loss, extra, torch.ones(1), 1e-3)
    assert length(found.grads) <= 1e-3 * (1 + 1e-5)


# --- clipping functions ---------------------------------------------------------------------------


@bounded(60)
@given(
    st.sampled_from([flat, automatic, per_layer]),
    st.lists(st.floats(-30, 15), min_size=4, max_size=4),
    st.floats(1e-3, 1e3),
)
def test_a_clipping_function_bounds_the_whole_vector(
    clipping: Any, exponents: list[float], clip: float
) -> None:
    """Over all parameters of a unit, not each by itself. Fails when layers get C instead of C/√L (tried)."""
    names = ["body.weight", "body.bias", "head.weight", "scale"]
    squared = {
        name: torch.tensor([10.0**e, 0.0, 1.0], dtype=torch.float64) for name, e in zip(names, exponents)
    }
    factors = clipping(squared, clip)
    clipped = sum(factors[name].square() * squared[name] for name in names).sqrt()
    assert bool((clipped <= clip * (1 + 1e-9)).all())
    assert set(factors) == set(names)


def test_flat_clipping_leaves_what_is_short_enough() -> None:
    """Fails when short gradients are stretched to the clip norm (tried)."""
    assert flat({"w": torch.tensor([0.25, 0.0])}, 1.0)["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("clipping", [flat, automatic, per_layer])
def test_each_clipping_function_bounds_one_unit_in_a_model(clipping: Any) -> None:
    """Fails when the factors of one parameter are given to another (tried)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3))
    for scale in (1e-3, 1.0, 1e5):
        x = torch.randn(1, 2, 5, 5)
        found = clipped_sum(model, open_loss, x, torch.tensor([scale]), CLIP, clipping=clipping)
        assert length(found.grads) <= ALLOWED


def test_a_share_of_the_clip_does_not_depend_on_who_else_is_there() -> None:
    """Layers that a micro-batch happens not to use count all the same.

    Fails when the clipping function sees used parameters only: one example then changes the share of others
    (tried).
    """

    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.sometimes = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out, wanted = self.always(x), x[:, :1] > 0
            return out + wanted * self.sometimes(x) if bool(wanted.any()) else out

    torch.manual_seed(0)
    model = Optional()
    x = torch.randn(6, 4).abs()
    x[1:, 0] *= -1  # the first example alone uses the second layer
    targets = torch.full((6,), 100.0)
    full = clipped_sum(model, open_loss, x, targets, CLIP, clipping=per_layer)
    less = clipped_sum(model, open_loss, x[1:], targets[1:], CLIP, clipping=per_layer)
    assert distance(full.grads, less.grads) <= ALLOWED
