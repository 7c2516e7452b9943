"""The classes of ``grad_sample_mode="ghost_tp"``; the engine underneath is the same.

Opacus made them for tensors in pieces (DTensors), and takes whole ones too. Here tensors must be whole.
"""

from __future__ import annotations

from saltflat.compat.opacus.grad_sample.grad_sample_module import (
    GradSampleHooksFastGradientClipping,
    GradSampleModuleFastGradientClipping,
)


class GradSampleModuleFastGradientClippingTP(GradSampleModuleFastGradientClipping):
    """A model whose parameters are whole; one in pieces is refused."""


class GradSampleHooksFastGradientClippingTP(GradSampleHooksFastGradientClipping):
    """The same for a model that is not wrapped."""
