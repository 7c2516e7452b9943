"""Which rows are public: nothing shared, nothing lost, and the same rows wherever they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saltflat.data import Examples, load, public_part, public_split
from saltflat.errors import InputError


@given(
    labels=st.lists(st.integers(0, 3), min_size=20, max_size=80),
    fraction=st.floats(0.05, 0.5),
    seed=st.integers(0, 9),
)
def test_public_and_private_make_up_the_whole(labels: list[int], fraction: float, seed: int) -> None:
    rarest = min(labels.count(label) for label in set(labels))
    each = round(fraction * len(labels) / len(set(labels)))
    if each == 0 or each > rarest:
        with pytest.raises(InputError, match="public_fraction"):
            public_split(labels, fraction, seed)
        return
    public, private = public_split(labels, fraction, seed)
    assert sorted([*public, *private]) == list(range(len(labels)))
    assert (np.diff(public) > 0).all()
    assert (np.diff(private) > 0).all()
    counts = np.unique(np.asarray(labels)[public], return_counts=True)[1]
    assert len(counts) == len(set(labels))
    assert len(set(counts)) == 1
    assert np.array_equal(public, public_split(labels, fraction, seed)[0])


@pytest.mark.parametrize("seed", [0, 7])
def test_it_is_the_split_of_load(seed: int) -> None:
    """Otherwise private training would keep rows that a model was made from."""
    whole, split = load("digits").train, load("digits", public_fraction=0.2, seed=seed)
    public, private = public_split(whole.targets.numpy(), 0.2, seed)
    assert split.public is not None
    assert torch.equal(whole.inputs[torch.from_numpy(public)], split.public.inputs)
    assert torch.equal(whole.inputs[torch.from_numpy(private)], split.train.inputs)
    part, rows = public_part(whole, 0.2, seed)
    assert np.array_equal(rows, public)
    assert part.provenance == "public"
    assert torch.equal(part.inputs, split.public.inputs)


def test_the_rows_never_change() -> None:
    """Written down: whoever recorded these rows must find them again in every later version."""
    assert public_split([0, 1] * 10, 0.2, seed=0)[0].tolist() == [0, 3, 14, 19]


def test_four_in_a_hundred_are_public_by_default() -> None:
    whole = load("digits").train
    expected = public_split(whole.targets, 0.04, 0)[0]
    assert np.array_equal(public_split(whole.targets)[0], expected)
    assert np.array_equal(public_part(whole)[1], expected)


def test_refusals() -> None:
    for labels, fraction in (
        ([0, 1], 1.5),
        ([0] * 9 + [1], 0.8),
        ([0, 1] * 5, 0.01),
        ([[0, 1]], 0.5),
        ([], 0.5),
    ):
        with pytest.raises(InputError):
            public_split(labels, fraction, 0)
    grouped = Examples(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]), groups=torch.tensor([0, 0, 1, 1]))
    with pytest.raises(InputError, match="whole groups"):
        public_part(grouped, 0.5, 0)
