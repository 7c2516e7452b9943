"""Buffers that the next micro-batch uses again: large temporaries fresh from the system cost page faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor


class Workspace:
    """Hands out buffers in the order in which a micro-batch asks for them.

    Every micro-batch of one model asks for much the same, in the same order, so the n-th request gets the
    n-th buffer, which grows where it is too small. What was handed out before `start_over` must not be used
    after it.

    >>> import torch
    >>> workspace = Workspace()
    >>> first = workspace.empty((2, 3), torch.zeros(()))
    >>> workspace.start_over()
    >>> workspace.empty((3, 2), torch.zeros(())).data_ptr() == first.data_ptr()
    True
    """

    def __init__(self) -> None:
        self.notes: dict[Any, Any] = {}  # what one micro-batch learned about the weights, for the next one
        self._buffers: list[Tensor] = []
        self._next = 0
        self._kept: Workspace | None = None

    def start_over(self) -> None:
        """Everything handed out so far may be handed out again."""
        self._next = 0

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A contiguous tensor of this shape, its numbers undefined."""
        size = math.prod(shape)
        place, self._next = self._next, self._next + 1
        if place == len(self._buffers):
            self._buffers.append(like.new_empty(size))
        buffer = self._buffers[place]
        if buffer.numel() < size or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = self._buffers[place] = like.new_empty(size)
        return buffer[:size].view(*shape)

    def kept(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """The same, of a buffer that `start_over` does not take back."""
        if self._kept is None:
            self._kept = Workspace()
        return self._kept.empty(shape, like)

    def let_go_of_kept(self) -> None:
        """Of buffers that were kept, those that are asked for next are these again."""
        if self._kept is not None:
            self._kept.start_over()
