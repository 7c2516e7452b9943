"""Optimizers whose steps are releases."""

from saltflat.compat.opacus.optimizers.adaclipoptimizer import AdaClipDPOptimizer
from saltflat.compat.opacus.optimizers.ddp_perlayeroptimizer import SimpleDistributedPerLayerOptimizer
from saltflat.compat.opacus.optimizers.ddpoptimizer import (
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    FSDPOptimizerFastGradientClipping,
)
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
    "DistributedDPOptimizer",
    "DistributedDPOptimizerFastGradientClipping",
    "FSDPOptimizerFastGradientClipping",
    "SimpleDistributedPerLayerOptimizer",
    "get_optimizer_class",
]


KINDS: dict[tuple[str, bool], type[DPOptimizer]] = {
    ("flat", False): DPOptimizer,
    ("flat", True): DistributedDPOptimizer,
    ("per_layer", False): DPPerLayerOptimizer,
    ("per_layer", True): SimpleDistributedPerLayerOptimizer,
    ("adaptive", False): AdaClipDPOptimizer,
    ("automatic", False): AutomaticDPOptimizer,
}
GHOSTS: dict[tuple[str, bool], type[DPOptimizer]] = {
    ("ghost", False): DPOptimizerFastGradientClipping,
    ("ghost", True): DistributedDPOptimizerFastGradientClipping,
    ("ghost_fsdp", True): FSDPOptimizerFastGradientClipping,
}


def get_optimizer_class(
    clipping: str, distributed: bool, grad_sample_mode: str | None = None
) -> type[DPOptimizer]:
    """The class for a way to clip. Raises ValueError for combinations that Opacus does not have either."""
    said = f"Clipping: {clipping}, distributed: {distributed} and grad_sample_mode: {grad_sample_mode}"
    if grad_sample_mode in ("ghost", "ghost_fsdp"):
        if clipping == "flat" and (grad_sample_mode, distributed) in GHOSTS:
            return GHOSTS[grad_sample_mode, distributed]
        alone = grad_sample_mode == "ghost_fsdp" and not distributed
        cure = ". Put the model into FSDP2Wrapper" if alone else ""
        raise ValueError(f"Unsupported combination of parameters. {said}{cure}")
    if (clipping, distributed) not in KINDS:
        raise ValueError(f"Unexpected optimizer parameters. {said}")
    if clipping == "per_layer" and distributed and grad_sample_mode not in ("hooks", "ew"):
        raise ValueError(f"Unexpected grad_sample_mode: {grad_sample_mode}")
    return KINDS[clipping, distributed]
