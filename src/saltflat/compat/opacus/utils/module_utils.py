"""Small questions about modules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def enter(
    table: dict[type[nn.Module], Callable[..., Any]], types: type[nn.Module] | Sequence[type[nn.Module]]
) -> Callable[..., Any]:
    """A decorator that puts a function into a table, for one kind of layer or several."""

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        table.update(dict.fromkeys(types if isinstance(types, Sequence) else [types], function))
        return function

    return decorator


def has_trainable_params(module: nn.Module) -> bool:
    """Whether a module itself, its children apart, has something to train."""
    return any(p.requires_grad for p in module.parameters(recurse=False))


def parametrized_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that have parameters of their own."""
    return ((name, m) for name, m in module.named_modules() if list(m.parameters(recurse=False)))


def trainable_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that have trainable parameters of their own."""
    return ((name, m) for name, m in module.named_modules() if has_trainable_params(m))


def trainable_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that are trained."""
    return ((name, p) for name, p in module.named_parameters() if p.requires_grad)


def requires_grad(module: nn.Module, *, recurse: bool = False) -> bool:
    """Whether any parameter of the module is trained."""
    return any(p.requires_grad for p in module.parameters(recurse))


def clone_module(module: nn.Module) -> nn.Module:
    """A copy that shares nothing; nothing is pickled on the way."""
    return copy.deepcopy(module)


def get_submodule(module: nn.Module, target: str) -> nn.Module:
    """The submodule at a dotted path."""
    return module.get_submodule(target)


def are_state_dict_equal(sd1: Mapping[str, Tensor], sd2: Mapping[str, Tensor]) -> bool:
    """Whether two state dicts have the same keys and, to rounding, the same numbers."""
    return sd1.keys() == sd2.keys() and all(torch.allclose(sd1[key], sd2[key]) for key in sd1)
