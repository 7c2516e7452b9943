"""`FSDP2Wrapper`: the name under which scripts lay a model out over ranks. Here every rank holds all of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.distributed.fsdp  # not used here: scripts say dist.fsdp, which Opacus has imported for them
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from saltflat.compat.opacus.over_ranks import Replicated, device_of, same_weights


class WholeParameter(nn.Parameter):
    """A parameter that is whole on every rank, and says so to scripts that expect a piece."""

    def full_tensor(self) -> Tensor:
        """All of it."""
        return self.detach()


class _InLowPrecision(Replicated):
    """A model whose forward pass is computed as a mixed precision policy says; its weights stay as they are."""

    _compute_dtype: torch.dtype | None = None
    _output_dtype: torch.dtype | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """That of the model, under autocast where the policy has a type for the parameters."""
        kind = self._compute_dtype
        this: Any = self
        own: Any = super()
        with torch.autocast(device_of(this.parameters()), dtype=kind, enabled=kind is not None):
            out = own.forward(*args, **kwargs)
        said = self._output_dtype or kind
        return out if said is None else _cast(out, said)


class _InHighPrecision:
    """A layer that is computed in the type of its weights, inside a model that is not."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """That of the layer, without autocast."""
        this: Any = self
        own: Any = super()
        args, kwargs = _cast((args, kwargs), next(this.parameters()).dtype)
        with torch.autocast(device_of(this.parameters()), enabled=False):
            return own.forward(*args, **kwargs)


def FSDP2Wrapper(model: nn.Module, **kwargs: Any) -> nn.Module:
    """A model for all ranks, and for ``grad_sample_mode="ghost_fsdp"``: the same object, as in Opacus.

    Every rank holds all parameters, and its part of each batch: the result is that of sharded parameters, and the
    memory for parameters, gradients and optimizer is not divided by the number of ranks. All ranks begin with the
    weights of rank 0, and call this in the same order.

    ``mp_policy``: with a ``param_dtype`` below float32 the forward pass runs under autocast, and outputs have that
    type, or ``output_dtype``. Operations that meet trainable weights, clipped sums and messages stay in the type of the
    weights. ``opacus_high_precision_layers`` are left out of autocast. Other arguments change nothing, as in Opacus.
    """
    same_weights(model)
    warnings.warn(
        "FSDP2Wrapper: every rank holds all parameters here. Results are those of sharded ones; memory for parameters, "
        "gradients and optimizer is not divided by the number of ranks.",
        UserWarning,
        stacklevel=2,
    )  # fmt: skip
    policy = kwargs.get("mp_policy")
    low = getattr(policy, "param_dtype", None)
    if low not in (torch.bfloat16, torch.float16):
        low = None
    high = tuple(kwargs.get("opacus_high_precision_layers", ()))
    if low is not None and high:
        for part in iterate_submodules(model):
            if isinstance(part, high):
                _become(part, _InHighPrecision)
    for p in model.parameters():
        if type(p) is nn.Parameter:
            p.__class__ = WholeParameter
    _become(model, _InLowPrecision)
    spread: Any = model
    spread._compute_dtype, spread._output_dtype = low, getattr(policy, "output_dtype", None)
    return model


def has_params(module: nn.Module) -> bool:
    """Whether a module has parameters of its own, apart from those of its parts."""
    return any(True for _ in module.parameters(recurse=False))


def iterate_submodules(module: nn.Module) -> Iterator[nn.Module]:
    """The module and its parts, as far as they have parameters of their own."""
    return (part for part in module.modules() if has_params(part))


def _become(module: Any, first: type) -> None:
    """Put a class before that of the module, as torch's own ``fully_shard`` does."""
    kind: Any = type(module)
    module.__class__ = _mixed(first, kind)


@lru_cache(maxsize=64)
def _mixed(first: Any, kind: Any) -> Any:
    return type(f"FSDP{kind.__name__}", (first, kind), {"__module__": kind.__module__})


def _cast(values: Any, kind: torch.dtype) -> Any:
    def one(value: Any) -> Any:
        return value.to(kind) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tree_map(one, values)
