"""The path under which Opacus has these classes."""

from saltflat.compat.opacus.grad_sample.grad_sample_module import (
    GradSampleHooksFastGradientClipping,
    GradSampleModuleFastGradientClipping,
)

__all__ = ["GradSampleHooksFastGradientClipping", "GradSampleModuleFastGradientClipping"]
