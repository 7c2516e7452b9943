"""The classes of ``grad_sample_mode="ghost_tp"``: they can be imported, and say what to use instead."""

from __future__ import annotations

from typing import Any

from torch import nn

from saltflat.compat.opacus.grad_sample.grad_sample_module import (
    GradSampleHooksFastGradientClipping,
    GradSampleModuleFastGradientClipping,
)
from saltflat.compat.opacus.over_ranks import CURE

REFUSED = (
    "grad_sample_mode='ghost_tp': a model whose tensors are cut into pieces, one on each rank, is not supported. "
    f"Each example would be on all ranks, with a part of its gradient on each. {CURE}"
)


class GradSampleHooksFastGradientClippingTP(GradSampleHooksFastGradientClipping):
    """Refused: the engine computes an example's whole gradient in one process."""

    def __init__(self, m: nn.Module, **kwargs: Any) -> None:
        raise NotImplementedError(REFUSED)


class GradSampleModuleFastGradientClippingTP(GradSampleModuleFastGradientClipping):
    """Refused: the engine computes an example's whole gradient in one process."""

    def __init__(self, m: nn.Module, **kwargs: Any) -> None:
        raise NotImplementedError(REFUSED)
