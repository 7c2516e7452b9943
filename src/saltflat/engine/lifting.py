"""Lifting a weight to the batch: one copy a row, as a view that costs no memory.

Autograd then leaves the per-row gradient at the copy. A weight that has rows of its own (a token expanded to
the batch) meets row i in row i only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saltflat.engine.registry import unwatched
from saltflat.engine.tape import Tape
from saltflat.engine.uses import DirectUse, RowUse


class Lift(torch.autograd.Function):
    """A weight of any shape as rows x 1 ... 1 x shape."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, anchor: Tensor, record: Any, shape: tuple[int, ...], rows: int
    ) -> Tensor:
        ctx.record = record
        return weight.reshape(shape).expand(rows, *shape[1:])

    @staticmethod
    @unwatched
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.record(grads[0])
        return None, None, None, None, None


def lift(tape: Tape, tensor: Any, rank: int, rows: int) -> Any:
    """A weight with a leading dimension of rows, broadcasting against tensors of this rank; anything else as it is."""
    slot = tape.slot_of(tensor)
    if slot is None:
        return tensor
    value = slot.value
    padding = rank - value.dim()
    own_rows = padding == 0 and value.shape[0] == rows and rows != 1

    def record(grad: Tensor) -> None:
        summed = grad if own_rows else grad.reshape(tape.units, -1, *value.shape).sum(1)
        slot.add(RowUse(summed, tape.units) if own_rows else DirectUse(summed))

    shape = (1,) * padding + tuple(value.shape)
    return Lift.apply(value, tape.anchor, record, shape, rows)
