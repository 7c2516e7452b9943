"""Convolutions in one, two and three dimensions: strides, padding, dilation, groups, transposed.

The gradient of a unit's kernel is either formed at once, while its input and its output gradient are still in
cache, or, where maps are small and channels many, never: then its norm is read off Gram matrices, and the
clipped sum is one ordinary backward convolution. `saltflat.engine.kernels` does the arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine import winograd
from saltflat.engine.ghost import (
    CANCELLATION_BY_CHANNEL,
    Centred,
    Gram,
    Moments,
    careful_sum,
    gram_moments,
    gram_norms,
    in_doubt,
    resolved,
)
from saltflat.engine.kernels import Geometry, gram_work, kernel_gradients, patch_gram, weighted_kernel_sum
from saltflat.engine.registry import rule, unwatched
from saltflat.engine.rules.linear import value_of
from saltflat.engine.tape import Tape
from saltflat.engine.uses import DirectUse, KernelUse, Use, ghost_is_cheaper, without
from saltflat.engine.workspace import Workspace


@dataclass(frozen=True)
class _Arithmetic:
    """How outputs and gradients of the inputs are computed."""

    geometry: Geometry
    source: Tensor  # what the weight was before it was rearranged
    workspace: Workspace

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self._by_winograd(x, weight) or (bias is not None and bias.dtype != x.dtype):
            return self.geometry.forward(_said_to_be_channels_last(x), weight, bias)
        points, padding = self._points(weight, back=False), self.geometry.padding[0]
        return winograd.convolve(x, points, bias, len(weight), padding, self.workspace)

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        if not self._by_winograd(x, weight):
            back: Tensor = self.geometry.backward(grad, x, weight, [True, False, False])[0]
            return back
        points, padding = self._points(weight, back=True), 2 - self.geometry.padding[0]
        return winograd.convolve(grad, points, None, weight.shape[1], padding, self.workspace)

    def _by_winograd(self, x: Tensor, weight: Tensor) -> bool:
        if x.dtype != weight.dtype:  # torch says what is wrong, or autocast knows better
            return False
        return self.geometry.by_winograd(x, len(weight)) and winograd.pays(x.shape[1], len(weight))

    def _points(self, weight: Tensor, back: bool) -> Tensor:
        def made() -> Tensor:
            return winograd.kernel_points(weight, back)

        return self.workspace.arranged(self.source, "back" if back else "forward", made)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, arithmetic: _Arithmetic, anchor: Tensor,
        record: Any, keep: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.arithmetic, ctx.record = arithmetic, record
        out = arithmetic.forward(x, weight, bias)
        # Not saved by autograd: the next layer may write into it, which only means that it is of no use later.
        ctx.outputs = (out.detach(), out._version) if keep else None
        return out

    @staticmethod
    @unwatched
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        kept, ctx.outputs = ctx.outputs, None
        outputs = None if kept is None or kept[0]._version != kept[1] else kept[0]
        ctx.record(x.detach(), grad, outputs)
        back = None
        if ctx.needs_input_grad[0]:
            back = ctx.arithmetic.backward(grad, x, weight)
        return back, None, None, None, None, None, None


@dataclass
class GhostKernelUse:
    """A kernel: ``x`` is rows x channels x space, ``grad`` rows x channels x output space."""

    x: Tensor
    grad: Tensor
    weight: Tensor
    geometry: Geometry
    units: int
    rule: str = "convolution"
    outputs: Tensor | None = None  # of the layer, without its bias
    _doubtful: Tensor | None = None

    def squared_norms(self) -> Tensor:
        def form(inputs: Tensor, grad: Tensor) -> Gram:
            units = len(grad)
            inputs, grad = inputs.flatten(0, 1), grad.flatten(0, 1)
            patches = patch_gram(inputs, units, self.geometry, grad.shape[2:])
            outer = grad.movedim(1, -1).reshape(units, -1, grad.shape[1])
            return gram_norms(torch.bmm(outer, outer.mT), patches)

        each = len(self.grad) // self.units
        parts = [side.unflatten(0, (self.units, each)) for side in roles(self.geometry, self.x, self.grad)]
        squared, self._doubtful = resolved(form, *parts)
        return squared

    def moments(self, weight: Centred) -> tuple[Moments, Tensor]:
        """Of the gradients ``Σ_t grad[t, c] · patch[t]`` of the channels c; ``⟨weight[c], patch[t]⟩`` is the output."""
        units, size = self.units, weight.along.shape[1]

        def by_position(maps: Tensor) -> Tensor:
            return maps.movedim(1, -1).reshape(units, -1, maps.shape[1])

        outer = by_position(self.grad)
        outputs = self.geometry.forward(self.x, self.weight, None) if self.outputs is None else self.outputs
        ones = self.x.new_ones(1, 1, *self.geometry.kernel)
        sums = self.geometry.forward(self.x.sum(1, keepdim=True), ones, None)  # of all numbers in a patch
        total = torch.bmm(outer.mT, by_position(sums)).squeeze(2)
        product = ((outer * by_position(outputs)).sum(1) - weight.mean * total) / weight.length
        patches = patch_gram(self.x, units, self.geometry, self.grad.shape[2:])
        squared, terms, longest = gram_moments(patches, outer)
        slack = 4 * torch.finfo(squared.dtype).eps * terms
        doubtful = in_doubt(squared.sum(1), terms.sum(1), longest, CANCELLATION_BY_CHANNEL)
        return (total.square() / size, product.square(), squared + slack), doubtful

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return careful_sum(self, factors, self._doubtful)

    def plain_sum(self, factors: Tensor) -> Tensor:
        factors = factors.repeat_interleave(len(self.grad) // self.units)
        if self.geometry.by_winograd(self.x, self.grad.shape[1]):
            return winograd.weighted_sum(self.x, self.grad, factors, self.geometry.padding[0])
        if self.geometry.is_strided() and self.x.is_cpu:
            return weighted_kernel_sum(self.x, self.grad, factors.to(self.grad.dtype), self.geometry)
        scale = factors.view(-1, *[1] * (self.grad.dim() - 1))
        return self.geometry.backward(self.grad * scale, self.x, self.weight, [False, True, False])[1]

    def chosen(self, units: Tensor) -> GhostKernelUse:
        rows = units.repeat_interleave(len(self.grad) // self.units)
        x, grad = self.x[rows].double(), self.grad[rows].double()
        return GhostKernelUse(x, grad, self.weight.double(), self.geometry, int(units.sum()))

    def gradients(self) -> Tensor:
        sides = roles(self.geometry, self.x, self.grad)
        return per_unit(*sides, self.geometry, self.units, Workspace()).gradients()

    def silence(self, units: Tensor) -> None:
        rows = units.repeat_interleave(len(self.grad) // self.units)
        self.x, self.grad = without(self.x, rows), without(self.grad, rows)


def roles(geometry: Geometry, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """A transposed convolution is the adjoint: its input and its output gradient change places."""
    return (grad, x) if geometry.transposed else (x, grad)


def per_unit(inputs: Tensor, grad: Tensor, geometry: Geometry, units: int, workspace: Workspace) -> KernelUse:
    """The kernel's gradients, those of a unit's rows added up."""
    rows, squared = kernel_gradients(inputs, grad, geometry, workspace)
    each = len(rows) // units
    if each == 1:
        return KernelUse(rows, squared=squared)
    return KernelUse(rows.reshape(units, each, *rows.shape[1:]).sum(1))


def _prefers_ghost(
    units: int, inputs: Tensor, positions: torch.Size, weight: Tensor, geometry: Geometry
) -> bool:
    """Whether Gram matrices are less work than gradients; ``inputs`` and ``positions`` are as in `roles`."""
    if geometry.groups != 1:
        return False
    work = gram_work(inputs, units, geometry, positions, len(weight))
    length = math.prod(positions) * (len(inputs) // units)
    saved = winograd.SAVED if geometry.by_winograd(inputs, len(weight)) else 1.0
    return ghost_is_cheaper(units, length, len(weight), math.prod(weight.shape[1:]), work, saved)


_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED_NAMES = (*_NAMES[:5], "output_padding", "groups", "dilation")


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
    transposed = "transpose" in func.__name__
    named = dict(zip(_TRANSPOSED_NAMES if transposed else _NAMES, args)) | kwargs
    x, weight, bias = named["input"], named["weight"], named.get("bias")
    spatial = weight.dim() - 2
    if not tape.holds_rows(x) or tape.holds_rows(weight) or tape.holds_rows(bias) or x.dim() != spatial + 2:
        return NotImplemented
    groups = int(named.get("groups", 1))
    sides = len(weight), weight.shape[1] * groups
    channels, outputs = sides if transposed else sides[::-1]
    if x.shape[1] != channels or (bias is not None and bias.shape != (outputs,)):
        return func(*args, **kwargs)  # torch says what is wrong: the loops in C take shapes as they are told
    tape.require_rows(x)
    kernel, dilation = tuple(weight.shape[2:]), _sizes(named.get("dilation"), spatial, 1)
    padding = named.get("padding")
    if isinstance(padding, str):
        x, padding = _explicitly_padded(x, padding, kernel, dilation)
    geometry = Geometry(
        kernel, _sizes(named.get("stride"), spatial, 1), _sizes(padding, spatial, 0), dilation,
        groups, transposed, _sizes(named.get("output_padding"), spatial, 0),
    )  # fmt: skip
    if spatial == 2:  # the faster layout on a CPU, and the one in which patches are cheap
        x = x.contiguous(memory_format=torch.channels_last)
    weight_slot, bias_slot = tape.slot_of(weight), tape.slot_of(bias)
    value, shift = value_of(weight_slot, weight), value_of(bias_slot, bias)
    if spatial == 2:
        value = _channels_last(tape, value, weight)
    # The norms of a derived weight's gradients are read off the outputs too.
    derived = weight_slot is not None and not weight_slot.is_parameter
    keep = False
    if derived and not transposed:
        keep = _prefers_ghost(tape.units, x, geometry.positions(x.shape[2:]), value, geometry)

    def record(inputs: Tensor, grad: Tensor, outputs: Tensor | None) -> None:
        if weight_slot is not None:
            tape.require_backward()
            sides = roles(geometry, inputs, grad)
            positions = sides[1].shape[2:]
            ghost = keep if derived else _prefers_ghost(tape.units, sides[0], positions, value, geometry)
            if ghost:
                if outputs is not None and shift is not None:
                    outputs = outputs - shift.view(-1, *[1] * spatial)
                use: Use = GhostKernelUse(inputs, grad, value, geometry, tape.units, outputs=outputs)
            else:
                use = per_unit(*sides, geometry, tape.units, tape.workspace)
            weight_slot.add(use)
        if bias_slot is not None:
            sums = grad.flatten(2).sum(2)
            bias_slot.add(DirectUse(sums.view(tape.units, -1, grad.shape[1]).sum(1), rule="convolution"))

    arithmetic = _Arithmetic(geometry, weight, tape.workspace)
    return _Convolution.apply(x, value, shift, arithmetic, tape.anchor, record, keep)


def _channels_last(tape: Tape, value: Tensor, weight: Tensor) -> Tensor:
    """The kernel in the layout of its input."""
    if value.is_contiguous(memory_format=torch.channels_last):
        return value

    def rearranged() -> Tensor:
        return value.contiguous(memory_format=torch.channels_last)

    return tape.workspace.arranged(weight, "channels last", rearranged)


def _said_to_be_channels_last(x: Tensor) -> Tensor:
    """A single channel lies the same in both layouts, and torch would take the other one for granted.

    Its output would be in that layout too, for which the layers that follow are slower.
    """
    if x.dim() != 4 or x.shape[1] != 1:
        return x
    return x.as_strided(x.shape, (x.stride(0), 1, *x.stride()[2:]))


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
