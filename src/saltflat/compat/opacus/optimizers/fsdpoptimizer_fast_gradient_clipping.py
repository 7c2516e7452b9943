"""The path under which Opacus has this class."""

from saltflat.compat.opacus.optimizers.ddpoptimizer import FSDPOptimizerFastGradientClipping

__all__ = ["FSDPOptimizerFastGradientClipping"]
