"""Splits that anyone can repeat: by a permutation that depends on a seed and on nothing else.

The permutation sorts the raw words of a PCG64 stream, which NumPy guarantees never to change, so a split
made today is the same split in every later version and on every machine.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from saltflat.data.dataset import Part, Raw
from saltflat.errors import InputError, check_count

_TEST, _PUBLIC = 1, 2  # one stream a purpose: the public part must not follow from the test part

Rows = NDArray[np.int64]


def permutation(n: int, seed: int, stream: int = 0) -> Rows:
    """The numbers 0 to n - 1 in an order fixed by ``seed`` for good.

    >>> permutation(6, seed=0).tolist()
    [3, 2, 1, 0, 4, 5]
    """
    check_count("seed", seed, least=0)
    words = np.random.PCG64(np.random.SeedSequence([seed, stream])).random_raw(n)
    return np.argsort(np.asarray(words, dtype=np.uint64), kind="stable").astype(np.int64)


def split_test(raw: Raw, fraction: float, seed: int) -> Raw:
    """Set a share of the rows aside as test rows. Rows of one group stay together."""
    check_fraction("test_fraction", fraction)
    rest, held = _hold_out(raw.train, fraction, seed, _TEST)
    _refuse_empty("test_fraction", fraction, len(rest), len(held))
    return replace(raw, train=raw.train.take(rest), test=raw.train.take(held))


def split_public(part: Part, num_classes: int, fraction: float, seed: int) -> tuple[Part, Part]:
    """The private rest and a public part with the same number of rows of every class.

    Guarantee: the two share no row, and none is lost. What remains is the private data set: its rows, and
    only they, are what epsilon speaks about. With groups the public part is made of whole groups instead,
    because a person of whom some rows are public is not protected by hiding the others.

    >>> part = Part(np.zeros((10, 1), np.float32), np.array([0, 1] * 5))
    >>> private, public = split_public(part, 2, 0.4, seed=0)
    >>> len(private), sorted(public.labels.tolist())
    (6, [0, 0, 1, 1])
    """
    check_fraction("public_fraction", fraction)
    if part.groups is not None:
        rest, held = _hold_out(part, fraction, seed, _PUBLIC)
    else:
        held, rest = balanced(part.labels, num_classes, fraction, seed)
    _refuse_empty("public_fraction", fraction, len(rest), len(held))
    return part.take(rest), part.take(held)


def balanced(labels: Rows, num_classes: int, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """The rows of a public part with the same number of each class, and the others; both in rising order."""
    each = round(fraction * len(labels) / num_classes)
    order = permutation(len(labels), seed, _PUBLIC)
    chosen = [order[labels[order] == label][:each] for label in range(num_classes)]
    if any(len(rows) < each for rows in chosen):
        raise InputError(
            "public_fraction",
            fraction,
            f"at least {each} training rows of each of the {num_classes} classes",
            problem="asks for more rows of a class than there are",
            cure="Take a smaller public_fraction.",
        )
    held = np.sort(np.concatenate(chosen))
    rest = np.setdiff1d(np.arange(len(labels)), held)
    _refuse_empty("public_fraction", fraction, len(rest), len(held))
    return held, rest


def check_fraction(argument: str, value: float) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise InputError(argument, value, f"0 < {argument} < 1", cure=f"A twentieth is {argument}=0.05.")


def _hold_out(part: Part, fraction: float, seed: int, stream: int) -> tuple[Rows, Rows]:
    wanted = round(fraction * len(part))
    if part.groups is None:
        order = permutation(len(part), seed, stream)
        return np.sort(order[: len(part) - wanted]), np.sort(order[len(part) - wanted :])
    groups, sizes = np.unique(part.groups, return_counts=True)
    order = permutation(len(groups), seed, stream)
    before = np.cumsum(sizes[order]) - sizes[order]  # rows already held when a group's turn comes
    held = np.isin(part.groups, groups[order[before < wanted]])
    return np.flatnonzero(~held), np.flatnonzero(held)


def _refuse_empty(argument: str, fraction: float, rest: int, held: int) -> None:
    if rest == 0 or held == 0:
        raise InputError(
            argument,
            fraction,
            "at least one row on either side of the split",
            problem="leaves one side without rows",
            cure="Take another fraction, or more data.",
        )
