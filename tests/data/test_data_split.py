"""Splits: fixed for good, disjoint, complete, balanced."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saltflat import data
from saltflat.data.raw import Part, Raw
from saltflat.data.split import permutation, split_public, split_test
from saltflat.errors import InputError


def numbered(labels: list[int], groups: list[int] | None = None) -> Part:
    """Rows whose only feature is their number, so that they can be followed."""
    numbers = np.arange(len(labels), dtype=np.float32)[:, None]
    return Part(numbers, np.array(labels, dtype=np.int64), None if groups is None else np.array(groups))


def rows_of(part: Part) -> set[int]:
    return {int(row) for row in part.inputs[:, 0]}


def test_the_permutation_never_changes() -> None:
    """These numbers are a promise: a published split must be the same split in every later version."""
    assert permutation(8, 0).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]
    assert permutation(8, 1).tolist() == [2, 4, 7, 5, 0, 6, 3, 1]
    assert sorted(permutation(1000, 5)) == list(range(1000))


@settings(deadline=None, max_examples=60)
@given(
    per_class=st.integers(5, 30),
    classes=st.integers(2, 6),
    fraction=st.floats(0.05, 0.5),
    seed=st.integers(0, 99),
)
def test_public_and_private_share_nothing_and_lose_nothing(
    per_class: int, classes: int, fraction: float, seed: int
) -> None:
    part = numbered(list(range(classes)) * per_class)
    if round(fraction * per_class) == 0:
        return
    private, public = split_public(part, classes, fraction, seed)
    assert not rows_of(private) & rows_of(public)
    assert rows_of(private) | rows_of(public) == set(range(len(part)))
    counts = np.bincount(public.labels, minlength=classes)
    assert len(set(counts.tolist())) == 1
    assert counts[0] == round(fraction * len(part) / classes)
    again = split_public(part, classes, fraction, seed)[1]
    assert np.array_equal(again.inputs, public.inputs)


def test_public_part_is_balanced_even_if_the_data_are_not() -> None:
    part = numbered([0] * 90 + [1] * 10)
    _, public = split_public(part, 2, 0.1, seed=3)
    assert np.bincount(public.labels).tolist() == [5, 5]
    with pytest.raises(InputError, match="more rows of a class than there are"):
        split_public(part, 2, 0.5, seed=3)


def test_seeds_give_different_splits() -> None:
    part = numbered([0, 1] * 50)
    assert rows_of(split_public(part, 2, 0.2, 0)[1]) != rows_of(split_public(part, 2, 0.2, 1)[1])


def test_the_public_part_does_not_follow_from_the_test_part() -> None:
    """Fails when both splits are drawn from one stream: then one would take what the other leaves first."""
    part = numbered([0] * 100)
    test = split_test(Raw(part, None, ("a",)), 0.3, seed=0).test
    assert test is not None
    _, public = split_public(part, 1, 0.3, seed=0)
    assert 0 < len(rows_of(test) & rows_of(public)) < 30


@settings(deadline=None, max_examples=60)
@given(
    groups=st.lists(st.integers(0, 8), min_size=4, max_size=60).filter(lambda g: len(set(g)) > 1),
    seed=st.integers(0, 99),
)
def test_groups_stay_whole(groups: list[int], seed: int) -> None:
    part = numbered([0] * len(groups), groups)
    try:
        private, public = split_public(part, 1, 0.3, seed)
    except InputError:  # one group may be most of the data
        return
    assert private.groups is not None
    assert public.groups is not None
    assert not set(private.groups.tolist()) & set(public.groups.tolist())
    assert rows_of(private) | rows_of(public) == set(range(len(part)))


@pytest.mark.parametrize("argument", ["public_fraction", "test_fraction"])
@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, float("nan"), True, "half"])
def test_fractions_are_checked(argument: str, value: object) -> None:
    with pytest.raises(InputError, match=argument):
        data.load("digits", **{argument: value})


@pytest.mark.parametrize("seed", [-1, 0.5, True, None])
def test_seeds_are_checked(seed: object) -> None:
    with pytest.raises(InputError, match="seed"):
        data.load("digits", public_fraction=0.1, seed=seed)


def test_a_fraction_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="leaves one side without rows"):
        data.load("digits", public_fraction=1e-6)
