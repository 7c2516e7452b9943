"""Parameters used directly in a module: class tokens, positions, learned scales, mixing weights.

Element-wise operations broadcast, and so do batched products: the weight is lifted to one copy a row.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine.lifting import Lift, lift
from saltflat.engine.registry import rule
from saltflat.engine.tape import OffTapeError, Tape
from saltflat.engine.uses import DirectUse

_OUT_OF_PLACE = [
    torch.add, Tensor.add, Tensor.__radd__, torch.sub, Tensor.sub, Tensor.__rsub__, torch.mul, Tensor.mul,
    Tensor.__rmul__, torch.div, Tensor.div, Tensor.__rdiv__, Tensor.__rtruediv__, Tensor.__truediv__,
    Tensor.__add__, Tensor.__sub__, Tensor.__mul__, Tensor.__div__, torch.true_divide, Tensor.true_divide,
    torch.multiply, Tensor.multiply, torch.divide, Tensor.divide, torch.subtract, Tensor.subtract,
    torch.rsub, torch.pow, Tensor.pow, Tensor.__pow__, Tensor.__rpow__, torch.maximum, Tensor.maximum,
    torch.minimum, Tensor.minimum, torch.where, Tensor.where, torch.lerp, Tensor.lerp, torch.addcmul,
    Tensor.addcmul, torch.addcdiv, Tensor.addcdiv, torch.atan2, Tensor.atan2, torch.hypot,
    torch.logaddexp, Tensor.logaddexp, torch.clamp, Tensor.clamp, torch.bmm, Tensor.bmm, torch.baddbmm,
    Tensor.baddbmm,
]  # fmt: skip
_IN_PLACE = [
    Tensor.add_, Tensor.__iadd__, Tensor.sub_, Tensor.__isub__, Tensor.mul_, Tensor.__imul__, Tensor.div_,
    Tensor.__idiv__, Tensor.__itruediv__, Tensor.addcmul_, Tensor.lerp_, Tensor.pow_, Tensor.clamp_,
]  # fmt: skip


@rule(*_OUT_OF_PLACE, *_IN_PLACE)
def _broadcast_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    if func in _IN_PLACE and tape.slot_of(args[0]) is not None:
        raise OffTapeError  # writes rows into what the tape knows as a weight
    operands = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
    rank = max(t.dim() for t in operands)
    rows = _common_rows(tape, operands, rank)
    if rows is None:
        return NotImplemented
    lifted = [lift(tape, value, rank, rows) for value in args]
    return func(*lifted, **{key: lift(tape, value, rank, rows) for key, value in kwargs.items()})


def _common_rows(tape: Tape, operands: list[Tensor], rank: int) -> int | None:
    """The number of rows of the result, if the rows are its first dimension."""
    rows = {t.shape[0] for t in operands if tape.holds_rows(t) and t.dim() == rank and rank > 0}
    if len(rows) != 1:
        return None
    count = rows.pop()
    for t in operands:
        if not tape.holds_rows(t) and t.dim() == rank and t.shape[0] not in (1, count):
            return None
    return count if tape.splits(count) else None


@rule(torch.cat, torch.concat, torch.concatenate, torch.stack)
def _join_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    tensors = args[0] if args else kwargs.get("tensors")
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    rows = {t.shape[0] for t in tensors if t.dim() > 0}
    rank = tensors[0].dim() + (func is torch.stack)
    if len(rows) != 1 or any(t.dim() != tensors[0].dim() for t in tensors) or dim % rank == 0:
        return NotImplemented
    count = rows.pop()
    if not tape.splits(count):
        return NotImplemented
    return func([lift(tape, t, t.dim(), count) for t in tensors], dim)


@rule(torch.prelu, F.prelu)
def _prelu_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """``max(0, x) + a · min(0, x)``, with one slope or one a channel."""
    named = dict(zip(("input", "weight"), args)) | kwargs
    x, weight = named["input"], named["weight"]
    slot = tape.slot_of(weight)
    if slot is None or not tape.holds_rows(x) or not tape.splits(x.shape[0]):
        return NotImplemented
    value = slot.value
    rank = max(x.dim(), 2)

    def record(grad: Tensor) -> None:
        slot.add(DirectUse(grad.reshape(tape.units, -1, *value.shape).sum(1), rule="prelu"))

    shape = (1, len(value)) + (1,) * (rank - 2) if x.dim() > 1 else (1,)
    slopes = Lift.apply(value, tape.anchor, record, shape, x.shape[0])
    return torch.where(x > 0, x, slopes * x)  # at zero the slope is the weight, as in torch
