"""Laws between methods: averages, ends of a family, micro-batches, and plain training as the limit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from method_paths import COMMON, STEPS, assert_same, trajectory
from torch import Tensor, nn

from core_helpers import loop_of, small_data, small_net, weights_of
from saltflat import plans
from saltflat.plan import (
    Ema,
    Optimizer,
    Phase,
    Plan,
    PreviousRelease,
    Swa,
)


@pytest.mark.parametrize("every", [1, 2])
def test_swa_is_the_mean_of_iterates_after_its_start(every: int) -> None:
    """Fails when w₀, or an iterate before the start, is part of the mean (tried)."""
    plan = plans.dp_sgd(averaging=Swa(start=0.5, every=every), **COMMON)
    loop = loop_of(small_net(), small_data(), plan)
    path = trajectory(loop)
    counted = [path[i] for i in range(6, 12)] if every == 1 else [path[7], path[9], path[11]]
    for name, parts in zip(loop.average.average, zip(*counted)):
        torch.testing.assert_close(loop.average.average[name], torch.stack(parts).mean(0), rtol=1e-12, atol=0)


def test_ema_warms_up() -> None:
    """a ← μ_t a + (1 − μ_t) w with μ_t = min(μ, (1 + t)/(10 + t)), from a = w₁ on."""
    plan = plans.dp_sgd(averaging=Ema(0.4), **COMMON)
    loop = loop_of(small_net(), small_data(), plan)
    path = trajectory(loop)
    mean = path[0]
    for t, weights in enumerate(path[1:], start=2):
        decay = min(0.4, (1 + t) / (10 + t))
        mean = [decay * a + (1 - decay) * w for a, w in zip(mean, weights)]
    for ours, by_hand in zip(loop.average.average.values(), mean):
        torch.testing.assert_close(ours, by_hand, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("averaging", [Swa(0.3), Ema()])
def test_averaging_changes_neither_trajectory_nor_ledger(averaging: Any) -> None:
    """Fails when training goes on from the average (tried)."""
    plain = loop_of(small_net(), small_data(), plans.dp_sat(rho=0.1, **COMMON))
    averaged = loop_of(small_net(), small_data(), plans.dp_sat(rho=0.1, averaging=averaging, **COMMON))
    for a, b in zip(trajectory(plain), trajectory(averaged)):
        assert all(torch.equal(x, y) for x, y in zip(a, b))
    assert list(plain.mechanism.ledger.events()) == list(averaged.mechanism.ledger.events())


def final_weights(plan: Plan, **options: Any) -> list[Tensor]:
    """Where a plan leads from the same start with the same seed."""
    loop = loop_of(small_net(), small_data(), plan, **options)
    return trajectory(loop)[-1]


def assert_bit_for_bit(a: list[Tensor], b: list[Tensor]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a, b))


def test_dp_sat_without_radius_is_dp_sgd() -> None:
    """Bit for bit. Fails when a radius of zero is taken for none given (tried)."""
    assert_bit_for_bit(final_weights(plans.dp_sat(rho=0.0, **COMMON)), final_weights(plans.dp_sgd(**COMMON)))
    assert not torch.equal(
        final_weights(plans.dp_sat(rho=0.1, **COMMON))[0], final_weights(plans.dp_sgd(**COMMON))[0]
    )


def test_sai_ends_are_dp_sat_and_dp_sgd() -> None:
    """Bit for bit, for given noise and for a given budget."""
    budget = {key: value for key, value in COMMON.items() if key != "noise_multiplier"} | {"epsilon": 1.0}
    for settings in (COMMON, budget):
        all_sat = plans.sai(rho=0.1, switch=1.0, noise_ratio=3.0, **settings)
        no_sat = plans.sai(rho=0.1, switch=0, noise_ratio=3.0, **settings)
        assert_bit_for_bit(final_weights(all_sat), final_weights(plans.dp_sat(rho=0.1, **settings)))
        assert_bit_for_bit(final_weights(no_sat), final_weights(plans.dp_sgd(**settings)))


@pytest.mark.parametrize("micro_batch", [1, 3, 7, None])
def test_a_step_starts_from_the_undisplaced_weights(micro_batch: int | None) -> None:
    """w ← w − η·release, bit for bit. Fails when weights are put back by subtraction (tried)."""
    plan = plans.dp_sat(rho=0.5, **COMMON | {"momentum": 0.0})
    loop = loop_of(small_net(), small_data(), plan, micro_batch=micro_batch)
    releases: list[dict[str, Tensor]] = []
    release = loop.mechanism.release
    loop.mechanism.release = lambda *args: releases.append(release(*args)) or releases[-1]  # type: ignore[method-assign]
    before = weights_of(loop.model)
    for _ in loop:
        expected = [w.add(g, alpha=-0.7) for w, g in zip(before, releases[-1].values())]
        before = weights_of(loop.model)
        assert_bit_for_bit(before, expected)


@pytest.mark.parametrize("method", ["dp-sgd", "dp-sat", "dp-sam", "sai"])
def test_micro_batches_change_nothing(method: str) -> None:
    """Fails when the displacement is applied once per micro-batch (tried)."""
    plan = plans.by_name(method, rho=0.3, **COMMON) if method != "dp-sgd" else plans.dp_sgd(**COMMON)
    whole = final_weights(plan)
    for size in (1, 3, 5):
        for a, b in zip(whole, final_weights(plan, micro_batch=size)):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_clip_noise_and_sampling_it_is_plain_training(optimizer: str) -> None:
    """C = ∞, σ = 0, rate 1. Fails when the sum is divided by anything but the whole (tried)."""
    data = small_data()
    settings = {"momentum": 0.9} if optimizer == "sgd" else {}
    plan = plans.sgd(
        population=40, rate=1.0, steps=STEPS, learning_rate=0.1, optimizer=Optimizer(optimizer, settings)
    )
    ours = trajectory(loop_of(small_net(), data, plan))
    model = small_net()
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    steps = kind(model.parameters(), lr=0.1, **settings)
    theirs = []
    for _ in range(STEPS):
        steps.zero_grad()
        nn.functional.cross_entropy(model(data.inputs), data.targets).backward()
        steps.step()
        theirs.append(weights_of(model))
    assert_same(ours, theirs)


def test_sam_without_privacy_is_foret_et_al() -> None:
    """The baseline `sam`: full gradient, normalised step up, gradient there."""
    data = small_data()
    plan = plans.sam(rho=0.3, population=40, rate=1.0, steps=STEPS, learning_rate=0.1, momentum=0.0)
    ours = trajectory(loop_of(small_net(), data, plan))
    model = small_net()
    weights = list(model.parameters())
    theirs = []
    for _ in range(STEPS):
        up = torch.autograd.grad(nn.functional.cross_entropy(model(data.inputs), data.targets), weights)
        length = math.sqrt(sum(float((g**2).sum()) for g in up))
        with torch.no_grad():
            for w, g in zip(weights, up):
                w.add_(g, alpha=0.3 / length)
        down = torch.autograd.grad(nn.functional.cross_entropy(model(data.inputs), data.targets), weights)
        with torch.no_grad():
            for w, g, d in zip(weights, up, down):
                w.sub_(g, alpha=0.3 / length).sub_(d, alpha=0.1)
        theirs.append(weights_of(model))
    assert_same(ours, theirs)


def test_a_phase_that_is_repeated_is_a_phase_of_its_own() -> None:
    """The same value twice, with the momentum reset between: the ledger tells the two apart."""
    phase = Phase(6, 0.5, 2.0, 0.7, PreviousRelease(0.1), reset_momentum=True)
    base = plans.dp_sgd(**COMMON)
    plan = base.changed(phases=(phase, phase))
    loop = loop_of(small_net(), small_data(), plan)
    once = loop_of(
        small_net(), small_data(), base.changed(phases=(Phase(12, 0.5, 2.0, 0.7, PreviousRelease(0.1)),))
    )
    assert not torch.equal(trajectory(loop)[-1][0], trajectory(once)[-1][0])
    assert [entry["phase"] for entry in loop.mechanism.ledger.entries[1:]] == [0] * 6 + [1] * 6
