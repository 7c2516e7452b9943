"""Masks that are fixed before a round's data is seen: at random, from earlier releases, from public data.

All clients of a round share the mask. They clip what is left, and noise is added to the mask's coordinates only: its
energy falls by the ratio of the mask, at the same guarantee.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from saltflat.plan import Plan, ReleaseMask


def public_generator(plan: Plan, number: int) -> torch.Generator:
    """Randomness that everyone may know: the same for the same plan and round. Masks need no secrets."""
    digest = hashlib.sha256(f"saltflat mask {plan.hash} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def chosen(marks: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """A mask of the ``count`` largest marks; equal ones are chosen among at random.

    >>> chosen(torch.tensor([0.0, 3.0, 0.0, 2.0]), 2, torch.Generator())
    tensor([False,  True, False,  True])
    """
    order = torch.randperm(len(marks), generator=generator)
    mask = torch.zeros(len(marks), dtype=torch.bool)
    mask[order[marks[order].topk(count).indices]] = True
    return mask


def kept_of(ratio: float, size: int) -> int:
    """How many coordinates a share of them is: at least one."""
    return min(size, max(1, round(ratio * size)))


def random_mask(ratio: float, size: int, generator: torch.Generator) -> Tensor:
    """A random share of the coordinates."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size, generator=generator)[: kept_of(ratio, size)]] = True
    return mask


def release_mask(kind: ReleaseMask, total: Tensor, count: Tensor, generator: torch.Generator) -> Tensor:
    """The coordinates that earlier releases moved most clearly, and a few others.

    ``total`` is the sum of releases, ``count`` in how many of them a coordinate was. Under pure noise |Σ|/√n has the
    same law for every n; a steady pull makes it grow. So a coordinate does not stay because it was there before.
    """
    size = len(total)
    kept = kept_of(kind.ratio, size)
    others = min(round(kind.explore * kept), size - kept)
    mask = chosen(total.abs() / count.clamp(min=1).sqrt(), kept - others, generator)
    if others:
        rest = (~mask).nonzero().squeeze(1)
        mask[rest[torch.randperm(len(rest), generator=generator)[:others]]] = True
    return mask
