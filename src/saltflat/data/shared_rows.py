"""Public rows beside private ones: who says that they are public, and a look for rows that are in both."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from saltflat.data.source import Examples, as_source, map_tensors, tensors_in
from saltflat.errors import InputError, PrivacyWarning


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


def split_beside(private: Examples, public: Examples) -> Examples:
    """The private rows, marked as split from one data set with these public ones.

    The mark is a hash of the public rows: public data that was changed since is not taken for the split.
    """
    return replace(private, public_sha256=rows_hash(public.inputs, public.targets))


def separated(private: Any, public: Examples) -> Any:
    """Private data that shares no row with ``public``: as it is, or without the copies that a split left in it.

    A data set may hold a row twice, and a split by `load` then puts one copy on either side: copies leave the
    private side, with a warning. Any other row on both sides is a private row in the wrong place: refused.
    """
    if not _shares_rows(private, public):
        return private
    if not (isinstance(private, Examples) and _is_split_of(public, private)):
        raise _shared("public", public)
    warnings.warn(
        "The data set holds some rows more than once, and its split put copies on both sides. "
        "Copies of public rows are left out of the private side.",
        PrivacyWarning,
        stacklevel=3,
    )
    return apart(private, public)


def refuse_private(data: Any, argument: str, why: str) -> None:
    """Refuse rows that nobody declared public, for ``why``: the end of a sentence.

    >>> refuse_private(Examples(torch.zeros(2, 1), torch.zeros(2), "public"), "data", "and would leak")
    """
    if not isinstance(data, Examples):
        raise InputError(
            argument, type(data).__name__, "data that is marked public or synthetic", problem="says nothing",
            cure="Say who declares it public: sf.public.declared((inputs, targets), by='...').",
        )  # fmt: skip
    if data.provenance == "private":
        raise InputError(
            argument, data.name or "this data", "data whose provenance is public or synthetic",
            problem=f"is marked private, {why}",
            cure="Split a public part off: load(..., public_fraction=0.04).public (--public-fraction on the command "
            "line); or declare it when loading: provenance='public'.",
        )  # fmt: skip


def refuse_shared_rows(private: Any, public: Any, argument: str = "public") -> None:
    """Refuse public data that holds a row of the private data, where both are in memory and can be compared."""
    if _shares_rows(private, public):
        raise _shared(argument, public)


def _shares_rows(private: Any, public: Any) -> bool:
    """Whether a row is on both sides; False where one of them cannot be compared without reading it row by row."""
    ours, theirs = as_source(private), as_source(public)
    if not isinstance(ours, Examples) or not isinstance(theirs, Examples):
        return False
    known = set(_row_hashes(theirs))
    return any(row in known for row in _row_hashes(ours))


def _is_split_of(public: Examples, private: Examples) -> bool:
    """Whether `load` made both of one data set, and the public rows are still those."""
    if (
        public.provenance != "public"
        or not private.public_sha256
        or not isinstance(public.inputs, torch.Tensor)
    ):
        return False
    return rows_hash(public.inputs, public.targets) == private.public_sha256


def _shared(argument: str, rows: Any) -> InputError:
    """The error about a private row in the wrong place. It does not say which row, nor how many."""
    synthetic = getattr(rows, "provenance", "") == "synthetic"
    kind = "samples" if synthetic else "public data"
    cure = (
        "Samples made from public rows alone hold none: make them anew with saltflat synthesize."
        if synthetic
        else "What is private must not be here: take it out. If it is public, it needs no budget: "
        "saltflat.public.apart(private, public) drops such rows from the private side."
    )
    return InputError(
        argument, getattr(rows, "name", "") or "this data", f"{kind} without any row of the private data",
        problem="holds a row of the private data", cure=cure,
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


def joined(*parts: Examples) -> Examples:
    """Several data sets as one. It is synthetic as soon as one part is, and private as soon as one part is.

    >>> one = declared((torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)), by="A", name="a")
    >>> two = declared((torch.ones(2, 2), torch.ones(2, dtype=torch.long)), by="B", name="b", provenance="synthetic")
    >>> both = joined(one, two)
    >>> len(both), both.provenance, both.name, both.declared_by
    (5, 'synthetic', 'a + b', 'A; B')
    """
    if len(parts) == 1:
        return parts[0]
    shapes = {tuple((t.shape[1:], t.dtype) for t in tensors_in(part.inputs)) for part in parts}
    if len(shapes) != 1:
        raise InputError(
            "data", str(sorted(map(str, shapes))), "rows of one shape and type in all parts",
            problem="are their forms",
        )  # fmt: skip
    flat = [tensors_in(part.inputs) for part in parts]
    columns = iter([torch.cat(column) for column in zip(*flat)])
    kinds = {part.provenance for part in parts}
    kind: Any = next(kind for kind in ("private", "synthetic", "public") if kind in kinds)
    counts = [part.num_classes for part in parts if part.num_classes is not None]
    return Examples(
        map_tensors(lambda _: next(columns), parts[0].inputs),
        torch.cat([part.targets for part in parts]),
        kind,
        " + ".join(dict.fromkeys(part.name for part in parts if part.name)),
        max(counts, default=None),
        None,
        "; ".join(dict.fromkeys(part.declared_by or "the caller" for part in parts)),
    )


def rows_hash(inputs: torch.Tensor, targets: torch.Tensor) -> str:
    """The SHA-256 of images and labels: it names a public set wherever it lies, also in samples made from it.

    >>> rows_hash(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long))[:8]
    '97028420'
    """
    digest = hashlib.sha256(json.dumps([list(inputs.shape), str(inputs.dtype)]).encode())
    for tensor in (inputs, targets):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _row_hashes(rows: Examples) -> Iterator[bytes]:
    """A fingerprint of the inputs of each row; labels may be wrong on one side."""
    arrays = [t.detach().cpu().contiguous().numpy() for t in tensors_in(rows.inputs)]
    for number in range(len(rows)):
        digest = hashlib.blake2b(digest_size=16)
        for array in arrays:
            digest.update(array[number].tobytes())
        yield digest.digest()
