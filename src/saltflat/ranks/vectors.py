"""Named tensors as one long vector, and back: one message instead of one for each tensor."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def as_bytes(vectors: Mapping[str, Tensor]) -> Tensor:
    """All tensors as bytes, one after the other: whatever their types, nothing is rounded.

    >>> as_bytes({"w": torch.zeros(2), "n": torch.tensor(7)}).shape
    torch.Size([16])
    """
    parts = [value.detach().reshape(-1).contiguous().view(torch.uint8) for value in vectors.values()]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8)


def from_bytes(held: Tensor, form: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `as_bytes` made of tensors of this form.

    >>> vectors = {"n": torch.tensor([True]), "w": torch.arange(3.0)}
    >>> from_bytes(as_bytes(vectors), vectors)["w"]
    tensor([0., 1., 2.])
    """
    sizes = [value.numel() * value.element_size() for value in form.values()]
    return {
        name: part.clone().view(value.dtype).view(value.shape)  # a clone begins where its type may begin
        for (name, value), part in zip(form.items(), held.split(sizes), strict=True)
    }


def flat_sums(vectors: Mapping[str, Tensor]) -> dict[torch.dtype, Tensor]:
    """One long vector for each type of number, in the order of the names."""
    kinds = dict.fromkeys(value.dtype for value in vectors.values())
    return {
        kind: torch.cat([value.reshape(-1) for value in vectors.values() if value.dtype == kind])
        for kind in kinds
    }


def from_flat_sums(parts: Mapping[torch.dtype, Tensor], form: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `flat_sums` made of vectors of this form.

    >>> vectors = {"w": torch.ones(2, 2), "n": torch.ones(1, dtype=torch.long), "b": torch.zeros(1)}
    >>> from_flat_sums(flat_sums(vectors), vectors)["w"].shape
    torch.Size([2, 2])
    """
    taken = dict.fromkeys(parts, 0)
    found = {}
    for name, value in form.items():
        start = taken[value.dtype]
        taken[value.dtype] = start + value.numel()
        found[name] = parts[value.dtype][start : start + value.numel()].view(value.shape)
    return found
