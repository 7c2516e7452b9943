"""The path under which Opacus has this class."""

from saltflat.compat.opacus.grad_sample.grad_sample_module import GradSampleModuleExpandedWeights

__all__ = ["GradSampleModuleExpandedWeights"]
