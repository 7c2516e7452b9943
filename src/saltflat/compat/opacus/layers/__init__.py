"""Layers under Opacus's names. Those of Opacus are rewritten for its hooks; here torch's own code computes them."""

from saltflat.compat.opacus.layers.dp_multihead_attention import DPMultiheadAttention, SequenceBias
from saltflat.compat.opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN

__all__ = ["DPGRU", "DPLSTM", "DPRNN", "DPMultiheadAttention", "SequenceBias"]
