"""A model as a function of its parameters, for scripts that compute per-example gradients themselves."""

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
