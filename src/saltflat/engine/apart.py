"""Units with weights of their own: for calls that the tape cannot follow, or that keep the units elsewhere.

Each unit gets the weights as a view of its own, and torch.func runs all units at once; where it cannot, the units
are run one after the other. Slower than the tape, and right for any model that accepts a single unit.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from saltflat.engine.one_call import Call, Part, Uses
from saltflat.engine.uses import DirectUse
from saltflat.errors import RefusedError


def run_apart(call: Call, parameters: Sequence[nn.Parameter], rows: slice) -> Part:
    """Run some units of a call, each on its own."""
    inputs = call.some(rows)
    units = rows.stop - rows.start
    with torch.enable_grad():
        weights = [p.detach().expand(units, *p.shape).requires_grad_() for p in parameters]
        before = torch.get_rng_state()
        try:
            singles = _by_vmap(call, parameters, weights, inputs)
        except (RuntimeError, ValueError, NotImplementedError):
            # no batching rule, or control flow that depends on the data
            torch.set_rng_state(before)
            singles = _one_by_one(call, parameters, weights, inputs, units)
        leaves, spec = tree_flatten(singles)
        everything = [_in_place(leaf, call) for leaf in leaves]
    outputs = [t for t in everything if isinstance(t, Tensor) and t.requires_grad]

    def back(
        grads: list[Tensor], wanted: list[Tensor], keep: bool
    ) -> tuple[Uses, list[Tensor | None]] | None:
        asked = [t for t in inputs.values() if t.requires_grad]
        found = torch.autograd.grad(wanted, [*weights, *asked], grads, retain_graph=keep, allow_unused=True)
        uses: Uses = {
            id(p): DirectUse(grad, rule="unit by unit")
            for p, grad in zip(parameters, found)
            if grad is not None
        }
        return uses, list(found[len(weights) :])

    return Part(rows, inputs, outputs, spec, everything, back)


def _by_vmap(
    call: Call, parameters: Sequence[nn.Parameter], weights: list[Tensor], inputs: dict[int, Tensor]
) -> Any:
    keys = list(inputs)

    def one(own: list[Tensor], values: list[Tensor]) -> Any:
        return _single(call, parameters, own, dict(zip(keys, values)))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        return torch.func.vmap(one, in_dims=(0, call.dim), randomness="different")(
            weights, [inputs[key] for key in keys]
        )


def _one_by_one(
    call: Call,
    parameters: Sequence[nn.Parameter],
    weights: list[Tensor],
    inputs: dict[int, Tensor],
    units: int,
) -> Any:
    rows = [
        _single(
            call, parameters, [w[i] for w in weights], {k: t.select(call.dim, i) for k, t in inputs.items()}
        )
        for i in range(units)
    ]
    flat = [tree_flatten(row) for row in rows]
    spec = flat[0][1]
    columns = zip(*[leaves for leaves, _ in flat])
    stacked = [torch.stack(list(c)) if isinstance(c[0], Tensor) else c[0] for c in columns]
    return torch.utils._pytree.tree_unflatten(stacked, spec)


def _single(
    call: Call, parameters: Sequence[nn.Parameter], own: Sequence[Tensor], values: dict[int, Tensor]
) -> Any:
    """The outputs of one unit, with the dimension of the units left in."""
    lookup = dict(zip((id(p) for p in parameters), own))
    names = {name: lookup[id(p)] for name, p in call.model.named_parameters() if id(p) in lookup}
    alone = {key: value.unsqueeze(call.dim) for key, value in values.items()}
    with _replaced(call.model, names):
        return call.filled(call.model, alone)


def _replaced(model: nn.Module, weights: dict[str, Tensor]) -> Any:
    from torch.nn.utils.stateless import _reparametrize_module

    return _reparametrize_module(model, weights, tie_weights=True)


def _in_place(stacked: Any, call: Call) -> Any:
    """Units x the shape of one unit's output, with its units where the model would have put them."""
    if not isinstance(stacked, Tensor):
        return stacked
    shape = stacked.shape[1:]
    for dim in dict.fromkeys((0, call.dim)):
        if len(shape) > dim and shape[dim] == 1:
            return stacked.squeeze(dim + 1).movedim(0, dim)
    raise RefusedError(
        "This model",
        f"called with one example, an output has the shape {tuple(shape)}, which has no place for the batch.",
        "Return the outputs row by row, and compute the loss outside the model.",
    )
