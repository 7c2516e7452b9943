"""Sketches: gradients as a few random projections, to be compared without being held.

The gradients of three examples are three times the model, and a comparison needs several of them at once. The
mean square of ``DIRECTIONS`` random projections estimates the squared length of a difference, and it is zero
for all of them only where the difference is (but for a chance that does not happen).

Reference: Johnson & Lindenstrauss 1984; random signs as in Achlioptas 2003.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

DIRECTIONS = 16
# So many numbers are projected at once, by the same signs, and a sign for the whole of them.
BLOCK = 2**16


@lru_cache(maxsize=2)
def _signs(dtype: torch.dtype, device: torch.device) -> Tensor:
    chance = torch.Generator().manual_seed(0)
    return (torch.randint(0, 2, (BLOCK, DIRECTIONS), generator=chance) * 2 - 1).to(device, dtype)


def sketch(gradients: Tensor, place: int) -> Tensor:
    """Rows x (projections, and the squared length), in float64; ``place`` is the parameter's among all.

    >>> two = torch.tensor([[1.0, 2.0], [1.0, 2.5]])
    >>> first, second = sketch(two, 0)
    >>> round(first[-1].item(), 5), (first - second)[:-1].abs().tolist() == [0.5] * DIRECTIONS
    (5.0, True)
    """
    rows = torch.view_as_real(gradients) if gradients.is_complex() else gradients
    rows = rows.reshape(len(rows), -1)
    chance = torch.Generator().manual_seed(place)
    found = torch.zeros(len(rows), DIRECTIONS + 1, dtype=torch.float64)
    signs = _signs(rows.dtype, rows.device)
    for part in rows.split(BLOCK, dim=1):
        flips = torch.randint(0, 2, (DIRECTIONS,), generator=chance) * 2 - 1
        found[:, :-1] += (part @ signs[: part.shape[1]]).double().cpu() * flips
        found[:, -1] += torch.linalg.vector_norm(part, dim=1).double().square().cpu()
    return found
