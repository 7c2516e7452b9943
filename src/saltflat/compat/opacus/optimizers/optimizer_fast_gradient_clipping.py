"""The path under which Opacus has this class."""

from saltflat.compat.opacus.optimizers.optimizer import DPOptimizerFastGradientClipping

__all__ = ["DPOptimizerFastGradientClipping"]
