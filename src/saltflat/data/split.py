"""Splits that anyone can repeat: by a permutation that depends on a seed and on nothing else.

The permutation sorts the raw words of a PCG64 stream, which NumPy guarantees never to change, so a split
made today is the same split in every later version and on every machine.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from saltflat.data.raw import Part, Raw
from saltflat.data.source import Examples
from saltflat.errors import InputError, check_count, check_share

_TEST, _PUBLIC = 1, 2  # one stream a purpose: the public part must not follow from the test part

Rows = NDArray[np.int64]
PUBLIC_FRACTION = 0.04
"""The share that is public if none is named: that of the public-data paper."""


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


def public_split(labels: ArrayLike, fraction: float = PUBLIC_FRACTION, seed: int = 0) -> tuple[Rows, Rows]:
    """Public rows and private rows, both in rising order; the same number of public rows of every class.

    Guarantees: the two share no row, and together they are all rows. The answer depends on the labels, the
    fraction and the seed alone, on every machine and in every later version. ``load(..., public_fraction=...,
    seed=...)`` makes the same split: rows that one command took as public are those that another leaves out.

    >>> public, private = public_split([0, 1, 0, 1, 0, 1, 0, 1, 0, 1], 0.4, seed=0)
    >>> len(public), len(private), sorted(set(public) & set(private))
    (4, 6, [])
    """
    check_fraction("public_fraction", fraction)
    known = np.asarray(labels)
    if known.ndim != 1 or len(known) == 0:
        raise InputError("labels", str(known.shape), "one class number a row", problem="has the wrong shape")
    classes, numbers = np.unique(known, return_inverse=True)
    return balanced(numbers.astype(np.int64), len(classes), fraction, seed)


def public_part(train: Examples, fraction: float = PUBLIC_FRACTION, seed: int = 0) -> tuple[Examples, Rows]:
    """The public rows of ``train`` as examples of provenance public, and their numbers.

    >>> from saltflat.data import load
    >>> part, rows = public_part(load("digits").train, 0.2, seed=0)
    >>> len(part), part.provenance, bool((part.targets == load("digits", public_fraction=0.2).public.targets).all())
    (290, 'public', True)
    """
    if train.groups is not None:
        raise InputError(
            "public_fraction", fraction, "rows without groups",
            problem="would make some rows of a person public and others not",
            cure="Use saltflat.data.load(..., group=..., public_fraction=...), which splits by whole groups.",
        )  # fmt: skip
    rows, _ = public_split(train.targets.numpy(), fraction, seed)
    return train.subset(torch.from_numpy(rows), provenance="public"), rows


def balanced(labels: Rows, num_classes: int, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """The rows of a public part with the same number of each class, and the others; both in rising order."""
    each = round(fraction * len(labels) / num_classes)
    order = permutation(len(labels), seed, _PUBLIC)
    chosen = [order[labels[order] == label][:each] for label in range(num_classes)]
    if any(len(rows) < each for rows in chosen):
        raise InputError(
            "public_fraction", fraction,
            f"at least {each} training rows of each of the {num_classes} classes",
            problem="asks for more rows of a class than there are", cure="Take a smaller public_fraction.",
        )  # fmt: skip
    held = np.sort(np.concatenate(chosen))
    rest = np.setdiff1d(np.arange(len(labels)), held)
    _refuse_empty("public_fraction", fraction, len(rest), len(held))
    return held, rest


def check_fraction(argument: str, value: float) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    check_share(argument, value, cure=f"A twentieth is {argument}=0.05.")


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
            argument, fraction, "at least one row on either side of the split",
            problem="leaves one side without rows", cure="Take another fraction, or more data.",
        )  # fmt: skip
