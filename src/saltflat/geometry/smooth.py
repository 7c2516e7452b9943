"""Running a model so that its derivatives can be differentiated once more, and quickly.

A Hessian times a vector is the derivative of a gradient along that vector. Torch carries such derivatives along
(forward mode) through almost every operation and its backward pass, at two to three times the price of a gradient;
taking the gradient of a gradient costs many times that on a CPU. The exceptions are the backward passes of group and
layer normalisation, so these have derivatives of their own here. Convolutions run with the channels last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


class Smooth(TorchFunctionMode):
    """Inside the block, normalisations are differentiable twice in forward mode, and maps have channels last."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.group_norm:
            return _group_norm(*args, **kwargs)
        if func is F.layer_norm:
            return _layer_norm(*args, **kwargs)
        if func is torch.conv2d and isinstance(args[0], Tensor) and args[0].dim() == 4:
            maps = func(_channels_last(args[0]), *args[1:], **kwargs)
            return _channels_last(maps)
        if func is Tensor.view and not any(isinstance(a, torch.dtype) for a in (*args, *kwargs.values())):
            return Tensor.reshape(*args, **kwargs)  # a map with its channels last cannot be viewed flat
        return func(*args, **kwargs)


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention by its plain formula inside the block: the fused kernels cannot be differentiated twice."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


_RISING = (nn.ReLU, nn.SELU, nn.ELU, nn.CELU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Softplus)
_SLOPES = ("alpha", "beta", "negative_slope")  # such a function rises where they are positive
_LARGEST = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def pooled_first(model: nn.Module) -> nn.Module:
    """Change the model so that it takes the largest numbers before it bends them, where it did so after.

    The values are the same to the bit, because a function that rises keeps the largest number the largest, and there
    are four times fewer numbers to bend. Gradients may choose another of two equal numbers.

    >>> pooled_first(nn.Sequential(nn.SELU(), nn.MaxPool2d(2)))
    Sequential(
      (0): MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)
      (1): SELU()
    )
    """
    for module in model.modules():
        if type(module) is not nn.Sequential:
            continue
        for i in range(len(module) - 1):
            bent, pool = module[i], module[i + 1]
            rises = type(bent) in _RISING and all(getattr(bent, word, 1) > 0 for word in _SLOPES)
            watched = any(each._forward_hooks or each._forward_pre_hooks for each in (bent, pool))
            if rises and type(pool) in _LARGEST and not pool.return_indices and not watched:
                module[i], module[i + 1] = pool, bent
    return model


def without_weights(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """What a chain of modules does before its first weight, and the rest; parameters keep their names.

    >>> before, rest = without_weights(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    >>> before, [name for name, _ in rest.named_parameters()]
    (Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
    ), ['1.weight', '1.bias'])
    """
    if type(model) is not nn.Sequential:
        return nn.Sequential(), model
    first = next((i for i, each in enumerate(model) if any(True for _ in each.parameters())), 0)
    return model[:first], model[first:]


def _channels_last(maps: Tensor) -> Tensor:
    return maps.contiguous(memory_format=torch.channels_last)


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    out = normalised(input, num_groups, eps)
    shape = (1, -1, *[1] * (input.dim() - 2))
    out = out if weight is None else out * weight.view(shape)
    return out if bias is None else out + bias.view(shape)


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    rows = input.reshape(-1, torch.Size(normalized_shape).numel())
    out = normalised(rows, 1, eps).reshape(input.shape)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def normalised(x: Tensor, groups: int, eps: float) -> Tensor:
    """Rows x channels x ...: each group of channels of each row with mean zero and variance one."""
    return _Normalise.apply(x, groups, eps)[0]


class _Normalise(torch.autograd.Function):
    """y = (x − mean) · r with r = 1/√(variance + ε). Also returns r, which carries its own tangent to the backward."""

    @staticmethod
    def forward(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
        centred = x - _means(x, groups)
        rate = (_means(centred * centred, groups) + eps).rsqrt()  # means may share memory
        return centred.mul_(rate), rate

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.groups = inputs[1]
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def jvp(ctx: Any, x_dot: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        y, rate = ctx.saved_tensors
        along, inner = _projected(x_dot, y, rate, ctx.groups)
        return along, -(rate * rate) * inner

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        y, rate = ctx.saved_tensors
        return _NormaliseBackward.apply(grads[0], y, rate, ctx.groups)[0], None, None


class _NormaliseBackward(torch.autograd.Function):
    """(g − mean(g) − y · mean(g y)) · r, and its tangent, which is what a Hessian needs."""

    @staticmethod
    def forward(grad: Tensor, y: Tensor, rate: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        return _projected(grad, y, rate, groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        grad, y, rate, ctx.groups = inputs
        ctx.save_for_forward(grad, y, rate, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def jvp(
        ctx: Any, grad_dot: Tensor | None, y_dot: Tensor | None, rate_dot: Tensor | None, _: Any
    ) -> tuple[Tensor, None]:
        grad, y, rate, back, inner = ctx.saved_tensors
        grad_dot = torch.zeros_like(grad) if grad_dot is None else grad_dot
        if y_dot is None or rate_dot is None:  # what is normalised does not move
            return _projected(grad_dot, y, rate, ctx.groups)[0], None
        inner_dot = _means(torch.addcmul(grad_dot * y, grad, y_dot), ctx.groups)
        moved = torch.addcmul(grad_dot - _means(grad_dot, ctx.groups), y, inner_dot, value=-1)
        moved = moved.addcmul_(y_dot, inner, value=-1).mul_(rate)
        return moved.addcmul_(back, rate_dot / rate), None


def _projected(t: Tensor, y: Tensor, rate: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """(t − mean(t) − y · mean(t y)) · r, and mean(t y): how a normalisation moves, forwards and backwards."""
    inner = _means(t * y, groups)
    return (t - _means(t, groups)).sub_(y * inner).mul_(rate), inner


def _means(t: Tensor, groups: int) -> Tensor:
    """The mean of each group of each row, spread over its channels: rows x channels x 1 x ..."""
    rows, channels = t.shape[:2]
    over = tuple(range(2, t.dim()))
    by_channel = t.mean(over) if over else t
    means = by_channel.reshape(rows, groups, -1).mean(2, keepdim=True)
    return means.expand(rows, groups, channels // groups).reshape(rows, channels, *[1] * len(over))
