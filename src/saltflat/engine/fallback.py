"""When nobody wrote a rule: torch.func on the one operation, or plain autograd example by example."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_unflatten

from saltflat.engine.functions import writes_in_place
from saltflat.engine.tape import OffTapeError, Tape, gradients_of
from saltflat.engine.uses import DirectUse


class _Operation(torch.autograd.Function):
    """Any operation; ``record`` gets the output gradients, ``back`` gives the input gradients."""

    @staticmethod
    def forward(ctx: Any, outputs: Any, record: Any, back: Any, anchor: Tensor, *rows: Tensor) -> Any:
        ctx.record, ctx.back = record, back
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.record(grads)
        return None, None, None, None, *ctx.back(grads, ctx.needs_input_grad[4:])


def run_one_operation(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``func`` and record the use of its weights by torch.func, row by row under vmap."""
    leaves, spec = tree_flatten((args, kwargs))
    rows_at = [i for i, leaf in enumerate(leaves) if tape.holds_rows(leaf)]
    slots_at = [i for i, leaf in enumerate(leaves) if tape.slot_of(leaf) is not None]
    # What writes into its arguments cannot be run twice, which this needs.
    if writes_in_place(func):
        raise OffTapeError
    name = getattr(func, "__name__", "")
    count = {leaves[i].shape[0] if leaves[i].dim() else 0 for i in rows_at}
    if len(count) != 1 or not tape.splits(rows := count.pop()):
        raise OffTapeError
    slots = [tape.slots[id(leaves[i])] for i in slots_at]
    data = [leaves[i].detach() for i in rows_at]
    values = [slot.value for slot in slots]

    def call(weights: Any, inputs: Any) -> Any:
        filled = list(leaves)
        for i, weight in zip(slots_at, weights):
            filled[i] = weight
        for i, x in zip(rows_at, inputs):
            filled[i] = x
        new_args, new_kwargs = tree_unflatten(filled, spec)
        return func(*new_args, **new_kwargs)

    with torch.no_grad():
        reference = call(values, data)
    outputs, out_spec = tree_flatten(reference)
    if any(not isinstance(t, Tensor) or t.dim() == 0 or t.shape[0] != rows for t in outputs):
        raise OffTapeError

    def flat(weights: Any, inputs: Any) -> tuple[Tensor, ...]:
        return tuple(tree_flatten(call(weights, inputs))[0])

    def one_row(inputs: Any, grads: Any) -> Any:
        single = [x.unsqueeze(0) for x in inputs]
        pull = torch.func.vjp(lambda *weights: flat(weights, single), *values)[1]
        return pull(tuple(g.unsqueeze(0) for g in grads))

    def record(grads: tuple[Tensor, ...]) -> None:
        per_row = _for_each_row(one_row, data, grads)
        for slot, grad in zip(slots, per_row):
            summed = grad.reshape(tape.units, -1, *slot.value.shape).sum(1)
            slot.add(DirectUse(summed, rule=f"torch.func on {name}"))

    def back(grads: tuple[Tensor, ...], needed: tuple[bool, ...]) -> list[Tensor | None]:
        wanted = [i for i, need in enumerate(needed) if need]
        if not wanted:
            return [None] * len(needed)
        with torch.enable_grad():
            inputs = [
                x.requires_grad_() if i in wanted else x for i, x in enumerate(t.detach() for t in data)
            ]
            results = flat(values, inputs)
        pairs = [(out, g) for out, g in zip(results, grads) if out.requires_grad]
        found = torch.autograd.grad(
            [out for out, _ in pairs], [inputs[i] for i in wanted], [g for _, g in pairs], allow_unused=True
        )
        filled: list[Tensor | None] = [None] * len(needed)
        for i, grad in zip(wanted, found):
            filled[i] = grad
        return filled

    results = _Operation.apply(outputs, record, back, tape.anchor, *[leaves[i] for i in rows_at])
    return tree_unflatten(list(results), out_spec)


def vmapped(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`torch.func.vmap`, which announces where it loops over rows for want of a batching rule: expected here."""

    def quietly(*rows: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*performance drop.*")
            return torch.func.vmap(function, **options)(*rows)

    return quietly


def _for_each_row(one_row: Callable[..., Any], data: list[Tensor], grads: tuple[Tensor, ...]) -> list[Tensor]:
    try:
        return list(vmapped(one_row)(data, grads))
    except (RuntimeError, ValueError):  # data-dependent control flow, or no batching rule
        pass
    try:
        singles = [one_row([x[i] for x in data], [g[i] for g in grads]) for i in range(len(data[0]))]
        return [torch.stack(column) for column in zip(*singles)]
    except (RuntimeError, ValueError) as error:  # an operation that does not take a single row
        raise OffTapeError from error


def example_by_example(
    parameters: list[nn.Parameter], losses_of: Callable[[slice], Tensor], units: int, each: int
) -> dict[int, DirectUse]:
    """Plain autograd, one unit at a time: slow, and right for any model that accepts a batch of one."""
    rows: list[list[Tensor]] = []
    edges = [get_gradient_edge(p) for p in parameters]
    for unit in range(units):
        losses = losses_of(slice(unit * each, (unit + 1) * each))
        grads = gradients_of([losses], edges) if losses.requires_grad else [None] * len(parameters)
        rows.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads)])
    return {
        id(p): DirectUse(torch.stack([row[i].detach() for row in rows]), rule="example by example")
        for i, p in enumerate(parameters)
    }
