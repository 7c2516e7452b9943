"""Which rank computes which unit: contiguous shards that do not overlap and leave nothing out."""

from __future__ import annotations

from torch import Tensor


def shard(units: int, rank: int, size: int) -> range:
    """The units of one rank: a contiguous range, so that a rank needs to read one stretch of a file only.

    Guarantees: over all ranks, every unit is in exactly one shard; lengths differ by at most one.

    >>> [list(shard(7, rank, 3)) for rank in range(3)]
    [[0, 1], [2, 3], [4, 5, 6]]
    """
    return range(units * rank // size, units * (rank + 1) // size)


def own_part(batch: Tensor, units: int, rank: int, size: int) -> Tensor:
    """Those units of a batch that lie in the shard of one rank, in the order of the batch.

    >>> import torch
    >>> [own_part(torch.tensor([0, 3, 4, 6]), 7, rank, 3).tolist() for rank in range(3)]
    [[0], [3], [4, 6]]
    """
    own = shard(units, rank, size)
    return batch[(batch >= own.start) & (batch < own.stop)]
