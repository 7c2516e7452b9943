"""Models and layers as functions of their parameters, for scripts that compute per-example gradients themselves.

The engine calls none of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def make_functional(
    mod: nn.Module, disable_autograd_tracking: bool = False
) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """``(function, parameters)`` with ``function(parameters, *inputs) == mod(*inputs)``.

    What the function computes is not recorded: with ``grad_sample_mode="no_op"`` the script sets ``p.grad_sample``.

    >>> function, parameters = make_functional(nn.Linear(2, 1))
    >>> function([torch.ones(1, 2), torch.zeros(1)], torch.ones(3, 2)).flatten().tolist()
    [2.0, 2.0, 2.0]
    """
    named = dict(mod.named_parameters())
    values: tuple[Tensor, ...] = tuple(named.values())
    if disable_autograd_tracking:
        values = tuple(value.detach() for value in values)
    stateless = copy.deepcopy(mod).to("meta")

    def function(parameters: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(named, parameters, strict=True))
        return torch.func.functional_call(stateless, given, args, kwargs)

    return function, values


class SampleGradients:
    """A layer's gradients, one row an example, as a function of its parameters, inputs and output gradients."""

    def __init__(self, layer: nn.Module, batch_first: bool) -> None:
        self._layer, self._dim = layer, 0 if batch_first else 1

    def __call__(
        self, params: Sequence[Tensor], activations: Tensor, backprops: Tensor
    ) -> tuple[Tensor, ...]:
        """One vector-Jacobian product a row; rows are in the first dimension."""
        function, _ = make_functional(self._layer)

        def pulled(values: tuple[Tensor, ...], row: Tensor, backprop: Tensor) -> Tensor:
            out = function(values, row.unsqueeze(self._dim))
            return (out * backprop.unsqueeze(self._dim)).sum()

        found: tuple[Tensor, ...] = torch.func.vmap(torch.func.grad(pulled), in_dims=(None, 0, 0))(
            tuple(params), activations, backprops
        )
        return found


def prepare_layer(layer: Any, batch_first: bool = True) -> None:
    """Give a layer ``ft_compute_sample_grad(parameters, activations, backprops)``."""
    if list(layer.buffers()):
        raise NotImplementedError("This layer has buffers, which a function of its parameters does not see")
    if type(layer) is nn.EmbeddingBag:
        raise NotImplementedError("torch.func does not support EmbeddingBag")
    layer.ft_compute_sample_grad = SampleGradients(layer, batch_first)


def ft_compute_per_sample_gradient(
    layer: Any, activations: Sequence[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Each example's gradient of one layer, from its input and the gradient of its output.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> ft_compute_per_sample_gradient(layer, [torch.eye(2)], torch.ones(2, 1))[layer.weight].tolist()
    [[[1.0, 0.0]], [[0.0, 1.0]]]
    """
    if not hasattr(layer, "ft_compute_sample_grad"):
        prepare_layer(layer)
    return gradients_by(layer.ft_compute_sample_grad, layer, activations[0], backprops)


def gradients_by(
    function: Callable[..., Any], layer: nn.Module, rows: Tensor, backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Each example's gradient of all parameters of a layer, by a function as `SampleGradients` is one."""
    parameters = list(layer.parameters())
    if len(rows) == 0:
        return {p: p.new_zeros(0, *p.shape) for p in parameters}
    rows = rows.to(backprops.dtype) if rows.is_floating_point() else rows
    found = function([p.detach() for p in parameters], rows, backprops)
    return dict(zip(parameters, found, strict=True))
