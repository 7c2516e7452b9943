"""Recurrent layers: torch's own, with the arguments of Opacus and its order of parameters.

Optimizers know parameters by their place. With the order of Opacus, the moments of Adam in a checkpoint of
Opacus come to the parameters that they belong to.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from saltflat.errors import InputError


def _reorder(layer: nn.RNNBase) -> None:
    """Weight and bias of the input, then those of the state. (In torch: both weights, then both biases.)"""
    places = {"weight_ih": 0, "bias_ih": 1, "weight_hh": 2, "bias_hh": 3, "weight_hr": 4}
    cells = list(dict.fromkeys(name.split("_l", 1)[1] for name in layer._parameters))

    def place(name: str) -> tuple[int, int]:
        kind, cell = name.split("_l", 1)
        return cells.index(cell), places[kind]

    ordered = {name: layer._parameters[name] for name in sorted(layer._parameters, key=place)}
    layer._parameters.clear()
    layer._parameters.update(ordered)


class _AsInOpacus(nn.RNNBase):
    """Arguments, order of parameters and names in checkpoints as in Opacus: ``l0.ih.weight`` for ``weight_ih_l0``."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
        proj_size: int = 0,
        **own: Any,
    ) -> None:
        if proj_size and not isinstance(self, nn.LSTM):
            raise InputError(
                "proj_size", proj_size, "proj_size=0", problem="is for DPLSTM only",
                cure="Add a Linear layer after this one.",
            )  # fmt: skip
        if proj_size:  # torch's other layers do not take it, whatever it is
            own["proj_size"] = proj_size
        super().__init__(
            input_size=input_size, hidden_size=hidden_size, num_layers=num_layers, bias=bias,
            batch_first=batch_first, dropout=dropout, bidirectional=bidirectional, **own,
        )  # fmt: skip
        _reorder(self)

    def forward(self, input: Any, state_init: Any = None) -> Any:
        """As torch's layer; the first state goes by Opacus's name."""
        return super().forward(input, state_init)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in [name for name in state_dict if name.startswith(prefix)]:
            parts = name.removeprefix(prefix).split(".")
            if len(parts) == 3:
                cell, side, kind = parts
                state_dict[f"{prefix}{kind}_{side}_{cell}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class DPRNN(_AsInOpacus, nn.RNN):
    """`torch.nn.RNN`, with the arguments of Opacus.

    >>> [name for name, _ in DPRNN(3, 4).named_parameters()]
    ['weight_ih_l0', 'bias_ih_l0', 'weight_hh_l0', 'bias_hh_l0']
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
        proj_size: int = 0,
        nonlinearity: str = "tanh",
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size,
            nonlinearity=nonlinearity,
        )  # fmt: skip


class DPLSTM(_AsInOpacus, nn.LSTM):
    """`torch.nn.LSTM`, with the arguments of Opacus."""


class DPGRU(_AsInOpacus, nn.GRU):
    """`torch.nn.GRU`, with the arguments of Opacus."""
