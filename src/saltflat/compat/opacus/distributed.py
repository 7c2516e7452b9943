"""Opacus's wrapper for several processes: one model on all ranks, whose gradients nobody averages behind its back."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from saltflat.compat.opacus.over_ranks import DataParallelModel, same_weights


class DifferentiallyPrivateDistributedDataParallel(DataParallelModel):
    """A model that every rank of the process group holds whole; all begin with the weights of rank 0.

    There are no hooks on gradients: the private optimizer adds up the clipped sums of all ranks when it steps. All
    ranks make it, in the same order. `PrivacyEngine.make_private` knows it and takes each rank for a part of one run.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        same_weights(model)
        self.module = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """That of the model."""
        return self.module(*args, **kwargs)


def average_gradients(model: nn.Module) -> None:
    """Replace every ``p.grad`` by its mean over all ranks. Private training does not need it."""
    for p in model.parameters():
        if p.requires_grad and p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
