"""How long vectors are: never noticeably too short, however many numbers they have.

torch adds up squares in float32, a few lanes side by side. Each addition may round down, and over a million equal
numbers the length comes out 8 in 10,000 too short: a unit would be clipped too little. So squares are added up in
float32 over a few hundred numbers at a time, which takes no longer, and their sums in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 512


def lengths(rows: Tensor) -> Tensor:
    """The length of each row of a matrix, in float64.

    >>> round(float(lengths(torch.full((1, 1 << 20), 0.5))) / 512, 6)
    1.0
    """
    whole = rows.shape[1] // BLOCK * BLOCK
    if whole <= BLOCK:
        return torch.linalg.vector_norm(rows, dim=1).double()
    parts = [torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, BLOCK)), dim=2)]
    if whole < rows.shape[1]:
        parts.append(torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True))
    return torch.linalg.vector_norm(torch.cat(parts, dim=1).double(), dim=1)


def squared_lengths(grads: Tensor) -> Tensor:
    """The squared norm of each row, in float64."""
    return lengths(grads.reshape(len(grads), -1)).square()
