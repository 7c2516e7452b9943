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

from saltflat.engine.calling import untouched
from saltflat.engine.one_call import Call, Part, Uses
from saltflat.engine.uses import DirectUse
from saltflat.errors import RefusedError


def run_apart(call: Call, parameters: Sequence[nn.Parameter], rows: slice, together: bool = False) -> Part:
    """Run some units of a call, each on its own.

    With ``together``, the caller is shown the outputs of one run of all units, as an ordinary call would have
    them: a loss then has the gradients that it has there, to the bit. Only for models that do not mix units.
    """
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
        places = _places(call, inputs, leaves)
        everything = [_in_place(leaf, place) for leaf, place in zip(leaves, places)]
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

    shown = _together(call, inputs, everything) if together else None
    return Part(rows, inputs, outputs, spec, everything, back, shown)


def _together(call: Call, inputs: dict[int, Tensor], everything: list[Any]) -> list[Any] | None:
    """The outputs of one run of all units; None where they are others, as where the model draws at random."""
    with torch.no_grad(), untouched(call.model):
        found, _ = tree_flatten(call.filled(call.model, inputs))
    for whole, single in zip(found, everything, strict=True):
        if not isinstance(single, Tensor):
            continue
        if not isinstance(whole, Tensor) or whole.shape != single.shape or whole.dtype != single.dtype:
            return None
        if not torch.allclose(whole, single.detach(), rtol=1e-3, atol=1e-5, equal_nan=True):
            return None
    return found


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


def _places(call: Call, inputs: dict[int, Tensor], stacked: list[Any]) -> list[int]:
    """In which dimension of each output the model puts its units, seen from outputs of one unit each."""
    found = [
        [dim for dim in dict.fromkeys((0, call.dim)) if leaf.dim() > dim + 1 and leaf.shape[dim + 1] == 1]
        if isinstance(leaf, Tensor) else [0]
        for leaf in stacked
    ]  # fmt: skip
    for leaf, places in zip(stacked, found):
        if not places:
            raise RefusedError(
                "This model",
                f"called with one example, an output has the shape {tuple(leaf.shape[1:])}, "
                "which has no place for the batch.",
                "Return the outputs row by row, and compute the loss outside the model.",
            )
    if all(len(places) == 1 for places in found):
        return [places[0] for places in found]
    # A sequence of length one looks like a second batch of one: all units together tell the two apart.
    with torch.no_grad(), untouched(call.model):
        together, _ = tree_flatten(call.filled(call.model, inputs))
    return [
        next((dim for dim in places if len(places) > 1 and len(leaf) == whole.shape[dim]), places[0])
        for leaf, whole, places in zip(stacked, together, found)
    ]


def _in_place(stacked: Any, place: int) -> Any:
    """Units x the shape of one unit's output, with its units where the model would have put them."""
    return stacked.squeeze(place + 1).movedim(0, place) if isinstance(stacked, Tensor) else stacked
