"""The exact tier: gradients on a grid of integers, and a Gaussian that is sampled exactly and rounded to it.

Why the accounting stays as it is. Write everything in units of the grid. Each unit's gradient becomes a
vector of integers no longer than R = C/grid, so one unit moves the integer sum S by at most R. The noise is
round(Z) with Z ~ N(0, (σR)²). S is an integer, so S + round(Z) = round(S + Z): what is released is a rounding,
hence post-processing, of the Gaussian mechanism with noise multiplier σ. The same privacy loss distribution
bounds it, for any sampling and composition. Nothing is rounded after the noise but what is already public.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from saltflat.errors import InputError
from saltflat.mechanism.streams import CryptographicStream

# The clip norm is between 2²⁰ and 2²¹ steps of the grid: a rounding of 10⁻⁶ of the clip norm a coordinate.
LEVELS = 20
# How far the float64 quantile may be from the true one where it is trusted. Its own error is below 2⁻⁴⁹, and
# the 64 bits that are known of the uniform number add less than 2⁻⁴³ down to LEAST_TAIL.
TRUSTED = 2.0**-40
LEAST_TAIL = 2.0**-24
# Above this, too many draws would lie within TRUSTED of a boundary.
LARGEST_DEVIATION = 2.0**34
SQUARES_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Grid:
    """A grid of integers for gradients of length ``clip_norm``; its step is a power of two.

    >>> grid = Grid.for_clip_norm(1.0)
    >>> grid.step == 2.0**-20, int(grid.rounded({"w": torch.tensor([0.5])})["w"])
    (True, 524288)
    """

    clip_norm: float
    step: float

    @staticmethod
    def for_clip_norm(clip_norm: float) -> Grid:
        """The grid of a clip norm: public, as the clip norm is."""
        if not 0 < clip_norm < math.inf:
            raise InputError("clip_norm", clip_norm, "a finite clip_norm > 0 with randomness='exact'")
        return Grid(clip_norm, 2.0 ** (math.frexp(clip_norm)[1] - 1 - LEVELS))

    @property
    def squared_radius(self) -> int:
        """The largest squared length that a unit may have, in steps of the grid."""
        return int((Fraction(self.clip_norm) / Fraction(self.step)) ** 2)

    def deviation(self, noise_multiplier: float) -> float:
        """Noise multiplier times clip norm in steps of the grid, rounded up."""
        exact = Fraction(noise_multiplier) * Fraction(self.clip_norm) / Fraction(self.step)
        near = float(exact)
        return near if Fraction(near) >= exact else math.nextafter(near, math.inf)

    def rounded(self, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One unit's gradient in integers, clipped again in integers.

        Guarantees: the squared length, added up in integers, is at most `squared_radius`, whatever the
        floating-point numbers held. A gradient that is not finite becomes zero.
        """
        names, shapes = list(gradient), [part.shape for part in gradient.values()]
        whole = torch.cat([part.detach().cpu().double().flatten() for part in gradient.values()])
        if not bool(whole.isfinite().all()):
            whole = torch.zeros_like(whole)
        most = 2.0 ** (LEVELS + 1)
        integers = (whole / self.step).round().clamp(-most, most).long()  # dividing by 2^k is exact
        length = squared_length(integers)
        if length > self.squared_radius:
            # Towards zero, and by a factor that is a little too small: what results is not longer.
            factor = math.sqrt(self.squared_radius / length) * (1 - 2.0**-40)
            integers = (integers.double() * factor).trunc().long()
            if squared_length(integers) > self.squared_radius:
                integers = torch.zeros_like(integers)
        sizes = [shape.numel() for shape in shapes]
        return {n: p.view(s) for n, p, s in zip(names, integers.split(sizes), shapes)}


def squared_length(integers: Tensor) -> int:
    """The sum of squares, without overflow: parts in 64 bits, their sum in Python's integers."""
    return sum(int(part.square().sum()) for part in integers.split(SQUARES_AT_ONCE))


def rounded_gaussian(count: int, deviation: float, stream: CryptographicStream) -> Tensor:
    """``count`` independent draws of round(Z), Z ~ N(0, deviation²), each with exactly that law.

    Z = deviation · Φ⁻¹(U) for a uniform U whose bits are drawn as they are needed. 64 bits and float64
    settle all but a few draws: those that could still fall on either side of a boundary between two integers,
    or far out in the tail, are settled with more bits and as many digits as it takes (Ziv's method).

    >>> rounded_gaussian(5, 0.0001, CryptographicStream.from_seed(0, "noise")).tolist()
    [0, 0, 0, 0, 0]
    """
    if not 0 <= deviation < LARGEST_DEVIATION:
        raise InputError("noise_multiplier", deviation, "noise of fewer than 2**34 steps of the grid")
    if deviation == 0:
        return torch.zeros(count, dtype=torch.int64)
    words = stream.words(count)
    tail = words & (2**63 - 1)  # 63 bits for |Z|, one for the sign
    probability = (tail.double() + 0.5) * 2.0**-64  # in (0, 1/2)
    length = torch.special.ndtri(probability).mul_(-deviation)
    result = length.round()
    from_boundary = 0.5 - (length - result).abs()
    unsettled = (from_boundary < 2 * TRUSTED * deviation) | (probability < LEAST_TAIL)
    for place in unsettled.nonzero().flatten().tolist():
        result[place] = settled(int(tail[place]), deviation, stream)
    return torch.where(words < 0, -result, result).long()


def settled(tail: int, deviation: float, stream: CryptographicStream) -> int:
    """round(|Z|) where P(Z > |Z|) begins with the 64 bits of ``tail``: with further bits until it is certain.

    k is the answer if the tail lies between P(Z > k + ½) and P(Z > k − ½). It is sought near the quantile,
    and found by comparisons in 64 more digits than there are bits.
    """
    import mpmath

    bits = 64
    while True:
        tail, bits = (tail << 64) | stream.word(), bits + 64
        with mpmath.workprec(bits + 64):
            scale, whole = mpmath.sqrt(2) * mpmath.mpf(deviation), mpmath.mpf(2) ** (bits - 1)
            nearest = int(_quantile(tail, bits) * deviation + 0.5)
            for k in sorted(range(max(nearest - 2, 0), nearest + 3), key=lambda k: abs(k - nearest)):
                most = whole if k == 0 else whole * mpmath.erfc((k - 0.5) / scale)
                if tail + 1 <= most and tail >= whole * mpmath.erfc((k + 0.5) / scale):
                    return k


def _quantile(tail: int, bits: int) -> float:
    """|Z| for a tail of so many bits, nearly."""
    from scipy.special import ndtri_exp

    return -float(ndtri_exp(math.log(tail + 0.5) - bits * math.log(2)))


def noised_on_grid(
    total: Mapping[str, Tensor],
    grid: Grid,
    noise_multiplier: float,
    divisor: float,
    stream: CryptographicStream,
) -> dict[str, Tensor]:
    """``(total + round(N(0, (σR)²))) · step / divisor`` in float64, for integer totals: the release.

    >>> grid, stream = Grid.for_clip_norm(1.0), CryptographicStream.fresh()
    >>> noised_on_grid({"w": torch.tensor([2**20])}, grid, 0.0, 4.0, stream)
    {'w': tensor([0.2500], dtype=torch.float64)}
    """
    deviation = grid.deviation(noise_multiplier)
    release = {}
    for name, value in total.items():
        noise = rounded_gaussian(value.numel(), deviation, stream).view(value.shape)
        release[name] = (value + noise).double() * (grid.step / divisor)
    return release
