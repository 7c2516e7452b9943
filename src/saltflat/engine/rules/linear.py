"""Linear layers on any leading shape, and matrix products ``x @ W``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine.tape import Slot, Tape, as_sequence, bias_use, linear_use, rule
from saltflat.engine.uses import OuterUse


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, record: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.record = record
        if x.dim() == 2:
            return F.linear(x, weight, bias)
        # Not a view of the product: the next layer may write into its input.
        out = F.linear(x.reshape(-1, x.shape[-1]), weight, bias)
        return torch.ops.aten._unsafe_view(out, [*x.shape[:-1], weight.shape[0]])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        ctx.record(x.detach(), grad)
        return grad @ weight if ctx.needs_input_grad[0] else None, None, None, None, None


def linear(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None, name: str = "linear") -> Tensor:
    """``x @ weight.T + bias`` for x with its rows first; either weight may be frozen."""
    weight_slot, bias_slot = tape.slot_of(weight), tape.slot_of(bias)

    def record(inputs: Tensor, grad: Tensor) -> None:
        if weight_slot is not None:
            weight_slot.add(linear_use(tape, inputs, grad, name))
        if bias_slot is not None:
            bias_slot.add(bias_use(tape, grad, name))

    return _Linear.apply(x, value_of(weight_slot, weight), value_of(bias_slot, bias), tape.anchor, record)


def value_of(slot: Slot | None, tensor: Any) -> Any:
    """The detached weight if it is trainable, the tensor itself if it is frozen or absent."""
    return tensor if slot is None else slot.value


@rule(F.linear)
def _linear_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    x, weight, bias = _arguments(args, kwargs)
    if not tape.holds_rows(x) or tape.holds_rows(weight) or tape.holds_rows(bias):
        return NotImplemented
    tape.require_rows(x)
    return linear(tape, x, weight, bias)


def _arguments(args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    named = dict(zip(("input", "weight", "bias"), args)) | kwargs
    return named["input"], named["weight"], named.get("bias")


class _MatMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, anchor: Tensor, record: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.record = record
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        ctx.record(x.detach(), grad)
        return grad @ weight.mT if ctx.needs_input_grad[0] else None, None, None, None


@rule(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def _matmul_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) != 2 or kwargs:
        return NotImplemented
    x, weight = args
    slot = tape.slot_of(weight)
    if slot is None or not tape.holds_rows(x) or weight.dim() != 2 or x.dim() < 2:
        return NotImplemented
    tape.require_rows(x)

    def record(inputs: Tensor, grad: Tensor) -> None:
        left = as_sequence(tape, inputs, inputs.shape[-1])
        slot.add(OuterUse(left, as_sequence(tape, grad, grad.shape[-1])))

    return _MatMul.apply(x, slot.value, tape.anchor, record)


@rule(torch.addmm, Tensor.addmm)
def _addmm_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """GPT-style ``Conv1D`` layers: ``bias + x @ W``."""
    if len(args) != 3 or kwargs:
        return NotImplemented
    bias, x, weight = args
    if not tape.holds_rows(x) or tape.holds_rows(bias) or tape.holds_rows(weight) or bias.dim() != 1:
        return NotImplemented
    tape.require_rows(x)
    bias_slot, weight_slot = tape.slot_of(bias), tape.slot_of(weight)

    def record(inputs: Tensor, grad: Tensor) -> None:
        if weight_slot is not None:
            left = as_sequence(tape, inputs, inputs.shape[-1])
            weight_slot.add(OuterUse(left, as_sequence(tape, grad, grad.shape[-1])))
        if bias_slot is not None:
            bias_slot.add(bias_use(tape, grad))

    out = _MatMul.apply(x, value_of(weight_slot, weight), tape.anchor, record)
    return out + value_of(bias_slot, bias)
