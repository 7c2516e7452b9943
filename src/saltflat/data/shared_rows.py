"""Public rows beside private ones: who says that they are public, and a look for rows that are in both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from saltflat.data.source import Examples, map_tensors, tensors_in
from saltflat.errors import InputError


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
            "data",
            str(sorted(map(str, shapes))),
            "rows of one shape and type in all parts",
            problem="are their forms",
        )
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
