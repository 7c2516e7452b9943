"""The second accountant, and what keeps the first one within memory."""

from __future__ import annotations

import math
import random

import pytest

from saltflat.accounting import (
    COARSE,
    SampledGaussian,
    delta_at,
    epsilon,
    merged,
    rdp_epsilon,
    replace_one_epsilon,
    second_epsilon,
    shares,
    used_grid,
)

CASES = [
    ((4.4627, 2048 / 60000, 1172), 1e-5),
    ((0.5, 0.01, 1000), 1e-6),
    ((2.0, 0.2, 10), 1e-3),
    ((1.0, 1.0, 1), 1e-5),
    ((3.0, 0.9, 500), 1e-8),
    ((1.0, 0.02, 1), 1e-5),
    ((20.0, 0.5, 3000), 1e-5),
]


@pytest.mark.parametrize(("event", "delta"), CASES)
def test_two_accountants_agree(event: tuple[float, float, int], delta: float) -> None:
    """Fails when the noise of the second one is 2 % off, or one direction is left out of a skewed loss (tried)."""
    events = [SampledGaussian(*event)]
    assert second_epsilon(events, delta) == pytest.approx(epsilon(events, delta), rel=0.01)


def test_they_agree_on_phases_together() -> None:
    events = [SampledGaussian(2.931, 2048 / 50000, 244), SampledGaussian(29.485, 2048 / 50000, 488)]
    assert second_epsilon(events, 1e-5) == pytest.approx(0.8665, rel=0.005)


def test_one_gaussian_is_its_formula() -> None:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), Balle & Wang 2018."""

    def cdf(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    for sigma, steps in ((1.0, 1), (3.0, 4), (0.7, 2)):
        shift = math.sqrt(steps) / sigma
        found = second_epsilon([SampledGaussian(sigma, 1.0, steps)], 1e-5)
        delta = cdf(shift / 2 - found / shift) - math.exp(found) * cdf(-shift / 2 - found / shift)
        assert delta == pytest.approx(1e-5, rel=0.02)


def test_what_is_not_supported_is_said() -> None:
    assert second_epsilon([SampledGaussian(2.0, 0.1, 5, population=100, cap=30)], 1e-5) is None
    assert second_epsilon([SampledGaussian(2.0, 0.1, 5)], 1e-15) is None
    assert second_epsilon([SampledGaussian(0.0, 0.1, 5)], 1e-5) == math.inf
    assert second_epsilon([], 1e-5) == 0.0


def test_merging_changes_no_epsilon_and_no_order_matters() -> None:
    events = [
        SampledGaussian(2.0, 0.1, 7), SampledGaussian(3.0, 1.0, 2), SampledGaussian(2.0, 0.1, 5),
        SampledGaussian(4.0, 1.0, 3), SampledGaussian(2.0, 0.1, 1, population=50, cap=9),
    ]  # fmt: skip
    found = merged(events)
    assert [event.steps for event in found] == [12, 1, 1]
    assert found[-1].noise_multiplier == pytest.approx((2 / 9 + 3 / 16) ** -0.5)
    sampled = [event for event in events if event.cap is None]
    whole = epsilon(sampled, 1e-4, grid=COARSE)
    rng = random.Random(1)
    for _ in range(3):
        rng.shuffle(sampled)
        assert epsilon(sampled, 1e-4, grid=COARSE) == pytest.approx(whole, rel=1e-6)
    assert merged([SampledGaussian(0.0, 1.0, 2), SampledGaussian(1.0, 1.0, 2)])[0].noise_multiplier == 0


def test_many_releases_without_sampling_are_one_gaussian() -> None:
    """A hundred thousand of them took eight gigabytes when each was given the grid of one."""
    events = [SampledGaussian(1.0, 1.0, 100_000)]
    found = epsilon(events, 1e-5)
    assert found == pytest.approx(100_000 / 2 + 4.2649 * math.sqrt(100_000), rel=1e-3)
    assert found <= rdp_epsilon(events, 1e-5)
    assert replace_one_epsilon(events, 1e-5) > 2 * found
    one = SampledGaussian(10.0, 1.0, 100)
    assert epsilon([one], 1e-5) == pytest.approx(epsilon([SampledGaussian(1.0, 1.0, 1)], 1e-5), rel=1e-9)


def test_hopeless_noise_is_bounded_by_a_formula_at_once() -> None:
    """Fails when the grid is computed with the noise squared: it overflows (tried)."""
    for sigma, rate, steps in ((1e-3, 0.5, 10), (1e-9, 0.1, 10**9), (1e-200, 0.5, 3), (5e-324, 1.0, 1)):
        events = [SampledGaussian(sigma, rate, steps)]
        found = epsilon(events, 1e-5)
        assert found > 10_000
        assert delta_at(events, 1.0) == 1.0
        assert used_grid(events) > 0.05
    # an upper bound: never below the same releases with more noise, computed in full
    assert epsilon([SampledGaussian(9e-3, 0.1, 2)], 1e-5) > epsilon([SampledGaussian(0.05, 0.1, 2)], 1e-5)


def test_a_grid_holds_all_releases_together() -> None:
    """Long plans with little noise get a wider grid; ordinary ones keep theirs."""
    assert used_grid([SampledGaussian(4.4627, 2048 / 60000, 1172)]) == 1e-4
    assert used_grid([SampledGaussian(0.5, 0.5, 1_000_000)]) > 1e-3


def test_shares_add_up_and_follow_the_noise() -> None:
    found = shares(
        [SampledGaussian(2.0, 0.1, 50), SampledGaussian(4.0, 0.1, 50), SampledGaussian(0.03, 0.1, 1)]
    )
    assert sum(found) == pytest.approx(1.0)
    assert found[2] > found[0] > 4 * found[1]
    assert shares([SampledGaussian(0.0, 0.1, 3), SampledGaussian(1.0, 0.1, 3)]) == [1.0, 0.0]
    assert shares([SampledGaussian(1e-200, 0.1, 3), SampledGaussian(1.0, 0.1, 3)]) == [1.0, 0.0]
