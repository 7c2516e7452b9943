"""Convolutions in one, two and three dimensions: strides, padding, dilation, groups, transposed.

A convolution is a linear layer on patches. The per-unit kernel gradient is a product of the output gradient
with the patches of the input, formed for a few rows at a time in a buffer that stays in cache, with the
channels innermost so that copying a patch copies long runs. Where maps are small and channels many, the
norms are read off Gram matrices instead, and the clipped sum is one ordinary backward convolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine.rules.linear import value_of
from saltflat.engine.tape import Tape, rule
from saltflat.engine.uses import DirectUse, OuterUse, careful_sum, ghost_is_cheaper, without

# Patches of as many rows as fit into this many numbers are formed at once (2 MiB of float32: a core's cache).
PATCH_BUFFER = 512 * 1024


@dataclass(frozen=True)
class Geometry:
    """Everything about a convolution but its weights."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        extra = self.output_padding or (0,) * len(self.kernel)
        return torch.ops.aten.convolution(
            x, weight, bias, self.stride, self.padding, self.dilation, self.transposed, extra, self.groups
        )

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> Any:
        extra = self.output_padding or (0,) * len(self.kernel)
        return torch.ops.aten.convolution_backward(
            grad, x, weight, None, self.stride, self.padding, self.dilation, self.transposed, extra,
            self.groups, mask,
        )  # fmt: skip


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        anchor: Tensor,
        record: Any,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry, ctx.record = geometry, record
        return geometry.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        ctx.record(x.detach(), grad)
        back = (
            ctx.geometry.backward(grad, x, weight, [True, False, False])[0]
            if ctx.needs_input_grad[0]
            else None
        )
        return back, None, None, None, None, None


