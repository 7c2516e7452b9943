"""Norms, sums and windows of tensors with one row an example."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def calc_sample_norms(named_params: Iterable[tuple[str, Tensor]], *, flat: bool = True) -> list[Tensor]:
    """Each example's norm, a tensor; or, if flat, over all tensors.

    >>> calc_sample_norms([("a", torch.tensor([[3.0], [0.0]])), ("b", torch.tensor([[4.0], [1.0]]))])
    [tensor([5., 1.])]
    """
    norms = [calc_sample_norms_one_layer(values) for _, values in named_params]
    return [torch.stack(norms).norm(2, dim=0)] if flat else norms


def calc_sample_norms_one_layer(param: Tensor) -> Tensor:
    """Each example's norm."""
    return param.reshape(len(param), -1).norm(2, dim=-1)


def sum_over_all_but_batch_and_last_n(tensor: Tensor, n_dims: int) -> Tensor:
    """The sum over all dimensions but the first and the last few."""
    between = list(range(1, tensor.dim() - n_dims))
    return tensor.sum(dim=between) if between else tensor


def unfold2d(
    input: Tensor,
    *,
    kernel_size: Sequence[int],
    padding: str | Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """`torch.nn.functional.unfold`, with ``padding="same"`` and ``"valid"`` as well."""
    return _windows(input, kernel_size, padding, stride, dilation)


def unfold3d(
    tensor: Tensor,
    *,
    kernel_size: int | Sequence[int],
    padding: int | str | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The same for volumes.

    >>> unfold3d(torch.zeros(3, 4, 5, 6, 7), kernel_size=2).shape
    torch.Size([3, 32, 120])
    """
    if tensor.dim() != 5:
        raise ValueError(f"Input tensor must be of the shape [B, C, D, H, W]. Got {tuple(tensor.shape)}")
    padding = padding if isinstance(padding, str) else _three(padding)
    return _windows(tensor, _three(kernel_size), padding, _three(stride), _three(dilation))


def _three(value: int | Sequence[int]) -> Sequence[int]:
    return (value,) * 3 if isinstance(value, int) else value


def _windows(
    rows: Tensor,
    kernel: Sequence[int],
    padding: str | Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Rows x (channels and places in the window) x windows."""
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if padding == "same":
        before = [r // 2 for r in reach]
        after = [r - b for r, b in zip(reach, before, strict=True)]
    else:
        before = after = [0] * len(kernel) if isinstance(padding, str) else list(padding)
    # F.pad begins with the last dimension
    rows = F.pad(rows, [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair])
    for i, (r, step, d) in enumerate(zip(reach, stride, dilation, strict=True)):
        rows = rows.unfold(2 + i, r + 1, step)[..., ::d]
    # rows x channels x windows in each direction x places in each direction
    directions = len(kernel)
    places = [2 + directions + i for i in range(directions)]
    windows = [2 + i for i in range(directions)]
    rows = rows.permute(0, 1, *places, *windows)
    return rows.flatten(2 + directions).flatten(1, 1 + directions)
