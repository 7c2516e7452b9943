"""From a budget to a noise multiplier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saltflat.accounting import least_scale
from saltflat.compat.opacus.accountants.accountant import History, events_of
from saltflat.compat.opacus.accountants.registry import create_accountant

MAX_SIGMA = 1e6


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: float | None = None,
    steps: int | None = None,
    accountant: str = "rdp",
    epsilon_tolerance: float = 0.01,
    **kwargs: Any,
) -> float:
    """The noise multiplier at which so many steps stay within the budget.

    Guarantees: recomputing ε with it never gives more than ``target_epsilon``. For ``"prv"`` and ``"gdp"`` it is
    the least one to four decimals; for others a search stops within ``epsilon_tolerance``, as in Opacus.

    >>> sigma = get_noise_multiplier(target_epsilon=8, target_delta=1e-5, sample_rate=0.04, epochs=90)
    >>> round(sigma, 4)
    1.416
    """
    if (steps is None) == (epochs is None):
        raise ValueError("get_noise_multiplier takes as input EITHER a number of steps or a number of epochs")
    count = steps_of(epochs, sample_rate) if steps is None else steps
    return calibrated(
        lambda sigma: [(sigma, sample_rate, count)],
        target_epsilon,
        target_delta,
        accountant=accountant,
        tolerance=epsilon_tolerance,
        **kwargs,
    )


def steps_of(epochs: Any, sample_rate: float) -> int:
    """How many steps so many epochs have; not one fewer because 1/(1/49) is a little below 49."""
    return int(epochs / sample_rate + 1e-6)


def calibrated(
    history_at: Callable[[float], History],
    target: float,
    delta: float,
    *,
    accountant: str,
    tolerance: float = 0.01,
    **kwargs: Any,
) -> float:
    """The σ at which ``history_at(σ)`` stays within the budget, by the accountant of this name."""
    if accountant in ("prv", "gdp"):
        return least_scale(lambda sigma: events_of(history_at(sigma)), target, delta)
    judge = create_accountant(accountant)

    def cost(sigma: float) -> float:
        judge.history = history_at(sigma)
        return judge.get_epsilon(delta=delta, **kwargs)

    low, high = 0.0, 20.0
    while (found := cost(high)) > target:
        high *= 2
        if high > MAX_SIGMA:
            raise ValueError("The privacy budget is too low.")
    while target - found > tolerance and high - low > 1e-9:
        middle = (low + high) / 2
        here = cost(middle)
        if here < target:
            high, found = middle, here
        else:
            low = middle
    return high
