"""The path under which Opacus has these functions."""

from saltflat.compat.opacus.grad_sample import layer_rules

compute_conv_grad_sample = layer_rules.compute_grad_sample
convolution2d_backward_as_a_convolution = layer_rules.compute_grad_sample

__all__ = ["compute_conv_grad_sample", "convolution2d_backward_as_a_convolution"]
