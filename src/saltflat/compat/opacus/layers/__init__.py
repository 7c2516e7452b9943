"""Layers that Opacus rewrites for its hooks. The engine computes torch's own, so these are torch's own."""

from __future__ import annotations

from torch import nn

__all__ = ["DPGRU", "DPLSTM", "DPRNN", "DPMultiheadAttention"]


class DPRNN(nn.RNN):
    """`torch.nn.RNN`."""


class DPLSTM(nn.LSTM):
    """`torch.nn.LSTM`."""


class DPGRU(nn.GRU):
    """`torch.nn.GRU`."""


class DPMultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention`."""
