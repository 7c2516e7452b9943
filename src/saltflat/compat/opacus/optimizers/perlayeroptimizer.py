"""Clipping parameter by parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from saltflat.compat.opacus.optimizers.optimizer import DPOptimizer, params
from saltflat.engine.clipping import flat
from saltflat.engine.passes import Clip
from saltflat.errors import InputError


class DPPerLayerOptimizer(DPOptimizer):
    """Clips each parameter's gradient to a norm of its own; ``max_grad_norm`` becomes the norm of them all."""

    def __init__(self, optimizer: Optimizer, *, max_grad_norm: Sequence[float], **kwargs: Any) -> None:
        norms = [float(norm) for norm in max_grad_norm]
        if len(norms) != len(params(optimizer)):
            raise InputError(
                "max_grad_norm", f"{len(norms)} norms", f"one norm for each of {len(params(optimizer))} parameters",
                problem="does not fit the optimizer",
            )  # fmt: skip
        self.max_grad_norms = norms
        super().__init__(optimizer, max_grad_norm=math.hypot(*norms), **kwargs)

    def clip(self) -> Clip:
        """Each parameter to its own norm."""
        own = tuple(self.max_grad_norms)

        def each_alone(squared: Any, clip_norm: float) -> dict[str, Tensor]:
            return {
                name: flat({name: values}, norm)[name]
                for (name, values), norm in zip(squared.items(), own, strict=True)
            }

        return Clip(each_alone, float(self.max_grad_norm), ("per_layer", own))
