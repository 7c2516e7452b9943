"""Every method against its paper's algorithm, written out by hand: the same trajectory to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from method_paths import COMMON, STEPS, assert_same, trajectory
from method_references import Adam, Reference, Vector, automatic, per_layer, upward
from torch import Tensor, nn

from core_helpers import loop_of, small_data, small_net
from saltflat import plans
from saltflat.data.source import Examples
from saltflat.methods import multiplicity as multiplicity_functions
from saltflat.plan import (
    AutomaticClipping,
    Multiplicity,
    PerLayerClipping,
    Plan,
    QuantileClipping,
)


def reference(model: nn.Module, data: Examples, plan: Plan, **options: Any) -> Reference:
    """The same model and data for an algorithm that is written out below."""
    return Reference(
        model, data.inputs, data.targets, plan.sampling.rate, plan.sampling.batch_size, **options
    )


def followed(run: Reference, step: Callable[[int], None], steps: int = STEPS) -> list[list[Tensor]]:
    """The weights of the reference after each of its steps."""
    path = []
    for number in range(steps):
        step(number)
        path.append([weight.detach().clone() for weight in run.weights])
    return path


def test_dp_sgd() -> None:
    """Fails when the sum is divided by the size of the actual batch (tried)."""
    model, data, plan = small_net(), small_data(), plans.dp_sgd(**COMMON)
    run = reference(model, data, plan)

    def step(_: int) -> None:
        total = run.clipped_sum(run.batch(), 0.5)
        run.sgd(run.release(total, 2.0, 0.5), 0.7, 0.9)

    expected = followed(run, step)
    assert_same(trajectory(loop_of(model, data, plan)), expected)


@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_dp_sam_with_even_and_uneven_noise(ratio: float) -> None:
    """Fails when both queries get the descent's noise (tried)."""
    model, data, plan = small_net(), small_data(), plans.dp_sam(rho=0.3, noise_ratio=ratio, **COMMON)
    run = reference(model, data, plan)

    def step(_: int) -> None:
        batch = run.batch()
        climb = run.release(run.clipped_sum(batch, 0.5), 2.0 * ratio, 0.5)
        total = run.clipped_sum(batch, 0.5, upward(climb, 0.3))
        run.sgd(run.release(total, 2.0, 0.5), 0.7, 0.9)

    expected = followed(run, step)
    assert_same(trajectory(loop_of(model, data, plan)), expected)


@pytest.mark.parametrize("gamma", [0.0, 0.8])
def test_dp_sat_and_its_momentum_variant(gamma: float) -> None:
    """Fails when the direction is normalised per tensor, or is the optimizer's momentum (tried)."""
    model, data = small_net(), small_data()
    plan = plans.dp_sat(rho=0.3, ascent_momentum=gamma, **COMMON)
    run, direction = reference(model, data, plan), [None]

    def step(_: int) -> None:
        total = run.clipped_sum(run.batch(), 0.5, upward(direction[0], 0.3))
        release = run.release(total, 2.0, 0.5)
        run.sgd(release, 0.7, 0.9)
        before: Any = direction[0] or [torch.zeros_like(part) for part in release]
        direction[0] = [gamma * v + g for v, g in zip(before, release)]

    expected = followed(run, step)
    assert_same(trajectory(loop_of(model, data, plan)), expected)


@pytest.mark.parametrize("reset", [False, True])
def test_sai_with_sgd(reset: bool) -> None:
    """Two phases with their own clip norms, rates and noise. Fails when phase two keeps C₁ (tried)."""
    model, data = small_net(), small_data()
    settings = COMMON | {"noise_multiplier": 1.5}
    plan = plans.sai(
        rho=0.2, switch=5, noise_ratio=4.0, clip_norms=(0.5, 0.2), learning_rates=(0.7, 0.3),
        reset_momentum=reset, **settings,
    )  # fmt: skip
    run, previous = reference(model, data, plan), [None]

    def step(number: int) -> None:
        if number < 5:
            total = run.clipped_sum(run.batch(), 0.5, upward(previous[0], 0.2))
            previous[0] = release = run.release(total, 1.5, 0.5)
            run.sgd(release, 0.7, 0.9)
        else:
            if number == 5 and reset:
                run.momentum_buffer = None
            run.sgd(run.release(run.clipped_sum(run.batch(), 0.2), 6.0, 0.2), 0.3, 0.9)

    expected = followed(run, step)
    assert_same(trajectory(loop_of(model, data, plan)), expected)


