"""The path under which Opacus has these classes."""

from saltflat.compat.opacus.grad_sample.grad_sample_module import (
    AbstractGradSampleHooks,
    AbstractGradSampleModule,
)

__all__ = ["AbstractGradSampleHooks", "AbstractGradSampleModule"]
