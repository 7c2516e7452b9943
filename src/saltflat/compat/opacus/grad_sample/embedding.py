"""The path under which Opacus has these functions."""

from saltflat.compat.opacus.grad_sample import layer_rules

compute_embedding_grad_sample = layer_rules.compute_grad_sample
compute_embedding_norm_sample = layer_rules.compute_norm_sample

__all__ = ["compute_embedding_grad_sample", "compute_embedding_norm_sample"]