@pytest.mark.parametrize("corrected", [False, True])
def test_sai_with_adam_and_adam_bc(corrected: bool) -> None:
    """Across the switch ν̂ is an average of both noises. Fails when it is only the newest one (tried)."""
    model, data = small_net(), small_data()
    settings = {key: value for key, value in COMMON.items() if key not in ("momentum", "learning_rate")}
    plan = plans.sai(
        rho=0.2, switch=5, noise_ratio=4.0, clip_norms=(0.5, 0.2), learning_rates=(0.05, 0.02),
        optimizer="adam-bc" if corrected else "adam", **settings,
    )  # fmt: skip
    run, previous, adam = reference(model, data, plan), [None], Adam(corrected)

    def step(number: int) -> None:
        if number < 5:
            total = run.clipped_sum(run.batch(), 0.5, upward(previous[0], 0.2))
            previous[0] = release = run.release(total, 2.0, 0.5)
            adam.update(run, release, 0.05, 2.0 * 0.5 / 8)
        else:
            release = run.release(run.clipped_sum(run.batch(), 0.2), 8.0, 0.2)
            adam.update(run, release, 0.02, 8.0 * 0.2 / 8)

    expected = followed(run, step)
    assert_same(trajectory(loop_of(model, data, plan)), expected)


def test_adam_bc_divides_by_more_than_its_floor() -> None:
    """The correction of the test above is at work in both regimes: above the floor and on it."""
    model, data = small_net(), small_data()
    plan = plans.dp_sgd(**{k: v for k, v in COMMON.items() if k != "momentum"}, optimizer="adam-bc")
    loop = loop_of(model, data, plan)
    trajectory(loop)
    states = loop.optimizer.state.values()
    gaps = torch.cat([(s["v"] / (1 - 0.999**12) - s["noise"] / (1 - 0.999**12)).flatten() for s in states])
    assert (gaps > 1e-8).any()
    assert (gaps < 1e-8).any()


def test_dp_sat_early_stop() -> None:
    """Even noise, no ascent after the switch."""
    model, data, plan = small_net(), small_data(), plans.dp_sat_early_stop(rho=0.3, switch=0.5, **COMMON)
    run, previous = reference(model, data, plan), [None]

    def step(number: int) -> None:
        at = upward(previous[0], 0.3) if number < 6 else None
        previous[0] = release = run.release(run.clipped_sum(run.batch(), 0.5, at), 2.0, 0.5)
        run.sgd(release, 0.7, 0.9)

    expected = followed(run, step)
    assert_same(trajectory(loop_of(model, data, plan)), expected)


@pytest.mark.parametrize(
    ("clipping", "by_hand"), [(AutomaticClipping(), automatic), (PerLayerClipping(), per_layer)]
)
def test_other_clippings(clipping: Any, by_hand: Callable[[Vector, float], Vector]) -> None:
    """AUTO-S, and each layer to C/√L."""
    model, data, plan = small_net(), small_data(), plans.dp_sgd(clipping=clipping, **COMMON)
    run = reference(model, data, plan, clip=by_hand)

    def step(_: int) -> None:
        run.sgd(run.release(run.clipped_sum(run.batch(), 0.5), 2.0, 0.5), 0.7, 0.9)

    expected = followed(run, step)
    assert_same(trajectory(loop_of(model, data, plan)), expected)


def test_quantile_clipping() -> None:
    """Andrew et al.: Σ(b − ½) + N(0, σ_b²), then C ← C·exp(−η(share − γ)). Fails with b > C (tried)."""
    model, data = small_net(), small_data()
    clipping = QuantileClipping(quantile=0.6, learning_rate=0.3, count_noise=1.5)
    plan = plans.dp_sgd(clipping=clipping, **COMMON)
    run, bound = reference(model, data, plan), [0.5]

    def step(_: int) -> None:
        batch = run.batch()
        total = run.clipped_sum(batch, bound[0])
        lengths = [math.sqrt(sum(float((g**2).sum()) for g in run.unit_gradient(unit))) for unit in batch]
        count = sum((1.0 if length <= bound[0] else 0.0) - 0.5 for length in lengths)
        release = run.release(total, 2.0, bound[0])
        count += float(torch.empty((), dtype=torch.float64).normal_(0.0, 1.5, generator=run.noise))
        bound[0] *= math.exp(-0.3 * (count / 8 + 0.5 - 0.6))
        run.sgd(release, 0.7, 0.9)

    expected = followed(run, step)
    loop = loop_of(model, data, plan)
    assert_same(trajectory(loop), expected)
    assert loop.clip_norms.scale * 0.5 == pytest.approx(bound[0])
    assert bound[0] != pytest.approx(0.5, rel=0.05)


