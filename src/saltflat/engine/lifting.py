"""Lifting a weight to the batch: one copy a row, as a view that costs no memory.

Autograd then leaves the per-row gradient at the copy. A weight that has rows of its own (a token expanded to
the batch) meets row i in row i only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saltflat.engine.tape import Slot, Tape, unwatched
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


def lift(tape: Tape, slot: Slot, rank: int, rows: int) -> Tensor:
    """The weight with a leading dimension of rows, broadcasting against tensors of this rank."""
    value = slot.value
    padding = rank - value.dim()
    if padding == 0 and value.shape[0] == rows and rows != 1:

        def record_rows(grad: Tensor) -> None:
            slot.add(RowUse(grad, tape.units))

        return Lift.apply(value, tape.anchor, record_rows, tuple(value.shape), rows)

    def record(grad: Tensor) -> None:
        slot.add(DirectUse(grad.reshape(tape.units, -1, *value.shape).sum(1)))

    shape = (1,) * padding + tuple(value.shape)
    return Lift.apply(value, tape.anchor, record, shape, rows)
