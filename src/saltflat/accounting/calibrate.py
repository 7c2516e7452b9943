"""From ε to noise: the least scale at which the events stay within the target."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from saltflat.accounting.epsilon import COARSE, FINE, check_delta, epsilon
from saltflat.accounting.events import SampledGaussian
from saltflat.errors import InputError, is_number

EventsAt = Callable[[float], Sequence[SampledGaussian]]

LARGEST_SCALE = 1e6
SMALLEST_SCALE = 0.05  # ε is in the thousands there; with less, it takes long to compute and protects nobody
DIGITS = 4


def rounded_up(value: float) -> float:
    """A noise multiplier as it will be printed and used: four decimals, never less than asked.

    >>> rounded_up(4.46265001)
    4.4627
    """
    return math.ceil(value * 10**DIGITS - 1e-9) / 10**DIGITS


def least_scale(events_at: EventsAt, target: float, delta: float, *, grid: float = FINE) -> float:
    """The least ``scale`` for which ``events_at(scale)`` costs at most ``target``, to four decimals.

    ``events_at`` must cost less the larger the scale. The search brackets on a coarse grid and finishes on
    the fine one. Where even the smallest scale costs less (a rate below δ, say), that is the answer.

    Guarantees: recomputing ε at the returned scale, on ``grid``, never gives more than ``target``.

    >>> at = lambda sigma: [SampledGaussian(sigma, 2048 / 60000, 1172)]
    >>> least_scale(at, target=1.0, delta=1e-5)
    4.4627
    """
    check_delta(delta)
    if not is_number(target) or not target > 0:
        raise InputError("epsilon", target, "epsilon > 0", cure="1 to 8 is usual; smaller is more private.")
    if math.isinf(target):
        return 0.0

    @functools.cache  # the stages of the search ask again at the ends of the bracket
    def cost(scale: float, grid: float) -> float:
        return epsilon(events_at(scale), delta, grid=grid)

    # The grid grows with the target, or large budgets would need distributions that fill the memory.
    # A coarser grid only overstates ε.
    coarse, fine = COARSE * max(1.0, target), grid * max(1.0, target / 10)
    low, high = _bracket(lambda scale: cost(scale, coarse), target)
    if cost(low, coarse) <= target:
        return rounded_up(low)
    low, high = _narrowed(lambda scale: cost(scale, coarse), target, low, high, width=2e-3)
    # The coarse grid overstates ε slightly, so the answer lies a little below: search there on the fine grid.
    low, high = _rounded_down(low * 0.998), rounded_up(high)
    while cost(low, fine) <= target:
        low, high = _rounded_down(low * 0.99), low
    while cost(high, fine) > target:
        low, high = high, rounded_up(high * 1.01)
    return _least_step(lambda scale: cost(scale, fine), target, low, high)


def _rounded_down(value: float) -> float:
    return math.floor(value * 10**DIGITS) / 10**DIGITS


def _bracket(cost: Callable[[float], float], target: float) -> tuple[float, float]:
    scale = 1.0
    if cost(scale) > target:
        while cost(scale) > target:
            scale *= 2
            if scale > LARGEST_SCALE:
                raise InputError(
                    "epsilon", target, "a budget that some amount of noise can meet",
                    problem="cannot be reached by any noise here",
                    cure="Raise epsilon, take fewer steps, or lower the fixed phases' cost.",
                )  # fmt: skip
        return scale / 2, scale
    while cost(scale) <= target:
        scale /= 2
        if scale < SMALLEST_SCALE:
            return SMALLEST_SCALE, scale * 2
    return scale, scale * 2


def _narrowed(
    cost: Callable[[float], float], target: float, low: float, high: float, width: float
) -> tuple[float, float]:
    """False position on log ε over log σ, where the curve is nearly straight, kept safe by bisection."""
    low_cost, high_cost = cost(low), cost(high)
    for _ in range(60):
        if high / low <= 1 + width:
            break
        middle = _guess(low, low_cost, high, high_cost, target)
        # Aim a little beside the root: one probe on each side closes the bracket.
        for nudge in (1 + width / 3, 1 - width / 3):
            probe = min(max(middle * nudge, low * (1 + 1e-9)), high * (1 - 1e-9))
            if not low < probe < high:
                continue
            found = cost(probe)
            if found > target:
                low, low_cost = probe, found
            else:
                high, high_cost = probe, found
    return low, high


def _least_step(cost: Callable[[float], float], target: float, low: float, high: float) -> float:
    """The least four-decimal scale within the target, between ``low``, which is not, and ``high``, which is."""
    unit = 10**DIGITS
    below, above = round(low * unit), round(high * unit)
    tries = 0
    while above - below > 1:
        tries += 1
        low, high = below / unit, above / unit
        guess = _guess(low, cost(low), high, cost(high), target) if tries < 8 else (low + high) / 2
        probe = min(max(round(guess * unit), below + 1), above - 1)
        if cost(probe / unit) > target:
            below = probe
        else:
            above = probe
    return above / unit


def _guess(low: float, low_cost: float, high: float, high_cost: float, target: float) -> float:
    bisection = math.sqrt(low * high)
    if not (0 < high_cost < low_cost < math.inf):
        return bisection
    slope = (math.log(target) - math.log(high_cost)) / (math.log(low_cost) - math.log(high_cost))
    guess = high * (low / high) ** slope
    return guess if low < guess < high else bisection
