"""The classes of ``grad_sample_mode="ghost_fsdp"``; the engine underneath is the same."""

from __future__ import annotations

from saltflat.compat.opacus.grad_sample.grad_sample_module import (
    GradSampleHooksFastGradientClipping,
    GradSampleModuleFastGradientClipping,
)


class GradSampleModuleFastGradientClippingFSDP(GradSampleModuleFastGradientClipping):
    """A model of `FSDP2Wrapper`, which every rank holds whole."""


class GradSampleHooksFastGradientClippingFSDP(GradSampleHooksFastGradientClipping):
    """The same for a model that is not wrapped."""
