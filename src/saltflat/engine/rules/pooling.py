"""Max pooling with the channels innermost, by the compiled loops. It has no weights: this is for speed alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine import native
from saltflat.engine.registry import rule, unwatched
from saltflat.engine.tape import Tape

MOST_TAPS = 256  # which of them was the largest is kept in a byte


class _MaxPool(torch.autograd.Function):
    """Keeps one byte for each output; ``check`` is asked before anything goes back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shape: tuple[int, ...],
        window: tuple[native.Sizes, ...],
        check: Callable[[], None],
    ) -> Tensor:
        out = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        ctx.save_for_backward(native.max_pool(x.movedim(1, -1), out.movedim(1, -1), *window))
        ctx.shape, ctx.window, ctx.check = x.shape, window, check
        return out

    @staticmethod
    @unwatched
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.check()
        grad, (taps,) = grads[0].movedim(1, -1).contiguous(), ctx.saved_tensors
        back = torch.empty(ctx.shape, dtype=grad.dtype, memory_format=torch.channels_last)
        native.max_pool_backward(grad, taps, back.movedim(1, -1), *ctx.window)
        return back, None, None, None


_NAMES = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


@rule(F.max_pool2d, torch.max_pool2d, faster=True)
def _max_pool_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    named = dict(zip(_NAMES, args)) | kwargs
    x = named["input"]
    kernel, padding = _two(named["kernel_size"]), _two(named.get("padding", 0))
    stride = _two(named.get("stride") or kernel)
    asks_more = named.get("ceil_mode") or named.get("return_indices")
    plain = not asks_more and _two(named.get("dilation", 1)) == (1, 1)
    if not plain or not tape.holds_rows(x) or x.dim() != 4 or kernel[0] * kernel[1] > MOST_TAPS:
        return NotImplemented
    space = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[2:], padding, kernel, stride)]
    # What torch refuses, or what lies otherwise, is left to torch.
    refused = any(2 * p > k for p, k in zip(padding, kernel)) or min(space) < 1
    if refused or x.numel() == 0 or not native.fits(x.movedim(1, -1)):
        return NotImplemented
    shape = (*x.shape[:2], *space)
    return _MaxPool.apply(x, shape, (kernel, stride, padding), tape.require_backward)


def _two(value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(int(v) for v in value)
    return (values[0], values[-1])
