"""Turn a model that mixes examples into one that does not, and keep its weights."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from saltflat.errors import InputError

MOST_GROUPS = 32
# BatchNorm1d may see N × C inputs, where a group has nothing but its channels to take statistics of:
# one channel a group would output a constant, two nothing but a sign.
LEAST_GROUP_WITHOUT_MAPS = 16


def make_private_friendly(model: nn.Module) -> nn.Module:
    """A copy of the model in which no layer mixes examples and no activation works in place.

    - BatchNorm in one, two or three dimensions and SyncBatchNorm become GroupNorm, with the same affine
      weights (or none) and the same eps. The groups are as many as divide the channels, at most 32;
      for BatchNorm1d, whose input may be N × C, at least 16 channels share a group, or all do.
    - InstanceNorm stops tracking running statistics.
    - Modules with ``inplace=True`` get ``inplace=False``.

    Nothing else changes: weights, sharing, devices, types, ``requires_grad``, training mode. The model
    passed in is left alone. What a ``forward`` does by itself, such as ``F.relu(x, inplace=True)``,
    cannot be seen from here. A trained BatchNorm's running statistics have no counterpart: a converted
    model needs some training.

    Reference: Wu and He, Group Normalization, ECCV 2018.

    >>> make_private_friendly(nn.Sequential(nn.BatchNorm2d(48), nn.ReLU(inplace=True)))
    Sequential(
      (0): GroupNorm(24, 48, eps=1e-05, affine=True...)
      (1): ReLU()
    )
    """
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise InputError(
            "model", model, "a model whose layers know their sizes",
            problem="has lazy layers that saw no batch yet",
            cure="Run one batch through it first.",
        )  # fmt: skip
    converted: dict[nn.Module, nn.Module] = {}

    def convert(module: nn.Module, path: str) -> nn.Module:
        if module not in converted:  # a module used in two places stays one module
            converted[module] = (
                _group_norm(module, path) if isinstance(module, _BatchNorm) else _tidied(module)
            )
            for name, child in module._modules.items():
                if child is not None:
                    converted[module]._modules[name] = convert(child, f"{path}.{name}" if path else name)
        return converted[module]

    return convert(copy.deepcopy(model), "")


def _group_norm(norm: _BatchNorm, path: str) -> nn.GroupNorm:
    kind, where, channels = type(norm).__name__, path or "the model itself", norm.num_features
    flat = isinstance(norm, nn.BatchNorm1d)
    if type(norm).forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
        raise InputError(
            "model", where, "norms that do nothing but normalise",
            problem=f"is a {kind} with a forward of its own, which GroupNorm cannot stand in for",
            cure="Replace it by GroupNorm and what else it does, such as an activation, by hand.",
        )  # fmt: skip
    if flat and channels == 1:
        raise InputError(
            "model", where, "norms over two channels or more",
            problem=f"is a {kind} of one channel, which GroupNorm would turn into a constant",
            cure="Take it out, and scale that input by public constants.",
        )  # fmt: skip
    least = min(LEAST_GROUP_WITHOUT_MAPS, channels) if flat else 1
    groups = max(g for g in range(1, MOST_GROUPS + 1) if channels % g == 0 and channels // g >= least)
    new = nn.GroupNorm(groups, channels, norm.eps, affine=norm.affine)
    if norm.affine:
        new.weight, new.bias = norm.weight, norm.bias  # the parameters themselves: type, device and ties stay
    return new.train(norm.training)


def _tidied(module: nn.Module) -> nn.Module:
    if getattr(module, "inplace", False) is True:
        object.__setattr__(module, "inplace", False)
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        module.track_running_stats = False
        for statistic in ("running_mean", "running_var", "num_batches_tracked"):
            module.register_buffer(statistic, None)
    return module
