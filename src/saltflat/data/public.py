"""Which rows of a data set are public: the same for everyone who knows the seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from saltflat.data.split import check_fraction, permutation
from saltflat.errors import InputError

_PUBLIC = 2  # the stream of `saltflat.data.split` that public parts are drawn from

Rows = NDArray[np.int64]


def public_split(labels: Any, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """The rows of a public part with the same number of rows of every class, and the private rest.

    Guarantee: the two share no row, none is lost, and both follow from ``labels``, ``fraction`` and ``seed``.

    >>> public, private = public_split([0, 1] * 5, 0.4, seed=0)
    >>> len(public), len(private), sorted(set(public) & set(private))
    (4, 6, [])
    """
    check_fraction("fraction", fraction)
    found = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    classes = np.unique(found)
    each = round(fraction * len(found) / len(classes))
    order = permutation(len(found), seed, _PUBLIC)
    chosen = [order[found[order] == label][:each] for label in classes]
    if each == 0 or any(len(rows) < each for rows in chosen):
        raise InputError(
            "fraction", fraction, f"at least one and at most all rows of each of the {len(classes)} classes",
            problem=f"asks for {each} rows of each class", cure="Take another fraction.",
        )  # fmt: skip
    public = np.sort(np.concatenate(chosen))
    return public, np.setdiff1d(np.arange(len(found)), public)