@dataclass
class ConvolutionUse:
    """A kernel: ``x`` is rows x channels x space, ``grad`` rows x channels x output space."""

    x: Tensor
    grad: Tensor
    weight: Tensor
    geometry: Geometry
    units: int
    rule: str = "convolution"
    _instantiated: Tensor | None = None
    _doubtful: Tensor | None = None

    def squared_norms(self) -> Tensor:
        if self._prefers_ghost():
            outer = self._outer()
            squared, self._doubtful = outer.ghost_norms(), outer.doubtful
            return squared
        return DirectUse(self._channels_last_gradients()).squared_norms()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        if self._instantiated is not None:
            return self._in_order(DirectUse(self._instantiated).weighted_sum(factors))
        return careful_sum(self, factors, self._doubtful)

    def plain_sum(self, factors: Tensor) -> Tensor:
        each = len(self.grad) // self.units
        scale = factors.repeat_interleave(each).view(-1, *[1] * (self.grad.dim() - 1))
        return self.geometry.backward(self.grad * scale, self.x, self.weight, [False, True, False])[1]

    def chosen(self, units: Tensor) -> ConvolutionUse:
        rows = units.repeat_interleave(len(self.grad) // self.units)
        x, grad = self.x[rows].double(), self.grad[rows].double()
        return ConvolutionUse(x, grad, self.weight.double(), self.geometry, int(units.sum()))

    def gradients(self) -> Tensor:
        return self._in_order(self._channels_last_gradients())

    def silence(self, units: Tensor) -> None:
        rows = units.repeat_interleave(len(self.grad) // self.units)
        self.x, self.grad = without(self.x, rows), without(self.grad, rows)
        if self._instantiated is not None:
            self._instantiated = without(self._instantiated, units)

    # A transposed convolution is the adjoint: its input and its output gradient change places.
    def _roles(self) -> tuple[Tensor, Tensor]:
        return (self.grad, self.x) if self.geometry.transposed else (self.x, self.grad)

    def _prefers_ghost(self) -> bool:
        if self.geometry.groups != 1 or self._instantiated is not None:
            return False
        _, grad = self._roles()
        positions = math.prod(grad.shape[2:]) * (len(grad) // self.units)
        rows, columns = self.weight.shape[0], math.prod(self.weight.shape[1:])
        return ghost_is_cheaper(self.units, positions, rows, columns)

    def _outer(self) -> OuterUse:
        inputs, grad = self._roles()
        padded = _padded_channels_last(inputs, self.geometry)
        patches = _patches(padded, self.geometry, grad.shape[2:])
        left = grad.flatten(2).transpose(1, 2).reshape(self.units, -1, grad.shape[1])
        return OuterUse(left, patches.reshape(self.units, left.shape[1], -1), rule=self.rule)

    def _channels_last_gradients(self) -> Tensor:
        """Units x output channels x *kernel x input channels of a group."""
        if self._instantiated is None:
            inputs, grad = self._roles()
            depthwise = self.weight.shape[1] == 1
            rows = (
                _depthwise(inputs, grad, self.geometry) if depthwise else _dense(inputs, grad, self.geometry)
            )
            each = len(rows) // self.units
            self._instantiated = rows if each == 1 else rows.view(self.units, each, *rows.shape[1:]).sum(1)
        return self._instantiated

    def _in_order(self, channels_last: Tensor) -> Tensor:
        spatial = len(self.geometry.kernel)
        return channels_last.movedim(-1, -1 - spatial)


def _padded_channels_last(x: Tensor, geometry: Geometry) -> Tensor:
    """Rows x *padded space x channels, contiguous."""
    last = x.movedim(1, -1)
    if not any(geometry.padding):
        return last.contiguous()
    shape = [n + 2 * p for n, p in zip(x.shape[2:], geometry.padding)]
    padded = x.new_zeros(x.shape[0], *shape, x.shape[1])
    inside = padded
    for d, (n, p) in enumerate(zip(x.shape[2:], geometry.padding)):
        inside = inside.narrow(1 + d, p, n)
    inside.copy_(last)
    return padded


def _windows(padded: Tensor, geometry: Geometry, positions: torch.Size) -> Tensor:
    """A view: rows x *positions x *kernel x channels."""
    strides = padded.stride()
    spatial = strides[1:-1]
    steps = [s * step for s, step in zip(spatial, geometry.stride)]
    taps = [s * dilation for s, dilation in zip(spatial, geometry.dilation)]
    shape = (padded.shape[0], *positions, *geometry.kernel, padded.shape[-1])
    return padded.as_strided(shape, (strides[0], *steps, *taps, strides[-1]), padded.storage_offset())


def _patches(padded: Tensor, geometry: Geometry, positions: torch.Size) -> Tensor:
    windows = _windows(padded, geometry, positions)
    return windows.reshape(len(padded), math.prod(positions), -1)


def _dense(inputs: Tensor, grad: Tensor, geometry: Geometry) -> Tensor:
    """Per-row kernel gradients, a few rows at a time: rows x out x *kernel x in-of-a-group."""
    rows, out_channels = grad.shape[:2]
    groups, kernel, positions = geometry.groups, geometry.kernel, grad.shape[2:]
    length, taps, in_group = math.prod(positions), math.prod(kernel), inputs.shape[1] // groups
    padded = _padded_channels_last(inputs, geometry)
    result = grad.new_empty(rows, groups, out_channels // groups, taps * in_group)
    left = grad.reshape(rows, groups, out_channels // groups, length)
    block = max(1, PATCH_BUFFER // (length * taps * inputs.shape[1]))
    buffer = grad.new_empty(min(block, rows), groups, length, taps * in_group)
    for start in range(0, rows, block):
        stop = min(start + block, rows)
        windows = _windows(padded[start:stop], geometry, positions)
        grouped = windows.unflatten(-1, (groups, in_group)).movedim(-2, 1)
        patches = buffer[: stop - start]
        patches.view(stop - start, groups, *positions, *kernel, in_group).copy_(grouped)
        torch.bmm(left[start:stop].flatten(0, 1), patches.flatten(0, 1), out=result[start:stop].flatten(0, 1))
    return result.view(rows, out_channels, *kernel, in_group)


def _depthwise(inputs: Tensor, grad: Tensor, geometry: Geometry) -> Tensor:
    """One input channel a group: an element-wise product and a sum for each tap of the kernel."""
    rows, out_channels = grad.shape[:2]
    positions = grad.shape[2:]
    padded = F.pad(inputs, [p for pair in zip(geometry.padding[::-1], geometry.padding[::-1]) for p in pair])
    result = grad.new_empty(rows, out_channels, *geometry.kernel, 1)
    repeats = out_channels // inputs.shape[1]
    for tap in (
        torch.cartesian_prod(*[torch.arange(k) for k in geometry.kernel]).view(-1, len(positions)).tolist()
    ):
        window = padded
        for d, offset in enumerate(tap):
            first = offset * geometry.dilation[d]
            last = first + (positions[d] - 1) * geometry.stride[d] + 1
            window = window[(slice(None),) * (2 + d) + (slice(first, last, geometry.stride[d]),)]
        if repeats > 1:
            window = window.repeat_interleave(repeats, dim=1)
        result[(slice(None), slice(None), *tap, 0)] = (window * grad).flatten(2).sum(2)
    return result


def _resolve(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    names = ["input", "weight", "bias", "stride", "padding"]
    names += (
        ["output_padding", "groups", "dilation"] if "transpose" in func.__name__ else ["dilation", "groups"]
    )
    return dict(zip(names, args)) | kwargs


def _sizes(value: Any, spatial: int, default: int) -> tuple[int, ...]:
    if value is None:
        return (default,) * spatial
    if isinstance(value, int):
        return (value,) * spatial
    values = tuple(int(v) for v in value)
    return values * spatial if len(values) == 1 else values


@rule(
    torch.conv1d, torch.conv2d, torch.conv3d,
    torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d,
)  # fmt: skip
def _convolution_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    named = _resolve(func, args, kwargs)
    x, weight, bias = named["input"], named["weight"], named.get("bias")
    spatial = weight.dim() - 2
    if not tape.holds_rows(x) or tape.holds_rows(weight) or tape.holds_rows(bias) or x.dim() != spatial + 2:
        return NotImplemented
    tape.require_rows(x)
    kernel, dilation = tuple(weight.shape[2:]), _sizes(named.get("dilation"), spatial, 1)
    padding = named.get("padding")
    if isinstance(padding, str):
        x, padding = _explicitly_padded(x, padding, kernel, dilation)
    geometry = Geometry(
        kernel, _sizes(named.get("stride"), spatial, 1), _sizes(padding, spatial, 0), dilation,
        int(named.get("groups", 1)), "transpose" in func.__name__,
        _sizes(named.get("output_padding"), spatial, 0),
    )  # fmt: skip
    if spatial == 2:  # the faster layout on a CPU, and the one in which patches are cheap
        x = x.contiguous(memory_format=torch.channels_last)
    weight_slot, bias_slot = tape.slot_of(weight), tape.slot_of(bias)

    def record(inputs: Tensor, grad: Tensor) -> None:
        if weight_slot is not None:
            weight_slot.add(ConvolutionUse(inputs, grad, weight_slot.value, geometry, tape.units))
        if bias_slot is not None:
            sums = grad.flatten(2).sum(2)
            bias_slot.add(DirectUse(sums.view(tape.units, -1, grad.shape[1]).sum(1), rule="convolution"))

    value, shift = value_of(weight_slot, weight), value_of(bias_slot, bias)
    return _Convolution.apply(x, value, shift, geometry, tape.anchor, record)


def _explicitly_padded(
    x: Tensor, padding: str, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[Tensor, int]:
    """``"same"`` may pad one side more than the other, which a backward convolution cannot express."""
    if padding == "valid":
        return x, 0
    sides: list[int] = []
    for k, d in zip(reversed(kernel), reversed(dilation)):
        total = d * (k - 1)
        sides += [total // 2, total - total // 2]
    return F.pad(x, sides), 0
