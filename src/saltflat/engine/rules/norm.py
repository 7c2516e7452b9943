"""GroupNorm, LayerNorm, RMSNorm, InstanceNorm, and BatchNorm with frozen statistics.

All are a parameter-free normalisation followed by ``x̂ · weight + bias``. The per-unit gradients of the two
are small sums over positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine import native
from saltflat.engine.registry import rule, unwatched
from saltflat.engine.rules.linear import value_of
from saltflat.engine.shares import shares_of_rows
from saltflat.engine.tape import Tape
from saltflat.engine.uses import DirectUse


class _Affine(torch.autograd.Function):
    """``normal · weight + bias``; ``record`` gets the normalised input and the gradient."""

    @staticmethod
    def forward(
        ctx: Any, normal: Tensor, weight: Tensor | None, bias: Tensor | None, anchor: Tensor, record: Any,
        keep: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(normal if keep else None, weight)
        ctx.record = record
        if weight is None:
            return normal + bias if bias is not None else normal.clone()
        return torch.addcmul(bias, normal, weight) if bias is not None else normal * weight

    @staticmethod
    @unwatched
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        normal, weight = ctx.saved_tensors
        ctx.record(None if normal is None else normal.detach(), grad)
        back = None
        if ctx.needs_input_grad[0]:
            back = grad if weight is None else grad * weight
        return back, None, None, None, None, None


def affine(
    tape: Tape, normal: Tensor, weight: Any, bias: Any, view: Callable[[Tensor], Tensor], name: str
) -> Tensor:
    """Scale and shift; ``view`` shapes a parameter so that it broadcasts over ``normal``."""
    weight_slot, bias_slot = tape.slot_of(weight), tape.slot_of(bias)

    def per_unit(values: Tensor, parameter: Tensor) -> Tensor:
        shape = view(parameter).shape
        padding = values.dim() - len(shape)
        dims = [d for d in range(1, values.dim()) if d < padding or shape[d - padding] == 1]
        summed = values.sum(dims, keepdim=True) if dims else values
        return summed.reshape(tape.units, -1, *parameter.shape).sum(1)

    def record(inputs: Tensor | None, grad: Tensor) -> None:
        tape.require_backward()
        if weight_slot is not None and inputs is not None:
            sums = _channel_sums(tape.units, inputs, grad, view(weight_slot.value).shape)
            products = per_unit(inputs * grad, weight_slot.value) if sums is None else sums
            weight_slot.add(DirectUse(products.view(-1, *weight_slot.value.shape), rule=name))
        if bias_slot is not None:
            bias_slot.add(DirectUse(per_unit(grad, bias_slot.value), rule=name))

    def shaped(slot: Any, tensor: Any) -> Any:
        value = value_of(slot, tensor)
        return None if value is None else view(value)

    scale, shift = shaped(weight_slot, weight), shaped(bias_slot, bias)
    return _Affine.apply(normal, scale, shift, tape.anchor, record, weight_slot is not None)


def _channel_sums(units: int, x: Tensor, grad: Tensor, shape: torch.Size) -> Tensor | None:
    """Units x channels: the sums of ``x · grad`` without the product in between, where the loops take it."""
    wide = [d for d in range(-len(shape), 0) if shape[d] != 1]
    if len(wide) != 1 or not native.suits(x):
        return None
    last, grads = x.movedim(wide[0], -1).contiguous(), grad.movedim(wide[0], -1).contiguous()
    channels = last.shape[-1]
    sums = x.new_empty(units, 1, 1, channels)
    rows = (units, -1, 1, channels)
    native.depthwise(last.view(rows), grads.view(rows), sums, (1, 1), (0, 0), (1, 1))
    return sums


def _by_channel(x: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda parameter: parameter.view(1, -1, *[1] * (x.dim() - 2))


def _ready(tape: Tape, x: Tensor, *weights: Any) -> bool:
    if not tape.holds_rows(x) or any(tape.holds_rows(w) for w in weights):
        return False
    tape.require_rows(x)
    return True


class _GroupNorm(torch.autograd.Function):
    """By the compiled loops, with the channels innermost; ``record`` gets the rows' gradients of the weights."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float, anchor: Tensor,
        record: Any,
    ) -> Tensor:  # fmt: skip
        out = torch.empty_like(x)  # not a view of something: the next layer may write into it
        last = x.movedim(1, -1)
        mean, rstd = native.group_norm(last, out.movedim(1, -1), groups, weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.record = record
        return out

    @staticmethod
    @unwatched
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        grad, last = grads[0].movedim(1, -1).contiguous(), x.detach().movedim(1, -1)
        back, scales, shifts = native.group_norm_backward(
            grad, last, weight, mean, rstd, ctx.needs_input_grad[0]
        )
        ctx.record(scales, shifts)
        return back if back is None else back.movedim(-1, 1), None, None, None, None, None, None


@rule(F.group_norm, faster=True)
def _group_norm_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("input", "num_groups", "weight", "bias", "eps"), args)) | kwargs
    x, weight, bias = named["input"], named.get("weight"), named.get("bias")
    groups, eps = named["num_groups"], named.get("eps", 1e-5)
    weight_slot, bias_slot = tape.slot_of(weight), tape.slot_of(bias)
    bare = weight_slot is None and bias_slot is None
    if not (tape.holds_rows(x) if bare else _ready(tape, x, weight, bias)):
        return NotImplemented
    value, shift = value_of(weight_slot, weight), value_of(bias_slot, bias)
    fits = x.dim() == 4 and x.shape[1] % groups == 0 and x.numel() > 0
    fits = fits and all(t.shape == x.shape[1:2] for t in (value, shift) if t is not None)
    if fits and native.fits(x.movedim(1, -1), *(t for t in (value, shift) if t is not None)):

        def record(scales: Tensor, shifts: Tensor) -> None:
            tape.require_backward()
            for slot, rows in ((weight_slot, scales), (bias_slot, shifts)):
                if slot is not None:
                    slot.add(DirectUse(rows.view(tape.units, -1, rows.shape[1]).sum(1), rule="group norm"))

        if bare and not x.requires_grad:  # features at the entrance: nothing will come back
            out = torch.empty_like(x)
            native.group_norm(x.movedim(1, -1), out.movedim(1, -1), groups, value, shift, eps)
            return out
        return _GroupNorm.apply(x, value, shift, groups, eps, x if bare else tape.anchor, record)
    if bare:
        # features at the entrance, as they lie: nothing will come back
        if fits and not x.requires_grad and native.fits(x, *(t for t in (value, shift) if t is not None)):
            return native.group_norm_by_rows(x, groups, value, shift, eps, shares_of_rows(x))
        return NotImplemented
    normal = F.group_norm(x, groups, eps=eps)
    return affine(tape, normal, weight, bias, _by_channel(x), "group norm")


_BY_CHANNEL = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_NORMS = {  # the name of the rule, and those of the arguments
    F.layer_norm: ("layer norm", ("input", "normalized_shape", "weight", "bias", "eps")),
    F.rms_norm: ("rms norm", ("input", "normalized_shape", "weight", "eps")),
    F.instance_norm: ("instance norm", (*_BY_CHANNEL[:5], "use_input_stats", *_BY_CHANNEL[6:])),
    F.batch_norm: ("batch norm, frozen statistics", _BY_CHANNEL),
}


@rule(*_NORMS)
def _norm_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """Of BatchNorm only with frozen statistics; what normalises over the batch is refused before it gets here."""
    name, arguments = _NORMS[func]
    named = dict(zip(arguments, args)) | kwargs
    x, weight, bias = named.pop("input"), named.pop("weight", None), named.pop("bias", None)
    by_shape = "normalized_shape" in named
    if named.get("training") or not _ready(tape, x, weight, bias):
        return NotImplemented
    if by_shape and len(named["normalized_shape"]) >= x.dim():
        return NotImplemented
    view = (lambda p: p) if by_shape else _by_channel(x)
    return affine(tape, func(x, **named), weight, bias, view, name)
