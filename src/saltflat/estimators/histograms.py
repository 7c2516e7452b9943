"""Where a column of numbers lies and how wide it is, read from a noised histogram over a public grid.

The grid knows nothing of the data: buckets grow by a quarter octave (19 %) from 2⁻²⁰ to 2⁴⁰, on both sides of zero,
and exact zeros have a bucket of their own. Which normal distribution fits the noised counts best is a question
about a release, and costs nothing more.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAST, MOST = -20, 40  # powers of two
PER_OCTAVE = 4
SIDE = (MOST - LEAST) * PER_OCTAVE
BUCKETS = 2 * SIDE + 1
ZERO = SIDE
"""The bucket of exact zeros: in the middle, negative numbers before it."""

# Candidates: widths by half octaves, and centres up to eight widths from zero. What is narrower beside its value
# than that falls into two buckets or three, which do not tell its width.
WIDTHS = 2.0 ** np.arange(LEAST, MOST, 0.5)
PLACES = np.concatenate([-np.arange(8.0, 0.0, -0.5), np.arange(0.0, 8.5, 0.5)])

# A fit must stand out of the noise by so many deviations. The largest of all candidates does so by chance in about
# one column of a hundred.
STANDS_OUT = 4.0
REACH = 2.5
"""Bounds lie so many deviations from the centre."""


@dataclass(frozen=True)
class Place:
    """The centre of a column, and its deviation."""

    centre: float
    spread: float

    @property
    def bounds(self) -> tuple[float, float]:
        """What is cut off lies beyond these."""
        return self.centre - REACH * self.spread, self.centre + REACH * self.spread


def bucket_of(values: Array) -> NDArray[np.int64]:
    """The bucket of each number. Numbers beyond the grid go into its outermost buckets.

    >>> (bucket_of(np.array([-1.0, 0.0, 1.0, 1.2])) - ZERO).tolist()
    [-81, 0, 81, 82]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        octave = np.floor((np.log2(np.abs(values)) - LEAST) * PER_OCTAVE)
    steps = np.clip(np.nan_to_num(octave, nan=0.0, neginf=0.0, posinf=SIDE), 0, SIDE - 1) + 1
    return ZERO + np.where(values == 0, 0.0, np.sign(values) * steps).astype(np.int64)


def histogram(values: Array) -> NDArray[np.int64]:
    """How many numbers fall into each bucket: each into one, and those that are no number into none.

    >>> counts = histogram(np.array([0.0, 0.0, np.nan, 1.0]))
    >>> int(counts[ZERO]), int(counts.sum())
    (2, 3)
    """
    return np.bincount(bucket_of(values[~np.isnan(values)]), minlength=BUCKETS)


def places(counts: Array, deviation: float) -> list[Place]:
    """Centre and spread of each column, from noised histograms, one a row; noise has this deviation a bucket.

    A column whose best fit does not stand out of the noise takes that of all columns together; if its zeros do, it
    lies at zero. If all columns together do not either, nothing is known: centre 0, spread 1.
    """
    together = fitted(counts.sum(0), deviation * math.sqrt(len(counts))) or Place(0.0, 1.0)

    def place(column: Array) -> Place:
        if (found := fitted(column, deviation)) is not None:
            return found
        return Place(0.0, together.spread) if column[ZERO] > STANDS_OUT * deviation else together

    return [place(column) for column in counts]


def fitted(counts: Array, deviation: float) -> Place | None:
    """The normal distribution that stands out most from the noise, together with the zeros; None if none does.

    ⟨counts, p⟩/‖p‖ has noise of the same deviation for every candidate p: the matched filter.
    """
    candidates, lengths = _candidates()
    scores = (candidates @ counts) / lengths
    best = int(np.argmax(scores))
    zeros = float(counts[ZERO])
    zero_stands_out = zeros > STANDS_OUT * deviation
    if not scores[best] > STANDS_OUT * deviation:
        return None
    spread = float(WIDTHS[best // len(PLACES)])
    centre = float(PLACES[best % len(PLACES)]) * spread
    others = float(scores[best] / lengths[best])  # how many rows the fit accounts for
    if not zero_stands_out:
        return Place(centre, spread)
    share = others / (others + zeros)
    mean = share * centre
    return Place(mean, math.sqrt(share * (spread**2 + centre**2) - mean**2))


@functools.cache
def _candidates() -> tuple[Array, Array]:
    """The shares of every candidate in the buckets, zeros excepted, and the lengths of these vectors."""
    from scipy.special import ndtr

    edges = 2.0 ** (LEAST + np.arange(SIDE + 1) / PER_OCTAVE)
    edges[0], edges[-1] = 0.0, np.inf
    rows = []
    for width in WIDTHS:
        below = ndtr(np.concatenate([-edges[::-1], edges])[None, :] / width - PLACES[:, None])
        shares = np.diff(below, axis=1)
        shares[:, SIDE] = 0.0  # between the two zeros: nothing
        rows.append(shares)
    candidates = np.concatenate(rows)
    return candidates, np.linalg.norm(candidates, axis=1)
