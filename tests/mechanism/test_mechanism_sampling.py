"""Sampling: every row on its own, at the declared rate, whatever the data."""

from __future__ import annotations

import math

import pytest
import torch

from saltflat.errors import InputError
from saltflat.mechanism.sampling import check_rows, draw
from saltflat.plan import Poisson, TruncatedPoisson


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_rate_one_takes_everything_and_no_rows_give_none() -> None:
    assert draw(Poisson(7, 7), 7, generator()).tolist() == list(range(7))
    assert draw(Poisson(7, 7), 0, generator()).tolist() == []


def test_the_rate_is_the_declared_one_whatever_the_number_of_rows() -> None:
    """Fails when the batch size is divided by the rows that are there (tried)."""
    few, many = 500, 20_000
    for rows in (few, many):
        share = len(draw(Poisson(1000, 100), rows, generator())) / rows
        assert abs(share - 0.1) < 6 * math.sqrt(0.09 / rows)


def test_an_added_row_leaves_the_others_where_they_were() -> None:
    """The draw of each row depends on its own number only."""
    alone = draw(Poisson(100, 30), 50, generator(3))
    beside = draw(Poisson(100, 30), 51, generator(3))
    assert beside[beside < 50].tolist() == alone.tolist()


@pytest.mark.statistical
def test_truncated_batches_are_capped_and_fair() -> None:
    """Fails when the surplus is cut from the end instead of at random (tried)."""
    sampling = TruncatedPoisson(200, 50, 50)
    random = generator(1)
    seen = torch.zeros(200)
    for _ in range(3000):
        batch = draw(sampling, 200, random)
        assert len(batch) <= 50
        assert torch.equal(batch, batch.unique())
        seen[batch] += 1
    first, last = seen[:100].sum(), seen[100:].sum()
    assert abs(first - last) / math.sqrt(first + last) < 6


def test_more_rows_than_declared_are_refused_by_a_truncated_sampler_only() -> None:
    check_rows(TruncatedPoisson(100, 10), 100)
    check_rows(Poisson(100, 10), 1000)
    with pytest.raises(InputError, match="population=100 is less than the data set has"):
        check_rows(TruncatedPoisson(100, 10), 101)
