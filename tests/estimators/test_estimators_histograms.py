"""Histograms over a public grid, and what is read from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saltflat.estimators.histograms import BUCKETS, ZERO, Place, bucket_of, fitted, histogram, places


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20), st.floats())
def test_a_number_stands_in_one_bucket_at_most(values: list[float], more: float) -> None:
    """The sensitivity of a survey: huge, infinite, tiny and missing numbers included."""
    without, with_it = histogram(np.array(values, dtype=float)), histogram(np.array([*values, more]))
    difference = with_it - without
    assert len(difference) == BUCKETS
    assert difference.min() >= 0
    assert difference.sum() == (0 if math.isnan(more) else 1)


def test_buckets_are_in_order_and_symmetric() -> None:
    values = np.array([-math.inf, -1e12, -3.0, -1e-9, 0.0, 1e-300, 0.1, 7.0, 1e40, math.inf])
    found = bucket_of(values)
    assert (np.diff(found) >= 0).all()
    assert found[0] == 0
    assert found[-1] == BUCKETS - 1
    np.testing.assert_array_equal(bucket_of(-values) - ZERO, -(found - ZERO))


@pytest.mark.parametrize(
    ("centre", "spread"), [(0.0, 1.0), (14.0, 3.5), (-300.0, 90.0), (0.02, 0.006), (1e6, 4e5)]
)
def test_a_normal_column_is_found(centre: float, spread: float) -> None:
    values = np.random.default_rng(0).normal(centre, spread, 2000)
    found = fitted(histogram(values).astype(float), deviation=20.0)
    assert found is not None
    assert abs(found.centre - centre) < spread
    assert 0.5 < found.spread / spread < 2.0


def test_zeros_move_the_centre() -> None:
    """Half zeros, half around ten: the mean is five, and both lie within the bounds."""
    values = np.concatenate([np.zeros(500), np.random.default_rng(0).normal(10, 2, 500)])
    found = fitted(histogram(values).astype(float), deviation=5.0)
    assert found is not None
    assert 4 < found.centre < 6
    low, high = found.bounds
    assert low < 0
    assert high > 12


def test_a_column_that_drowns_in_noise_takes_the_place_of_all() -> None:
    rng = np.random.default_rng(0)
    clear, few = rng.normal(8, 2, (50, 400)), rng.normal(8, 2, 3)
    counts = np.array([*(histogram(column) for column in clear), histogram(few)], dtype=float)
    found = places(counts + rng.normal(0, 30, counts.shape), 30.0)
    assert abs(found[-1].centre - 8) < 3
    assert fitted(counts[-1] + rng.normal(0, 30, BUCKETS), 30.0) is None


def test_noise_alone_is_nothing() -> None:
    """Pure noise stands out in about one column of a hundred: here in none of forty."""
    noise = np.random.default_rng(3).normal(0, 10, (40, BUCKETS))
    assert sum(fitted(column, 10.0) is not None for column in noise) <= 3
    assert places(noise[:1] * 0.0, 10.0) == [Place(0.0, 1.0)]
