"""The privacy filter: nothing beyond its capacity, the same as fixed accounting for a fixed sequence, and needed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from core_helpers import bounded
from saltflat.accounting import (
    PrivacyFilter,
    SampledGaussian,
    best_order,
    rdp_epsilon,
    renyi_capacity,
    renyi_divergence,
)
from saltflat.errors import InputError, OverdrawnError

EVENTS = st.builds(
    SampledGaussian,
    noise_multiplier=st.floats(0.5, 20.0),
    rate=st.sampled_from([1e-3, 0.01, 0.1, 0.5, 1.0]),
    steps=st.integers(0, 400),
)


@bounded(10)
@given(events=st.lists(EVENTS, max_size=6), target=st.floats(0.3, 8.0), delta=st.sampled_from([1e-8, 1e-5]))
def test_what_is_let_through_never_exceeds_the_capacity(
    events: list[SampledGaussian], target: float, delta: float
) -> None:
    """Whatever is offered, in any order. Fails when a cost is added before it is compared (tried)."""
    budget = PrivacyFilter(target, delta)
    through: list[SampledGaussian] = []
    for event in events:
        before = budget.spent
        if budget.can_spend(event):
            budget.spend(event)
            through.append(event)
        else:
            assert budget.spent == before
        total = renyi_divergence(through, budget.order)
        assert total == pytest.approx(budget.spent, rel=1e-9)
        assert total <= budget.capacity * (1 + 1e-12)
    assert (rdp_epsilon(through, delta) or 0.0) <= target + 1e-9  # the best order is no worse than ours


@bounded(10)
@given(sigma=st.floats(1.0, 6.0), rate=st.sampled_from([0.01, 0.1, 1.0]), target=st.floats(0.2, 6.0))
def test_a_fixed_sequence_costs_what_fixed_accounting_says(sigma: float, rate: float, target: float) -> None:
    """n steps at once, or one by one, and the count that the formula gives."""
    one = SampledGaussian(sigma, rate, 1)
    budget = PrivacyFilter(target, 1e-5)
    most = math.floor(budget.capacity / renyi_divergence([one], budget.order) * (1 + 1e-12))
    many = SampledGaussian(sigma, rate, most)
    assert budget.can_spend(many) == (most > 0 or budget.can_spend())
    assert not budget.can_spend(SampledGaussian(sigma, rate, most + 1))
    for _ in range(min(most, 50)):
        budget.spend(one)
    assert budget.spent == pytest.approx(min(most, 50) * renyi_divergence([one], budget.order))


def test_the_capacity_is_the_formula_of_dp_accounting() -> None:
    """At one order, what just fits has exactly the ε of the filter."""
    from dp_accounting import rdp

    for order in (9.0, 18.0, 64.0):
        capacity = renyi_capacity(1.5, 1e-5, order)
        found, _ = rdp.compute_epsilon([order], [capacity], 1e-5)
        assert found == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("target", "sigma", "rate", "steps"),
    [
        (1.0, 4.4627, 2048 / 60_000, 1172),
        (3.0, 1.8083, 2048 / 60_000, 1172),
        (1.0, 4.2523, 2048 / 50_000, 732),
    ],
)
def test_freedom_costs_seven_to_nine_percent_of_noise(
    target: float, sigma: float, rate: float, steps: int
) -> None:
    """Against the golden noise of PLD for the same budget."""
    scale = PrivacyFilter(target, 1e-5).noise_scale(SampledGaussian(sigma, rate, steps))
    assert scale is not None
    assert 1.05 < scale < 1.09


def test_an_order_for_what_is_expected_lets_more_of_it_through() -> None:
    """Rare and loud releases have another best order than Gaussian ones."""
    loud = SampledGaussian(0.9, 0.001, 2000)
    plain, fitted = PrivacyFilter(1.0, 1e-5), PrivacyFilter(1.0, 1e-5, expected=[loud])
    assert fitted.order < plain.order == best_order(1.0, 1e-5)
    assert fitted.can_spend(loud)
    assert not plain.can_spend(loud)


def test_what_has_no_noise_or_no_bound_is_not_let_through() -> None:
    budget = PrivacyFilter(1.0, 1e-5)
    assert not budget.can_spend(SampledGaussian(0.0, 0.1, 1))
    with pytest.raises(OverdrawnError, match="No noise"):
        budget.spend(SampledGaussian(0.0, 0.1, 1))
    with pytest.raises(InputError, match="Truncated"):
        budget.can_spend(SampledGaussian(2.0, 0.1, 5, population=1000, cap=150))
    assert budget.spent == 0
    assert "With all noise multiplied by" in str(_refusal(budget, SampledGaussian(0.5, 1.0, 1)))


def _refusal(budget: PrivacyFilter, event: SampledGaussian) -> OverdrawnError:
    with pytest.raises(OverdrawnError) as refused:
        budget.spend(event)
    return refused.value


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 0.0, "delta": 1e-5}, "epsilon=0.0"),
        ({"epsilon": math.inf, "delta": 1e-5}, "finite epsilon"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta=0.0"),
        ({"epsilon": 1.0, "delta": 1e-5, "order": 1.0}, "order=1.0"),
        ({"epsilon": 1.0, "delta": 1e-5, "order": 2.0}, "leaves nothing to spend"),
    ],
)
def test_what_is_no_budget_is_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        PrivacyFilter(**settings)  # type: ignore[arg-type]


# --- why a filter: an adversary who chooses by what came before ----------------------------------------


def hockey_stick(loss: np.ndarray, sigma: float, rate: float) -> np.ndarray:
    """H at e^loss of one release, in closed form: P = (1 − q) N(0, 1) + q N(1/σ, 1) against Q = N(0, 1)."""
    mu = 1 / sigma
    inner = (np.exp(loss) - 1 + rate) / rate
    with np.errstate(divide="ignore", invalid="ignore"):
        start = np.where(inner > 0, np.log(inner) / mu + mu / 2, -np.inf)
    upper_q = norm.sf(start)
    upper_p = (1 - rate) * upper_q + rate * norm.sf(start - mu)
    return upper_p - np.exp(loss) * upper_q


def delta_after(first: float, seconds: list[tuple[float, float]], target: float) -> float:
    """δ at ε of a Gaussian release, followed by whichever second release is worst for what the first one said."""
    mu = 1 / first
    x, width = np.linspace(-12.0, 12.0 + mu, 20_001, retstep=True)
    left = target - (mu * x - mu**2 / 2)  # how much loss is still needed
    worst = np.max([hockey_stick(left, sigma, rate) for sigma, rate in seconds], axis=0)
    return float((norm.pdf(x - mu) * worst).sum() * width)


def test_an_adversary_beats_the_accountant_of_what_happened_and_not_the_filter() -> None:
    """One Gaussian release, then a choice: a second Gaussian one, or a rare and loud one.

    Each of the two sequences alone is worth (1, 1e-5) exactly: an accountant that is asked what happened says
    "within budget" either way. Choosing by the first result makes it worth more than a third more δ. The filter lets
    neither second release through as it is; with the noise that it asks for, even the choice stays within δ.
    """
    target, delta, first, rate = 1.0, 1e-5, 8.0, 2e-4

    def least(rate: float) -> float:
        low, high = 0.05, 50.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (low, middle) if delta_after(first, [(middle, rate)], target) <= delta else (middle, high)
            )
        return high

    gaussian, loud = (least(1.0), 1.0), (least(rate), rate)
    for alone in (gaussian, loud):
        assert delta_after(first, [alone], target) == pytest.approx(delta, rel=1e-6)
    assert delta_after(first, [gaussian, loud], target) > 1.33 * delta

    allowed = []
    for sigma, sampled in (gaussian, loud):
        budget = PrivacyFilter(target, delta)
        budget.spend(SampledGaussian(first, 1.0, 1))
        second = SampledGaussian(sigma, sampled, 1)
        assert not budget.can_spend(second)
        scale = budget.noise_scale(second)
        assert scale is not None
        assert budget.can_spend(SampledGaussian(sigma * scale, sampled, 1))
        allowed.append((sigma * scale, sampled))
    assert delta_after(first, allowed, target) <= delta
