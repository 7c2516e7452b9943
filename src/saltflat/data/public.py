"""Public rows beside private ones: a split that anyone can repeat, and a look for rows that are in both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saltflat.data.source import Examples, tensors_in
from saltflat.data.split import check_fraction, permutation
from saltflat.errors import InputError

_PUBLIC = 2  # the stream of `saltflat.data.split` that public parts are drawn from

Rows = NDArray[np.int64]


def public_split(labels: Any, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """The rows of a public part with the same number of rows of every class, and the private rest.

    Guarantee: the two share no row, none is lost, and both follow from ``labels``, ``fraction`` and ``seed``.

    >>> public, private = public_split([0, 1] * 5, 0.4, seed=0)
    >>> len(public), len(private), sorted(public % 2)
    (4, 6, [0, 0, 1, 1])
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


def apart(private: Examples, public: Examples) -> Examples:
    """The private rows without those whose inputs are also in the public data.

    A data set may hold the same image twice, and a split then puts one copy on either side. Whether a private
    row stays depends on it and on public rows alone, so nothing else about the guarantee changes.

    >>> some = Examples(torch.arange(4.0)[:, None], torch.zeros(4))
    >>> len(apart(some, some.subset(torch.tensor([1, 2]), "public")))
    2
    """
    known = set(_row_hashes(public))
    kept = [number for number, row in enumerate(_row_hashes(private)) if row not in known]
    if len(kept) == len(private):
        return private
    if not kept:
        raise InputError(
            "public", public.name or "data", "data that leaves private rows", problem="holds every row"
        )
    return private.subset(torch.tensor(kept))


def refuse_shared_rows(private: Any, public: Any) -> None:
    """Refuse public data that holds a row of the private data, where both are in memory and can be compared."""
    if not isinstance(private, Examples) or not isinstance(public, Examples):
        return
    known = set(_row_hashes(public))
    if any(row in known for row in _row_hashes(private)):
        raise InputError(
            "public", public.name or "this data", "public data that shares no row with the private data",
            problem="holds a row of the private data",
            cure="Leave such rows out of one of them: saltflat.public.apart(private, public) drops them from the "
            "private side. What is public needs no budget, and what is private must not be here.",
        )  # fmt: skip


def declared(data: Any, by: str, *, name: str = "", provenance: str = "public") -> Examples:
    """Rows that somebody declares public, or synthetic from public data; the certificate names who did.

    >>> rows = declared((torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)), by="the data owners")
    >>> rows.provenance, rows.declared_by
    ('public', 'the data owners')
    """
    if provenance not in ("public", "synthetic"):
        raise InputError("provenance", provenance, "'public' or 'synthetic'")
    if not isinstance(by, str) or not by.strip():
        raise InputError("by", by, "the name of whoever says that the rows are public")
    rows = (
        data if isinstance(data, Examples) else Examples(torch.as_tensor(data[0]), torch.as_tensor(data[1]))
    )
    kind: Any = provenance
    return replace(rows, provenance=kind, declared_by=by, name=name or rows.name)


def _row_hashes(rows: Examples) -> Iterator[bytes]:
    """A fingerprint of the inputs of each row; labels may be wrong on one side."""
    arrays = [t.detach().cpu().contiguous().numpy() for t in tensors_in(rows.inputs)]
    for number in range(len(rows)):
        digest = hashlib.blake2b(digest_size=16)
        for array in arrays:
            digest.update(array[number].tobytes())
        yield digest.digest()
