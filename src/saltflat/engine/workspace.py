"""What one micro-batch leaves for the next: buffers that stay in cache, and notes about the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

Layouts = dict[tuple[int, str], tuple[int, Tensor]]
"""Version and rearranged weight, by the weight's id and the arrangement."""


class Workspace:
    """Hands out scratch buffers by name, and keeps notes.

    A buffer holds what is used up before anybody asks for the same name again: patches of a few rows, say. It
    grows where it is too small. ``layouts`` may be shared by several workspaces.

    Records that live until the end of a micro-batch are no scratch: they are allocated as the activations are
    freed, so that both can use the same memory.

    >>> import torch
    >>> workspace = Workspace()
    >>> first = workspace.scratch("patches", (2, 3), torch.zeros(()))
    >>> workspace.scratch("patches", (3, 2), torch.zeros(())).data_ptr() == first.data_ptr()
    True
    """

    def __init__(self, layouts: Layouts | None = None) -> None:
        self.layouts: Layouts = {} if layouts is None else layouts
        self.notes: dict[Any, Any] = {}  # what one micro-batch learned about the weights, for the next one
        self._buffers: dict[str, Tensor] = {}
        self._edges: dict[int, GradientEdge] = {}

    def edge(self, parameter: Tensor) -> GradientEdge:
        """Where the gradient of a parameter arrives; asking torch takes as long as a small operation."""
        known = self._edges.get(id(parameter))
        # There may be another tensor at its address.
        if known is None or getattr(known.node, "variable", None) is not parameter:
            known = self._edges[id(parameter)] = get_gradient_edge(parameter)
        return known

    def arranged(self, weight: Tensor, arrangement: str, made: Callable[[], Tensor]) -> Tensor:
        """A weight in another form, made once for all micro-batches of all lanes."""
        # Parameters only: another tensor may be freed, and its number given to the next one.
        if not isinstance(weight, nn.Parameter):
            return made()
        key = id(weight), arrangement
        version, kept = self.layouts.get(key, (None, weight))
        if version != weight._version:
            kept = made()
            self.layouts[key] = weight._version, kept
        return kept

    def scratch(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """A contiguous tensor of this shape, its numbers undefined; the last one of this name is overwritten."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        kind = like.dtype, like.device
        if buffer is None or buffer.numel() < size or (buffer.dtype, buffer.device) != kind:
            buffer = self._buffers[name] = like.new_empty(size)
        return buffer[:size].view(*shape)
