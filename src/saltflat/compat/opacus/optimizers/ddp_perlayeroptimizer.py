"""Clipping parameter by parameter, on several ranks."""

from __future__ import annotations

from saltflat.compat.opacus.optimizers.ddpoptimizer import DistributedDPOptimizer
from saltflat.compat.opacus.optimizers.perlayeroptimizer import DPPerLayerOptimizer


class SimpleDistributedPerLayerOptimizer(DPPerLayerOptimizer, DistributedDPOptimizer):
    """Clips each parameter's gradient to a norm of its own, and adds up over all ranks."""


class DistributedPerLayerOptimizer(SimpleDistributedPerLayerOptimizer):
    """The same: in Opacus it clips in hooks of torch's wrapper, and here there are none."""
