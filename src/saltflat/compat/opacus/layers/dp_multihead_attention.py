"""The path under which Opacus has these layers."""

from saltflat.compat.opacus.layers import DPMultiheadAttention

__all__ = ["DPMultiheadAttention"]