def test_people_are_sampled_and_clipped_as_one() -> None:
    """A person's gradient is the mean over their rows. Fails when rows are clipped one by one (tried)."""
    model, data = small_net(), small_data()
    groups = torch.arange(40) ** 2 % 17
    people = [(groups == name).nonzero().flatten().tolist() for name in groups.unique()]
    assert len({len(rows) for rows in people}) > 2
    plan = plans.dp_sgd(**COMMON | {"population": len(people), "batch_size": 4, "unit": "person"})
    run = reference(model, data, plan, units=people)

    def step(_: int) -> None:
        run.sgd(run.release(run.clipped_sum(run.batch(), 0.5), 2.0, 0.5), 0.7, 0.9)

    expected = followed(run, step)
    assert_same(trajectory(loop_of(model, data, plan, groups=groups)), expected)


class _Views(Reference):
    """The mean gradient over views: here the image, its mirror, and the image again."""

    def unit_gradient(self, unit: int) -> Vector:
        image = self.inputs[unit]
        views = [self.gradient(unit, view) for view in (image, image.flip(2), image)]
        return [torch.stack(parts).mean(0) for parts in zip(*views)]


def test_augmentation_multiplicity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three views, averaged before the clip. Fails when each view is clipped by itself (tried)."""

    def second_view_mirrored(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        second = (torch.arange(len(images)) % 3 == 1).view(-1, 1, 1, 1)
        return torch.where(second, images.flip(3), images)

    monkeypatch.setitem(multiplicity_functions.AUGMENTATIONS, "flip", second_view_mirrored)
    flat_data = small_data()
    data = Examples(flat_data.inputs.view(40, 1, 2, 2), flat_data.targets)
    model = nn.Sequential(nn.Flatten(), small_net())
    plan = plans.dp_sgd(multiplicity=Multiplicity(3, ("flip",)), **COMMON)
    run = _Views(model, data.inputs, data.targets, plan.sampling.rate, plan.sampling.batch_size)

    def step(_: int) -> None:
        run.sgd(run.release(run.clipped_sum(run.batch(), 0.5), 2.0, 0.5), 0.7, 0.9)

    expected = followed(run, step)
    assert_same(trajectory(loop_of(model, data, plan)), expected)


class _MovedWeights(Reference):
    """The mean gradient over three places around the weights, the same ones for the whole batch."""

    places: list[Vector]

    def clipped_sum(self, batch: list[int], clip_norm: float, at: Vector | None = None) -> Vector:
        self.places = [[0.1 * torch.randn(w.shape, dtype=w.dtype) for w in self.weights] for _ in range(3)]
        return super().clipped_sum(batch, clip_norm, at)

    def unit_gradient(self, unit: int) -> Vector:
        views = []
        for place in self.places:
            before = [weight.detach().clone() for weight in self.weights]
            self.move(place)
            views.append(self.gradient(unit))
            with torch.no_grad():
                for weight, value in zip(self.weights, before):
                    weight.copy_(value)
        return [torch.stack(parts).mean(0) for parts in zip(*views)]


def test_weight_multiplicity() -> None:
    """DPlis: view k at w + z_k. Fails when all views share one z (tried)."""
    model, data = small_net(), small_data()
    plan = plans.dp_sgd(multiplicity=Multiplicity(3, deviation=0.1), **COMMON)
    run = _MovedWeights(model, data.inputs, data.targets, plan.sampling.rate, plan.sampling.batch_size)

    def step(_: int) -> None:
        run.sgd(run.release(run.clipped_sum(run.batch(), 0.5), 2.0, 0.5), 0.7, 0.9)

    loop = loop_of(model, data, plan)
    torch.manual_seed(3)
    expected = followed(run, step)
    torch.manual_seed(3)
    assert_same(trajectory(loop), expected)
