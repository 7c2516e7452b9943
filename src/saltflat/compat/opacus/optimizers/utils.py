"""The path under which Opacus has this function."""

from saltflat.compat.opacus.optimizers.optimizer import params

__all__ = ["params"]
