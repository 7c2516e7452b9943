"""The path under which Opacus has this function."""

from saltflat.compat.opacus.grad_sample import layer_rules

compute_rms_norm_grad_sample = layer_rules.compute_grad_sample

__all__ = ["compute_rms_norm_grad_sample"]
