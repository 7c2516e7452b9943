"""Timing on a machine that is never quite quiet: steps take turns, and only steps of one round are compared."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Step = Callable[[], Any]

# A shorter measurement than this is made of several steps in a row: the clock and the scheduler are too coarse.
LEAST_SECONDS = 0.05
MOST_REPEATS = 100


def seconds_of(step: Step, repeats: int = 1) -> float:
    """Wall-clock seconds of one step, as the mean of several in a row."""
    started = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - started) / repeats


def repeats_for(seconds: float) -> int:
    """How many steps in a row make one measurement.

    >>> repeats_for(1.0), repeats_for(0.01), repeats_for(0.0)
    (1, 5, 100)
    """
    return max(1, min(MOST_REPEATS, math.ceil(LEAST_SECONDS / max(seconds, 1e-9))))


def interleaved(
    steps: Mapping[str, Step],
    rounds: int,
    known: Mapping[str, float] | None = None,
    before: Callable[[str], None] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each step in each round. The steps must have been warmed up.

    ``known`` says roughly how long each takes; without it, each runs once more to find out. ``before`` is called
    with the name of a step before each of its turns, and is not timed.

    In every round each step has its turn, in an order that changes from round to round, so that neither a
    slow minute of the machine nor what ran just before falls on one of them alone.
    """
    known = known or {name: seconds_of(step) for name, step in steps.items()}
    repeats = {name: repeats_for(known[name]) for name in steps}
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    shuffler = random.Random(0)
    for _ in range(rounds):
        gc.collect()  # what one step left behind is not charged to another
        shuffler.shuffle(order)
        for name in order:
            if before is not None:
                before(name)
            times[name].append(seconds_of(steps[name], repeats[name]))
    return times


def beside(step: Step, reference: Step, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of a step and of its reference, one right after the other, taking turns at going first."""
    repeats = repeats_for(seconds_of(reference))
    found = [one_round(step, reference, number, repeats) for number in range(rounds)]
    return [own for own, _ in found], [other for _, other in found]


def one_round(step: Step, reference: Step, number: int, repeats: int = 1) -> tuple[float, float]:
    """Seconds of a step and of its reference in the round of this number, which decides who goes first."""
    gc.collect()
    if number % 2:
        other = seconds_of(reference, repeats)
        return seconds_of(step, repeats), other
    own = seconds_of(step, repeats)
    return own, seconds_of(reference, repeats)


@dataclass(frozen=True)
class Ratio:
    """The median of the rounds' ratios, with the quartiles between which half of the rounds lie."""

    median: float
    low: float
    high: float


def paired(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """The ratio of two timings, round by round: what slowed a whole round cancels.

    >>> paired([2.0, 20.0, 4.0], [1.0, 10.0, 1.0])
    Ratio(median=2.0, low=2.0, high=3.0)
    """
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)


def geometric_mean(values: Sequence[float]) -> float | None:
    """The mean that treats a ratio and its inverse alike; None of nothing.

    >>> geometric_mean([0.5, 2.0]), geometric_mean([])
    (1.0, None)
    """
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """An interval that covers the median, and how surely it does.

    It lies between two of the values themselves: the median falls below the k-th smallest of n with the
    probability that a fair coin shows fewer than k heads. That holds for any distribution, also one with the
    outliers of a busy machine. With fewer than six values even the smallest and the largest cover less than
    95 %, and the third number says how much.

    >>> median_interval([1.0, 5.0, 2.0, 4.0, 3.0, 6.0])
    (1.0, 6.0, 0.96875)
    """
    ordered, n = sorted(values), len(values)
    best = (ordered[0], ordered[-1], 1 - 2 * 0.5**n)
    outside = 0.0
    for k in range(n // 2):
        outside += math.comb(n, k) * 0.5**n
        if 1 - 2 * outside < confidence:
            break
        best = (ordered[k], ordered[n - 1 - k], 1 - 2 * outside)
    return best
