"""The exact tier: integers that cannot be too long, and a rounded Gaussian with exactly its law."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from core_helpers import bounded
from saltflat.errors import InputError
from saltflat.mechanism.exact import (
    LEAST_TAIL,
    TRUSTED,
    Grid,
    noised_on_grid,
    rounded_gaussian,
    settled,
    squared_length,
)
from saltflat.mechanism.streams import CryptographicStream


def stream(seed: int = 0) -> CryptographicStream:
    return CryptographicStream.from_seed(seed, "tests")


# --- the law of the noise -----------------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("deviation", [0.3, 1.0, 7.3])
def test_the_rounded_gaussian_has_its_law(deviation: float) -> None:
    """χ² over all integers that are expected at least 20 times in 300,000 draws, at level 1e-6.

    Power: 2 % more or less deviation is seen with certainty (30 or more errors of the variance, 7 at 0.3).
    Fails when numbers are rounded down, and when zero never comes up (tried).
    """
    drawn = rounded_gaussian(300_000, deviation, stream()).double()
    reach = range(-math.ceil(4 * deviation), math.ceil(4 * deviation) + 1)
    expected = {
        k: 300_000 * float(stats.norm.cdf((k + 0.5) / deviation) - stats.norm.cdf((k - 0.5) / deviation))
        for k in reach
    }
    cells = {k: count for k, count in expected.items() if count >= 20}
    seen = {k: int((drawn == k).sum()) for k in cells}
    rest = 300_000 - sum(cells.values())
    distance = sum((seen[k] - count) ** 2 / count for k, count in cells.items())
    distance += (300_000 - sum(seen.values()) - rest) ** 2 / max(rest, 20)
    assert distance < stats.chi2.ppf(1 - 1e-6, len(cells))
    assert abs(float(drawn.mean())) < 6 * deviation / math.sqrt(len(drawn)) + 1e-3


@pytest.mark.statistical
def test_on_a_fine_grid_it_is_a_gaussian() -> None:
    """400,000 draws with σ = 4.4 on the grid of a clip norm: χ², shape and neighbours at level 1e-6."""
    deviation = 4.4 * 2**20
    drawn = rounded_gaussian(400_000, deviation, stream()).double() / deviation
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(drawn))
    assert low < float(drawn.square().sum()) < high
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-6
    assert abs(float(drawn.mean())) < 6 / math.sqrt(len(drawn))
    assert abs(float(torch.corrcoef(torch.stack([drawn[1:], drawn[:-1]]))[0, 1])) < 6 / math.sqrt(len(drawn))


class Fixed(CryptographicStream):
    """A stream whose first words are given."""

    def __init__(self, words: torch.Tensor) -> None:
        super().__init__(b"x" * 32)
        self.given: torch.Tensor | None = words

    def words(self, count: int) -> torch.Tensor:
        if self.given is not None:
            words, self.given = self.given, None
            return words
        return super().words(count)


@pytest.mark.parametrize("deviation", [0.7, 1000.25, 4.4627 * 2**20])
def test_float64_never_decides_what_more_digits_would_decide_otherwise(deviation: float) -> None:
    """600 draws, decided again by arithmetic in 192 bits."""
    words = stream(3).words(600)
    words[:200] >>= 25  # further out, where few land
    quick = rounded_gaussian(600, deviation, Fixed(words)).abs().tolist()
    sure = [settled(int(word) & (2**63 - 1), deviation, stream(4)) for word in words]
    # Beyond LEAST_TAIL the quick way asks for bits of its own: those differ, by less than the rest of a word.
    near = [(int(word) & (2**63 - 1)) * 2.0**-64 >= LEAST_TAIL for word in words]
    assert [q for q, n in zip(quick, near) if n] == [s for s, n in zip(sure, near) if n]
    assert sum(near) > 300


def test_a_draw_at_a_boundary_is_settled_by_more_bits() -> None:
    """The tail is split between 0 and 1 at the boundary ½; the words next to it go either way, by its bits."""
    deviation = 1.0
    with mpmath.workprec(300):
        boundary = int(mpmath.floor(mpmath.erfc(mpmath.mpf("0.5") / mpmath.sqrt(2)) * mpmath.mpf(2) ** 63))
        share = float(mpmath.erfc(mpmath.mpf("0.5") / mpmath.sqrt(2)) * mpmath.mpf(2) ** 63 - boundary)
    assert settled(boundary + 1, deviation, stream()) == 0
    assert settled(boundary - 1, deviation, stream()) == 1
    split = [settled(boundary, deviation, stream(seed)) for seed in range(400)]
    assert abs(sum(split) / 400 - share) < 6 * math.sqrt(0.25 / 400)


def test_the_float64_quantile_is_as_near_as_it_is_trusted() -> None:
    """Against 200 digits at 500 places: the error is below 2⁻⁴⁵, and 2⁻⁴⁰ is what is allowed for."""
    places = 2.0 ** -(
        1 + 23 * torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    found = torch.special.ndtri(places)
    with mpmath.workprec(200):
        true = [float(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(p) - 1)) for p in places.tolist()]
    assert float((found - torch.tensor(true, dtype=torch.float64)).abs().max()) < 2.0**-45 < TRUSTED


def test_far_out_and_no_noise() -> None:
    assert settled(0, 1.0, stream()) >= 9  # a chance of 2⁻⁶⁴ is 9.1 standard deviations out
    assert rounded_gaussian(3, 0.0, stream()).tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="steps of the grid"):
        rounded_gaussian(1, 2.0**40, stream())


# --- the grid -----------------------------------------------------------------------------------------


@bounded(200)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=30),
    st.floats(1e-6, 1e6),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_no_gradient_is_longer_than_the_grid_allows(values: list[float], clip: float, dtype: Any) -> None:
    """Whatever it holds, by integer arithmetic. Fails without the second clip (tried)."""
    grid = Grid.for_clip_norm(clip)
    part = torch.tensor(values, dtype=dtype)
    rounded = grid.rounded({"a": part, "b": part[:1].view(1, 1)})
    length = sum(int(v) ** 2 for part in rounded.values() for v in part.flatten())
    assert length <= (Fraction(clip) / Fraction(grid.step)) ** 2
    assert {name: value.shape for name, value in rounded.items()} == {"a": part.shape, "b": (1, 1)}
    if not all(math.isfinite(v) for v in part.tolist()):
        assert length == 0


@bounded(100)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40), st.floats(1e-3, 1e3))
def test_a_short_gradient_is_only_rounded(values: list[float], clip: float) -> None:
    """By half a step in each coordinate. Fails when values are cut off instead of rounded (tried)."""
    grid = Grid.for_clip_norm(clip)
    part = torch.tensor(values, dtype=torch.float64)
    part *= 0.9 * clip / max(float(part.norm()), 1e-300)
    found = grid.rounded({"a": part})["a"].double() * grid.step
    assert float((found - part).abs().max()) <= 0.5 * grid.step
    assert 2.0**20 <= clip / grid.step < 2.0**21


def test_squares_are_added_without_overflow() -> None:
    """Eight million numbers of 2²¹ make 2⁶⁵. Fails when all are added up in 64 bits (tried)."""
    assert squared_length(torch.full((2**21,), 2**20)) == 2**61
    assert squared_length(torch.full((2**23,), 2**21)) == 2**65


@bounded(100)
@given(st.floats(0.01, 1e3), st.floats(1e-3, 1e3))
def test_the_noise_is_never_less_than_declared(sigma: float, clip: float) -> None:
    grid = Grid.for_clip_norm(clip)
    exact = Fraction(sigma) * Fraction(clip) / Fraction(grid.step)
    assert exact <= Fraction(grid.deviation(sigma)) <= exact * Fraction(1 + 2**-51)


def test_the_release_is_the_integer_sum_and_noise_over_the_divisor() -> None:
    """Fails when the mean is noised instead of the sum (tried)."""
    grid = Grid.for_clip_norm(0.7)
    total = {"a": torch.arange(6).view(2, 3) * 10**6, "b": torch.full((2,), -5)}
    release, again = noised_on_grid(total, grid, 2.0, 8.0, stream()), stream()
    for name, value in total.items():
        noise = rounded_gaussian(value.numel(), grid.deviation(2.0), again).view(value.shape)
        assert torch.equal(release[name], (value + noise).double() * (grid.step / 8.0))
