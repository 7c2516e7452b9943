"""LSTM, GRU and plain RNN layers, and their cells.

The recurrence is written out step by step. Its input projection is an ordinary linear layer on the whole
sequence. The hidden projection's use needs the gradient that arrives at each step, which is collected at a
tensor of zeros that is added there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine.lifting import Lift, lift
from saltflat.engine.registry import rule
from saltflat.engine.rules.linear import bias_use, linear, linear_use, value_of
from saltflat.engine.tape import OffTapeError, Tape

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, Tensor, State], State]


def _lstm(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    i, f, g, o = (from_input + from_hidden).chunk(4, dim=-1)
    memory = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory


def _gru(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    xr, xz, xn = from_input.chunk(3, dim=-1)
    hr, hz, hn = from_hidden.chunk(3, dim=-1)
    update = torch.sigmoid(xz + hz)
    candidate = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return ((1 - update) * candidate + update * state[0],)


def _tanh(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    return (torch.tanh(from_input + from_hidden),)


def _relu(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    return (torch.relu(from_input + from_hidden),)


def _projection(
    tape: Tape, weight: Tensor, bias: Tensor | None, rows: int, steps: int, name: str
) -> Callable[[int, Tensor], Tensor]:
    """A linear layer applied once a step."""
    weight_slot, bias_slot = tape.slot_of(weight), tape.slot_of(bias)
    seen: list[Tensor] = [torch.empty(0)] * steps

    def record(grad: Tensor) -> None:
        if weight_slot is not None:
            weight_slot.add(linear_use(tape, torch.stack(seen, dim=1), grad, name))
        if bias_slot is not None:
            bias_slot.add(bias_use(tape, grad, name))

    value, shift = value_of(weight_slot, weight), value_of(bias_slot, bias)
    shape = (1, steps, len(value))
    taps = Lift.apply(value.new_zeros(shape), tape.anchor, record, shape, rows).unbind(1)

    def project(step: int, x: Tensor) -> Tensor:
        seen[step] = x.detach()  # detached: a kept history would hold the record that holds it
        return F.linear(x, value, shift) + taps[step]

    return project


def _layer(
    tape: Tape, cell: Cell, x: Tensor, state: State, weights: list[Any], backwards: bool, name: str
) -> tuple[Tensor, State]:
    """One direction of one layer over rows x steps x features."""
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    rows, steps = x.shape[:2]
    hidden = _projection(tape, w_hh, b_hh, rows, steps, name)
    shrink = None if w_hr is None else _projection(tape, w_hr, None, rows, steps, name)
    inputs = linear(tape, x, w_ih, b_ih, name).unbind(1)
    outputs: list[Tensor] = [x] * steps
    for step in reversed(range(steps)) if backwards else range(steps):
        state = cell(inputs[step], hidden(step, state[0]), state)
        if shrink is not None:
            state = (shrink(step, state[0]), *state[1:])
        outputs[step] = state[0]
    return torch.stack(outputs, dim=1), state


def _initial(tape: Tape, states: Tensor, index: int) -> Tensor:
    if tape.slot_of(states) is None:
        return states[index]
    return lift(tape, tape.derive(torch.select, states, 0, index), 2, states.shape[1])


_LAYERS: dict[Any, tuple[Cell, str]] = {
    torch.lstm: (_lstm, "lstm"),
    torch.gru: (_gru, "gru"),
    torch.rnn_tanh: (_tanh, "rnn"),
    torch.rnn_relu: (_relu, "rnn"),
}


@rule(*_LAYERS)
def _layer_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    if kwargs or len(args) != 9 or not isinstance(args[2], list | tuple):
        raise OffTapeError  # a packed sequence: its rows are sorted by length, not by unit
    x, initial, flat, has_biases, layers, dropout, training, both_ways, batch_first = args
    if x.dim() != 3 or not tape.holds_rows(x):
        raise OffTapeError
    cell, name = _LAYERS[func]
    initials = list(initial) if isinstance(initial, tuple | list) else [initial]
    directions = 2 if both_ways else 1
    each = len(flat) // (layers * directions)
    out = x if batch_first else x.transpose(0, 1)
    tape.require_rows(out)
    finals: list[State] = []
    for layer in range(layers):
        parts = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = list(flat[index * each : (index + 1) * each])
            biases = weights[2:4] if has_biases else [None, None]
            projection = weights[-1] if len(weights) in (3, 5) else None
            state = tuple(_initial(tape, states, index) for states in initials)
            part, final = _layer(
                tape, cell, out, state, [*weights[:2], *biases, projection], direction == 1, name
            )
            parts.append(part)
            finals.append(final)
        out = torch.cat(parts, dim=2) if both_ways else parts[0]
        if dropout and training and layer < layers - 1:
            out = F.dropout(out, dropout)
    stacked = [torch.stack(column) for column in zip(*finals)]
    return (out if batch_first else out.transpose(0, 1), *stacked)


_CELLS: dict[Any, tuple[Cell, str]] = {
    torch.lstm_cell: (_lstm, "lstm cell"),
    torch.gru_cell: (_gru, "gru cell"),
    torch.rnn_tanh_cell: (_tanh, "rnn cell"),
    torch.rnn_relu_cell: (_relu, "rnn cell"),
}


@rule(*_CELLS)
def _cell_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    x, hx, w_ih, w_hh, b_ih, b_hh = list(args) + [None] * (6 - len(args))
    state = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    if kwargs or x.dim() != 2 or tape.slot_of(x) is not None:
        raise OffTapeError
    tape.require_rows(x)
    state = tuple(lift(tape, t, 2, len(x)) for t in state)
    cell, name = _CELLS[func]
    result = cell(linear(tape, x, w_ih, b_ih, name), linear(tape, state[0], w_hh, b_hh, name), state)
    return result if func is torch.lstm_cell else result[0]
