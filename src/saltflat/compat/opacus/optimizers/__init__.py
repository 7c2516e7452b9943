"""Optimizers whose steps are releases."""

from saltflat.compat.opacus.optimizers.adaclipoptimizer import AdaClipDPOptimizer
from saltflat.compat.opacus.optimizers.optimizer import (
    AutomaticDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
)
from saltflat.compat.opacus.optimizers.perlayeroptimizer import DPPerLayerOptimizer

__all__ = [
    "AdaClipDPOptimizer",
    "AutomaticDPOptimizer",
    "DPOptimizer",
    "DPOptimizerFastGradientClipping",
    "DPPerLayerOptimizer",
    "get_optimizer_class",
]


def get_optimizer_class(
    clipping: str, distributed: bool, grad_sample_mode: str | None = None
) -> type[DPOptimizer]:
    """The class for a way to clip. Raises ValueError for combinations that Opacus does not have either."""
    if distributed:
        raise NotImplementedError("saltflat.compat.opacus does not train over several processes")
    if grad_sample_mode == "ghost":
        if clipping == "flat":
            return DPOptimizerFastGradientClipping
        raise ValueError(
            f"Unsupported combination of parameters. Clipping: {clipping} and grad_sample_mode: {grad_sample_mode}"
        )
    known: dict[str, type[DPOptimizer]] = {
        "flat": DPOptimizer,
        "per_layer": DPPerLayerOptimizer,
        "adaptive": AdaClipDPOptimizer,
        "automatic": AutomaticDPOptimizer,
    }
    if clipping not in known:
        raise ValueError(f"Unexpected optimizer parameters. Clipping: {clipping}, distributed: {distributed}")
    return known[clipping]
