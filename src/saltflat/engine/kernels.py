"""Per-row gradients of convolution kernels, and their Gram matrices, without looking at weights.

A convolution is a linear layer on patches. Patches are formed for a few rows at a time in a buffer that stays
in cache, with the channels innermost so that copying a patch copies long runs.

The norms of kernel gradients can also be had without the gradients, from the Gram matrices of the output
gradients and of the patches. Two patches overlap tap by tap, so the Gram matrix of the patches is a sum of
shifted Gram matrices of the *pixels*: ``⟨patch(t), patch(u)⟩ = Σ_tap ⟨x(t + tap), x(u + tap)⟩``, which needs no
patches and, for a 3×3 kernel, a ninth of the multiplications.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine import native, winograd
from saltflat.engine.lengths import squared_lengths
from saltflat.engine.workspace import Workspace

# Patches of as many rows as fit into this many numbers are formed at once (2 MiB of float32).
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

    def slices(self, tap: tuple[int, ...], positions: torch.Size) -> tuple[slice, ...]:
        """Where, in a padded map, one tap of the kernel meets each output position."""
        firsts = [offset * dilation for offset, dilation in zip(tap, self.dilation)]
        return tuple(
            slice(first, first + (n - 1) * step + 1, step)
            for first, n, step in zip(firsts, positions, self.stride)
        )

    def positions(self, space: torch.Size) -> torch.Size:
        """The size of the output's map, for an input's; not for a transposed convolution."""
        reach = [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation)]
        return torch.Size(
            (n + 2 * p - r) // step + 1 for n, p, r, step in zip(space, self.padding, reach, self.stride)
        )

    def sides(self) -> list[int]:
        """The padding as `torch.nn.functional.pad` takes it: both sides of the last dimension first."""
        return [p for p in reversed(self.padding) for _ in range(2)]

    def is_plain_3x3(self) -> bool:
        """Whether this is the convolution that `winograd` knows."""
        plain = self.kernel == (3, 3) and self.stride == self.dilation == (1, 1)
        squarely = self.padding in ((0, 0), (1, 1), (2, 2))
        return plain and squarely and self.groups == 1 and not self.transposed

    def is_strided(self) -> bool:
        """Whether this is an ordinary dense convolution that leaves out positions."""
        return max(self.stride) > 1 and self.groups == 1 and not self.transposed

    def by_winograd(self, x: Tensor, outputs: int) -> bool:
        """Whether gradients of the kernel take fewer multiplications than by the definition."""
        return self.is_plain_3x3() and winograd.suits(x, outputs)

    def taps(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*map(range, self.kernel))


def kernel_gradients(
    inputs: Tensor, grad: Tensor, geometry: Geometry, workspace: Workspace
) -> tuple[Tensor, Tensor]:
    """Rows x output channels x *kernel x input channels of a group, and their squared norms."""
    if inputs.shape[1] == geometry.groups > 1:
        grads = _depthwise(inputs, grad, geometry)
        return grads, squared_lengths(grads)
    if geometry.by_winograd(inputs, grad.shape[1]):
        return winograd.gradients(inputs, grad, geometry.padding[0], workspace)
    return _dense(inputs, grad, geometry, workspace)


def patch_gram(inputs: Tensor, units: int, geometry: Geometry, positions: torch.Size) -> Tensor:
    """Units x T x T: the inner products of the patches that belong to one unit, T positions in all."""
    space, each = inputs.shape[2:], len(inputs) // units
    pixels = inputs.movedim(1, -1).reshape(units, each * math.prod(space), inputs.shape[1])
    gram = torch.bmm(pixels, pixels.mT).view(units, each, *space, each, *space)
    if any(geometry.padding):
        gram = F.pad(gram, [*geometry.sides(), 0, 0, *geometry.sides()])
    length = each * math.prod(positions)
    whole = slice(None)
    shifted = [
        gram[(whole, whole, *at, whole, *at)]
        for at in (geometry.slices(t, positions) for t in geometry.taps())
    ]
    total = shifted[0].clone() if len(shifted) > 1 else shifted[0]
    for other in shifted[1:]:
        total += other
    return total.reshape(units, length, length)


def gram_work(inputs: Tensor, units: int, geometry: Geometry, positions: torch.Size, out: int) -> int:
    """How many multiply-adds a unit costs by `patch_gram`, its shifts and the gradients' Gram matrix.

    A shifted addition moves numbers in short runs and costs about as much time as fifty multiply-adds.
    """
    each = len(inputs) // units
    pixels, length = each * math.prod(inputs.shape[2:]), each * math.prod(positions)
    taps = math.prod(geometry.kernel)
    shifts = 50 * taps * length * length + 20 * pixels * pixels * any(geometry.padding)
    return pixels * pixels * inputs.shape[1] + length * length * out + shifts


def weighted_kernel_sum(inputs: Tensor, grad: Tensor, factors: Tensor, geometry: Geometry) -> Tensor:
    """The kernel's gradient, outputs x inputs x *kernel, of all rows together, each times its factor.

    Patches of a few rows at a time, and one product: for 3×3 kernels with a stride, two thirds to three quarters of
    the time of torch's own; for 1×1 kernels, now more and now less.
    """
    rows, out_channels = grad.shape[:2]
    kernel, positions, channels = geometry.kernel, grad.shape[2:], inputs.shape[1]
    length, size = math.prod(positions), math.prod(kernel) * channels
    block = min(rows, max(1, PATCH_BUFFER // (length * size)))
    workspace = Workspace()
    patches = workspace.scratch("patches", (block, *positions, *kernel, channels), grad)
    padded = _Padded(inputs, geometry, block, workspace)
    scaled = (grad.movedim(1, -1) * factors.view(-1, *[1] * (grad.dim() - 1))).reshape(
        rows * length, out_channels
    )
    total = grad.new_zeros(out_channels, size)
    for start in range(0, rows, block):
        stop = min(start + block, rows)
        some = patches[: stop - start].copy_(_windows(padded.rows(start, stop), geometry, positions))
        total.addmm_(scaled[start * length : stop * length].mT, some.view(-1, size))
    return total.view(out_channels, *kernel, channels).movedim(-1, 1)


def _dense(inputs: Tensor, grad: Tensor, geometry: Geometry, workspace: Workspace) -> tuple[Tensor, Tensor]:
    rows, out_channels = grad.shape[:2]
    groups, kernel, positions = geometry.groups, geometry.kernel, grad.shape[2:]
    length, taps, in_group = math.prod(positions), math.prod(kernel), inputs.shape[1] // groups
    out_group = out_channels // groups
    result = grad.new_empty(rows, groups, out_group, taps * in_group)
    left = grad.movedim(1, -1).reshape(rows, length, groups, out_group).permute(0, 2, 3, 1)
    block = min(rows, max(1, PATCH_BUFFER // (length * taps * inputs.shape[1])))
    buffer = workspace.scratch("patches", (block, groups, length, taps * in_group), grad)
    padded = _Padded(inputs, geometry, block, workspace)
    squared = grad.new_empty(rows, dtype=torch.float64)
    for start in range(0, rows, block):
        stop = min(start + block, rows)
        windows = _windows(padded.rows(start, stop), geometry, positions)
        patches = buffer[: stop - start]
        grouped = windows.unflatten(-1, (groups, in_group)).movedim(-2, 1)
        patches.view(stop - start, groups, *positions, *kernel, in_group).copy_(grouped)
        # left[...] is a view with the channels innermost: the product reads it transposed, without a copy
        torch.bmm(left[start:stop].flatten(0, 1), patches.flatten(0, 1), out=result[start:stop].flatten(0, 1))
        squared[start:stop] = squared_lengths(result[start:stop])  # now, while they are in cache
    return result.view(rows, out_channels, *kernel, in_group), squared


class _Padded:
    """Rows x *padded space x channels, a few rows at a time in one buffer whose border stays zero."""

    def __init__(self, x: Tensor, geometry: Geometry, block: int, workspace: Workspace) -> None:
        self.last = x.movedim(1, -1)
        self.buffer: Tensor | None = None
        if any(geometry.padding):
            shape = [n + 2 * p for n, p in zip(x.shape[2:], geometry.padding)]
            self.buffer = self.inside = workspace.scratch("padded", (block, *shape, x.shape[1]), x).zero_()
            for d, (n, p) in enumerate(zip(x.shape[2:], geometry.padding)):
                self.inside = self.inside.narrow(1 + d, p, n)

    def rows(self, start: int, stop: int) -> Tensor:
        if self.buffer is None:
            return self.last[start:stop].contiguous()
        self.inside[: stop - start].copy_(self.last[start:stop])
        return self.buffer[: stop - start]


def _windows(padded: Tensor, geometry: Geometry, positions: torch.Size) -> Tensor:
    """A view: rows x *positions x *kernel x channels."""
    strides = padded.stride()
    spatial = strides[1:-1]
    steps = [s * step for s, step in zip(spatial, geometry.stride)]
    taps = [s * dilation for s, dilation in zip(spatial, geometry.dilation)]
    shape = (padded.shape[0], *positions, *geometry.kernel, padded.shape[-1])
    return padded.as_strided(shape, (strides[0], *steps, *taps, strides[-1]), padded.storage_offset())


def _depthwise(inputs: Tensor, grad: Tensor, geometry: Geometry) -> Tensor:
    """One input channel a group: for each tap of the kernel, an element-wise product and a sum."""
    repeats = grad.shape[1] // inputs.shape[1]
    if repeats > 1:
        inputs = inputs.repeat_interleave(repeats, dim=1)
    if len(geometry.kernel) == 2 and native.suits(inputs):
        x, last = inputs.movedim(1, -1).contiguous(), grad.movedim(1, -1).contiguous()
        sums = x.new_empty(len(x), *geometry.kernel, x.shape[-1])
        native.depthwise(x, last, sums, geometry.stride, geometry.padding, geometry.dilation)
        return sums.movedim(-1, 1).unsqueeze(-1)
    return depthwise_by_taps(inputs, grad, geometry)


def depthwise_by_taps(inputs: Tensor, grad: Tensor, geometry: Geometry) -> Tensor:
    """The same by torch operations alone, for any number of dimensions and any device."""
    rows, channels = grad.shape[:2]
    padded = F.pad(inputs, geometry.sides())
    result = grad.new_empty(rows, channels, *geometry.kernel, 1)
    for tap in geometry.taps():
        window = padded[(slice(None), slice(None), *geometry.slices(tap, grad.shape[2:]))]
        place: Any = (..., *tap, 0)
        torch.sum((window * grad).flatten(2), 2, out=result[place])
    return result
