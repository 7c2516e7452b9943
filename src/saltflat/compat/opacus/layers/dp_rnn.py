"""The path under which Opacus has these layers."""

from saltflat.compat.opacus.layers import DPGRU, DPLSTM, DPRNN

__all__ = ["DPGRU", "DPLSTM", "DPRNN"]
