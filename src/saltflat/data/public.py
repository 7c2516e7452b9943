"""Which rows of a data set are public: the same for everyone who knows the seed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from saltflat.data.source import Examples
from saltflat.data.split import balanced, check_fraction
from saltflat.errors import InputError

Rows = NDArray[np.int64]
PUBLIC_FRACTION = 0.04
"""The share that is public if none is named: that of the public-data paper."""


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
