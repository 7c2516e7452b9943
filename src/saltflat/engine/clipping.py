"""Clipping functions: from the norms of a unit's gradient to the factors that bound its influence.

Every function here bounds the whole clipped vector of a unit by ``clip_norm``: that is the sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor

Norms = Mapping[str, Tensor]
"""Squared norms by parameter name, each with one entry a unit."""

ClippingFunction = Callable[[Norms, float], "dict[str, Tensor]"]


class SquaredNorms(dict[str, Tensor]):
    """Squared norms whose total is added up once, whoever asks for it."""

    @cached_property
    def total(self) -> Tensor:
        return torch.stack(list(self.values())).sum(0, dtype=torch.float64).sqrt()


def total_norm(squared: Norms) -> Tensor:
    """The norm of each unit's whole gradient, over all parameters."""
    return (squared if isinstance(squared, SquaredNorms) else SquaredNorms(squared)).total


def flat(squared: Norms, clip_norm: float) -> dict[str, Tensor]:
    """Scale the whole vector down to ``clip_norm`` where it is longer (Abadi et al. 2016).

    >>> flat({"w": torch.tensor([4.0, 0.25])}, 1.0)["w"]
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    factor = (clip_norm / total_norm(squared)).clamp(max=1.0)
    return dict.fromkeys(squared, factor)


def automatic(squared: Norms, clip_norm: float, stability: float = 0.01) -> dict[str, Tensor]:
    """Normalise instead of clip: C·g/(‖g‖ + 0.01), "AUTO-S" (Bu et al. 2023)."""
    factor = clip_norm / (total_norm(squared) + stability)
    return dict.fromkeys(squared, factor)


def per_layer(squared: Norms, clip_norm: float) -> dict[str, Tensor]:
    """Each layer to C/√L, so that the squares add up to C² (McMahan et al. 2018)."""
    layers: dict[str, list[str]] = {}
    for name in squared:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    share = clip_norm / math.sqrt(len(layers))
    factors: dict[str, Tensor] = {}
    for names in layers.values():
        factors |= flat({name: squared[name] for name in names}, share)
    return {name: factors[name] for name in squared}
