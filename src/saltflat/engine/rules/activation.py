"""SELU, ELU and tanh by the compiled loops. They have no weights: this is for speed alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine import native
from saltflat.engine.registry import rule, unwatched
from saltflat.engine.tape import Tape

SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


class _Elu(torch.autograd.Function):
    """``above · x`` above zero and ``below · (exp(x) − 1)`` up to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, above: float, below: float, tape: Tape) -> Tensor:
        out = native.elu(x, above, below)
        # Slopes are read off what came out: the next layer keeps it too, while nobody else needs x.
        ctx.kept, ctx.slopes, ctx.check = tape.keep(out, instead_of=x), (above, below), tape.require_backward
        return out

    @staticmethod
    @unwatched
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.check()
        out = ctx.kept.value()
        return native.elu_backward(native.laid_like(grads[0], out), out, *ctx.slopes), None, None, None


class _Tanh(torch.autograd.Function):
    """``check`` is asked before anything goes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, check: Callable[[], None]) -> Tensor:
        out = native.tanh(x)
        ctx.save_for_backward(out)  # as torch does
        ctx.check = check
        return out

    @staticmethod
    @unwatched
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.check()
        (out,) = ctx.saved_tensors
        return native.tanh_backward(native.laid_like(grads[0], out), out.detach()), None


def _suits(tape: Tape, x: Any) -> bool:
    """Rows that need a gradient, in memory without gaps."""
    return isinstance(x, Tensor) and tape.holds_rows(x) and x.requires_grad and native.is_dense(x)


@rule(F.selu, torch.selu, faster=True)
def _selu_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("input", "inplace"), args)) | kwargs
    if named.get("inplace") or not _suits(tape, named.get("input")):
        return NotImplemented
    return _Elu.apply(named["input"], SELU_SCALE, SELU_SCALE * SELU_ALPHA, tape)


@rule(F.elu, faster=True)
def _elu_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("input", "alpha", "inplace"), args)) | kwargs
    alpha = named.get("alpha", 1.0)
    if named.get("inplace") or not alpha > 0 or not _suits(tape, named.get("input")):
        return NotImplemented
    return _Elu.apply(named["input"], 1.0, alpha, tape)


@rule(torch.tanh, Tensor.tanh, faster=True)
def _tanh_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) != 1 or kwargs or not _suits(tape, args[0]):
        return NotImplemented
    return _Tanh.apply(args[0], tape.require_backward)
