"""A second opinion on ε that shares no code with the first: our own composition of privacy losses by FFT.

The first accountant (dp-accounting) rounds every loss up, so its ε is a bound. This one rounds to the nearest
point and corrects the mean, as Gopi, Lee & Wutschitz (2021) do: an estimate, good to a fraction of a percent.
If the two differ by more, one of them is wrong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saltflat.accounting.epsilon import check_delta
from saltflat.accounting.events import SampledGaussian, merged

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

MOST_POINTS = 2**22
LEAST_DELTA = 1e-11  # below, the rounding of float64 in the transform would show
_SIDES = 9.5  # standard deviations; what lies beyond has a probability of 1e-21


def second_epsilon(events: Sequence[SampledGaussian], delta: float) -> float | None:
    """ε at ``delta`` for adding or removing one unit, estimated independently; None where it is not supported.

    Not supported: truncated sampling, δ below 1e-11, and events whose losses differ so much in size that one
    grid cannot hold them.

    >>> round(second_epsilon([SampledGaussian(4.4627, 2048 / 60000, 1172)], 1e-5), 2)
    1.0
    """
    check_delta(delta)
    live = merged(events)
    if not live:
        return 0.0
    if any(event.cap is not None or event.noise_multiplier < 1e-2 for event in live) or delta < LEAST_DELTA:
        return None if all(event.is_private for event in live) else math.inf
    found = [_one_way(live, delta, added) for added in (False, True)]
    known = [value for value in found if value is not None]
    return max(known) if len(known) == len(found) else None


@dataclass(frozen=True)
class _Loss:
    """The privacy loss of one release; ``added`` says which of the two data sets has the unit."""

    event: SampledGaussian
    added: bool

    def on_line(self) -> tuple[Array, Array]:
        """The loss on fine points of the release, and their probabilities."""
        import numpy as np

        sigma, rate = self.event.noise_multiplier, self.event.rate
        x = np.linspace(-_SIDES * sigma, 1 + _SIDES * sigma, 40_001)
        loss = np.logaddexp(math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + (x - 0.5) / sigma**2)
        without = np.exp(-0.5 * (x / sigma) ** 2)
        weight = (
            without if self.added else (1 - rate) * without + rate * np.exp(-0.5 * ((x - 1) / sigma) ** 2)
        )
        return (-loss if self.added else loss), weight / weight.sum()

    def below(self, loss: Array) -> Array:
        """The probability of at most this loss."""
        import numpy as np
        from scipy.special import ndtr

        sigma, rate = self.event.noise_multiplier, self.event.rate
        wanted = -loss if self.added else loss
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            inside = np.where(wanted > 30, wanted - math.log(rate), np.log1p(np.expm1(wanted) / rate))
        x = np.where(np.isnan(inside), -np.inf, sigma**2 * inside + 0.5)
        if self.added:
            return ndtr(-x / sigma)
        return (1 - rate) * ndtr(x / sigma) + rate * ndtr((x - 1) / sigma)


@functools.lru_cache(maxsize=256)
def _one_way(events: tuple[SampledGaussian, ...], delta: float, added: bool) -> float | None:
    import numpy as np

    losses = [_Loss(event, added) for event in events]
    lines = [loss.on_line() for loss in losses]
    counts = [event.steps for event in events]
    means = [float(line @ weight) for line, weight in lines]
    spreads = [
        math.sqrt(max(float((line - mean) ** 2 @ weight), 1e-300))
        for (line, weight), mean in zip(lines, means)
    ]
    spread = math.sqrt(sum(n * s * s for n, s in zip(counts, spreads)))
    low, high = _range(lines, counts, means, spread, delta * 1e-4)
    step = min(0.05 * spread / math.sqrt(sum(counts)), 0.2 * min(spreads), 0.05)
    step = max(step, (high - low) / MOST_POINTS)
    if step > 0.3 * min(spreads):
        return None
    size = 1 << math.ceil(math.log2((high - low) / step + 2))
    transform = np.ones(size // 2 + 1, dtype=complex)
    shift = 0.0
    for loss, (line, _), count, mean in zip(losses, lines, counts, means):
        first, last = math.floor(line.min() / step) - 1, math.ceil(line.max() / step) + 1
        if last - first > 20 * MOST_POINTS:
            return None
        edges = loss.below((np.arange(first, last + 2) - 0.5) * step)
        chances = np.diff(edges)
        chances /= chances.sum()
        places = np.arange(first, last + 1)
        shift += count * (mean - float(chances @ places) * step)
        transform *= np.fft.rfft(np.bincount(places % size, weights=chances, minlength=size)) ** count
    total = np.fft.irfft(transform, size).astype(np.float64)
    start = math.floor((low - shift) / step)
    sums = (start + np.arange(size, dtype=np.float64)) * step + shift
    return _epsilon_of(sums, np.roll(total, -(start % size)), delta)


def _range(
    lines: Sequence[tuple[Array, Array]],
    counts: Sequence[int],
    means: Sequence[float],
    spread: float,
    tail: float,
) -> tuple[float, float]:
    """Where the sum of all losses lies, but for a probability of ``tail`` on each side (Chernoff's bound)."""
    import numpy as np
    from scipy.special import logsumexp

    middle = sum(n * mean for n, mean in zip(counts, means))
    ends = []
    for sign in (-1.0, 1.0):
        best = math.inf
        for order in np.geomspace(0.05, 200, 40) / spread:
            grown = sum(
                n * float(logsumexp(sign * order * (line - mean), b=weight))
                for n, (line, weight), mean in zip(counts, lines, means)
            )
            best = min(best, (grown - math.log(tail)) / order)
        ends.append(middle + sign * best)
    return ends[0], ends[1]


def _epsilon_of(sums: Array, chances: Array, delta: float) -> float:
    """The least ε >= 0 with E[(1 − exp(ε − loss))₊] <= δ, by bisection."""
    import numpy as np

    kept = sums > 0
    sums, chances = sums[kept], chances[kept]

    def at(epsilon: float) -> float:
        return float(np.maximum(-np.expm1(np.minimum(epsilon - sums, 0.0)), 0.0) @ chances)

    low, high = 0.0, float(sums[-1]) if len(sums) else 0.0
    if at(0.0) <= delta:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) > delta else (low, middle)
        if high - low < 1e-6 * high:
            break
    return high
