"""Repeat-and-select: the theorems' closed forms, dp-accounting's own event, and the laws of a cost."""

from __future__ import annotations

import math

import pytest

from saltflat.accounting import SampledGaussian, epsilon
from saltflat.accounting.selection import (
    Law,
    Repeated,
    Repetitions,
    base_curve,
    least_repeated_scale,
    repeated_epsilon,
    selected_curve,
)
from saltflat.errors import InputError

LAWS: tuple[Law, ...] = ("geometric", "logarithmic", "poisson")
SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}
DELTA = 1e-5


def gaussian(sigma: float) -> tuple[SampledGaussian, ...]:
    return (SampledGaussian(sigma, 1.0, 1),)


def sampled(sigma: float, steps: int = 100) -> tuple[SampledGaussian, ...]:
    return (SampledGaussian(sigma, 0.1, steps),)


def cost(sigma: float, mean: float, law: Law, **more: float) -> float:
    return repeated_epsilon(Repeated((sampled(sigma),), Repetitions(mean, law), **more), DELTA)


@pytest.mark.parametrize("law", ["geometric", "logarithmic"])
def test_theorem_2_in_closed_form(law: Law) -> None:
    """A Gaussian has ε(λ) = λ/(2σ²): the best λ̂ is σ √(2 log(1/γ)), so that the middle term is known.

    (1 − 1/λ̂) λ̂/(2σ²) + log(1/γ)/λ̂ = (λ̂ − 1)/(2σ²) + log(1/γ)/λ̂, which is least there.
    """
    sigma, mean = 6.0, 10.0
    repetitions = Repetitions(mean, law)
    gamma = repetitions.stopping
    assert gamma is not None
    orders, curve = base_curve(Repeated((gaussian(sigma),), repetitions))
    found = dict(zip(orders, selected_curve(orders, curve, repetitions)))
    middle = math.sqrt(2 * -math.log(gamma)) / sigma - 1 / (2 * sigma**2)

    def exact(order: float) -> float:
        return order / (2 * sigma**2) + (1 + SHAPES[law]) * middle + math.log(mean) / (order - 1)

    for order in (2.0, 5.0, 20.0, 60.0):  # a divergence is bounded by that of every larger order
        assert found[order] == pytest.approx(min(exact(a) for a in orders if a >= order), rel=2e-3)


def test_theorem_6_in_closed_form() -> None:
    """ε(λ) + m δ̂ + log(m)/(λ − 1), with δ̂ at ε̂ = log(1 + 1/(λ − 1)) by Proposition 12 of Canonne et al."""
    sigma, mean = 6.0, 10.0
    repetitions = Repetitions(mean, "poisson")
    orders, curve = base_curve(Repeated((gaussian(sigma),), repetitions))
    found = dict(zip(orders, selected_curve(orders, curve, repetitions)))
    for order in (2.0, 5.0, 20.0):
        hat = math.log(1 + 1 / (order - 1))
        logs = [
            (a - 1) * (a / (2 * sigma**2) - hat) - math.log(a - 1) + a * math.log1p(-1 / a)
            for a in orders if a > 1.01
        ]  # fmt: skip
        bound = order / (2 * sigma**2) + mean * math.exp(min(0.0, *logs)) + math.log(mean) / (order - 1)
        least = order / (2 * sigma**2) + math.log(mean) / (order - 1)
        assert least <= found[order] <= bound * (1 + 1e-9)
        if order < 4:  # at larger orders, dp-accounting knows a better δ̂ than this one
            assert found[order] == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mean", [2.0, 8.0, 30.0])
def test_dp_accountings_own_event_agrees(law: Law, mean: float) -> None:
    """Fails when the factor 1 + η is left out (tried)."""
    import dp_accounting as dpa
    from dp_accounting import dp_event, rdp

    account = rdp.RdpAccountant()
    one = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(4.0)), 100)
    account.compose(dp_event.RepeatAndSelectDpEvent(one, mean, SHAPES[law]))
    theirs, ours = account.get_epsilon(DELTA), cost(4.0, mean, law)
    assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("law", LAWS)
def test_the_laws_of_a_cost(law: Law) -> None:
    """At least that of one trial; more trials and less noise cost more; one trial by a law that knows no other
    costs what it costs.
    """
    alone = epsilon(sampled(4.0), DELTA, accountant="rdp")
    costs = [cost(4.0, mean, law) for mean in (1.0, 1.001, 1.5, 4.0, 16.0)]
    assert alone <= costs[0]
    assert costs == sorted(costs)
    assert costs[-1] > 1.2 * alone
    if law != "poisson":
        assert costs[0] == pytest.approx(alone, rel=1e-12)
        assert costs[1] == pytest.approx(alone, rel=0.02)
    noises = [cost(sigma, 4.0, law) for sigma in (2.0, 4.0, 8.0)]
    assert noises == sorted(noises, reverse=True)


def test_the_dearest_candidate_counts() -> None:
    """Wherever it stands in the grid; a score that costs less than the training is free, a dearer one is not."""
    repetitions = Repetitions(4.0)
    dear, cheap = sampled(4.0, 100), sampled(4.0, 20)
    both = [
        repeated_epsilon(Repeated(candidates, repetitions), DELTA)
        for candidates in ((dear, cheap), (cheap, dear))
    ]
    assert both[0] == both[1] == cost(4.0, 4.0, "logarithmic")
    assert cost(4.0, 4.0, "logarithmic", score_noise=1e3) == both[0]
    assert cost(4.0, 4.0, "logarithmic", score_noise=0.5) > 2 * both[0]


@pytest.mark.parametrize("law", LAWS)
def test_a_calibration_keeps_its_promise(law: Law) -> None:
    """ε recomputed is within the target, and with a ten-thousandth less noise it is not."""

    def at(scale: float) -> Repeated:
        return Repeated((sampled(scale),), Repetitions(3.0, law))

    scale = least_repeated_scale(at, 2.0, DELTA)
    assert repeated_epsilon(at(scale), DELTA) <= 2.0 < repeated_epsilon(at(scale - 1e-4), DELTA)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mean", [1.0, 1.5, 8.0, 200.0])
def test_the_law_is_a_law_with_its_mean(law: Law, mean: float) -> None:
    repetitions = Repetitions(mean, law)
    chances = [repetitions.probability(count) for count in range(300 * int(mean) + 60)]
    assert sum(chances) == pytest.approx(1.0, abs=1e-9)
    assert sum(count * chance for count, chance in enumerate(chances)) == pytest.approx(mean, rel=1e-6)


def test_what_is_refused() -> None:
    for mean in (0.5, math.nan, math.inf, True, "3"):
        with pytest.raises(InputError, match="repeats"):
            Repetitions(mean)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Did you mean 'poisson'"):
        Repetitions(2.0, "poison")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="candidates"):
        Repeated((), Repetitions(2.0))
    with pytest.raises(InputError, match="truncated-poisson"):
        repeated_epsilon(Repeated(((SampledGaussian(1.0, 0.1, 3, 100, 20),),), Repetitions(2.0)), DELTA)
    assert repeated_epsilon(Repeated((sampled(0.0),), Repetitions(2.0)), DELTA) == math.inf
    with pytest.raises(InputError, match="cannot be reached"):
        least_repeated_scale(
            lambda scale: Repeated((sampled(scale),), Repetitions(2.0), score_noise=0.1), 1.0, DELTA
        )
