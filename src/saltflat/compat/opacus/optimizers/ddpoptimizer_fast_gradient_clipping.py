"""The path under which Opacus has this class."""

from saltflat.compat.opacus.optimizers.ddpoptimizer import DistributedDPOptimizerFastGradientClipping

__all__ = ["DistributedDPOptimizerFastGradientClipping"]
