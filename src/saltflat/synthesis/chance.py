"""Chance in streams of its own, and the loop in which small networks are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn


def stream(seed: int, *numbers: int) -> int:
    """A seed of its own for each purpose and step: what is drawn in one never depends on another.

    >>> stream(0, 1) == stream(0, 1), stream(0, 1) == stream(1, 0)
    (True, False)
    """
    words = np.random.SeedSequence([seed, *numbers]).generate_state(2, np.uint32)
    return int(words[0]) << 31 | int(words[1]) >> 1


@contextmanager
def drawing(seed: int, *numbers: int, device: str = "cpu") -> Iterator[None]:
    """Inside the block torch draws from this stream; what is drawn outside does not notice."""
    with torch.random.fork_rng(devices=[] if device == "cpu" else [device]):
        torch.manual_seed(stream(seed, *numbers))
        yield


def descend(
    model: nn.Module, loss_at: Callable[[int], Tensor], steps: int, learning_rate: float, weight_decay: float
) -> None:
    """AdamW with a cosine schedule on ``loss_at(step)``; what comes out is ready for use."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        loss = loss_at(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval().requires_grad_(False)
