"""Units with weights of their own: for calls that the tape cannot follow, or that keep the units elsewhere.

Each unit gets the weights as a view of its own, and torch.func runs all units at once; where it cannot, the units
are run one after the other. Slower than the tape, and right for any model that accepts a single unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_flatten, tree_unflatten

from saltflat.engine.calling import untouched
from saltflat.engine.fallback import vmapped
from saltflat.engine.one_call import Back, Call, Part, Uses
from saltflat.engine.uses import DirectUse
from saltflat.errors import RefusedError


def run_apart(call: Call, parameters: Sequence[nn.Parameter], rows: slice, together: bool = False) -> Part:
    """Run some units of a call, each on its own.

    With ``together``, the caller is shown the outputs of one run of all units, as an ordinary call would have
    them: a loss then has the gradients that it has there, to the bit. Only for models that do not mix units.
    """
    inputs, units = call.some(rows), rows.stop - rows.start
    own = {id(p) for p in parameters}
    trainable = {name: p for name, p in call.model.named_parameters() if id(p) in own}
    with torch.enable_grad():
        weights = {name: p.detach().expand(units, *p.shape).requires_grad_() for name, p in trainable.items()}
        before = torch.get_rng_state()
        try:
            single = partial(_single, call)
            singles = vmapped(single, in_dims=(0, call.dim), randomness="different")(weights, inputs)
        except (RuntimeError, ValueError, NotImplementedError):
            # no batching rule, or control flow that depends on the data
            torch.set_rng_state(before)
            singles = _one_by_one(call, weights, inputs, units)
        leaves, spec = tree_flatten(singles)
        places = _places(call, inputs, leaves)
        everything = [_in_place(leaf, place) for leaf, place in zip(leaves, places)]

    def back(grads: list[Tensor], wanted: list[Tensor], keep: bool) -> Back:
        asked = [*weights.values(), *(t for t in inputs.values() if t.requires_grad)]
        found = torch.autograd.grad(wanted, asked, grads, retain_graph=keep, allow_unused=True)
        uses: Uses = {
            id(p): DirectUse(grad, rule="unit by unit")
            for p, grad in zip(trainable.values(), found)
            if grad is not None
        }
        return uses, list(found[len(weights) :])

    shown = _shown_together(call, inputs, everything) if together else None
    return Part(rows, spec, everything, back, shown)


def _shown_together(call: Call, inputs: dict[int, Tensor], everything: list[Any]) -> list[Any] | None:
    """The outputs of one run of all units; None where they are others, as where the model draws at random."""
    found = _together(call, inputs)
    for whole, single in zip(found, everything, strict=True):
        if not isinstance(single, Tensor):
            continue
        if not isinstance(whole, Tensor) or whole.shape != single.shape or whole.dtype != single.dtype:
            return None
        if not torch.allclose(whole, single.detach(), rtol=1e-3, atol=1e-5, equal_nan=True):
            return None
    return found


def _together(call: Call, inputs: dict[int, Tensor]) -> list[Any]:
    with torch.no_grad(), untouched(call.model):
        return tree_flatten(call.filled(call.model, inputs))[0]


def _one_by_one(call: Call, weights: dict[str, Tensor], inputs: dict[int, Tensor], units: int) -> Any:
    rows = []
    for unit in range(units):
        own = {name: weight[unit] for name, weight in weights.items()}
        rows.append(_single(call, own, {key: t.select(call.dim, unit) for key, t in inputs.items()}))
    flat = [tree_flatten(row) for row in rows]
    columns = zip(*[leaves for leaves, _ in flat])
    stacked = [torch.stack(list(c)) if isinstance(c[0], Tensor) else c[0] for c in columns]
    return tree_unflatten(stacked, flat[0][1])


def _single(call: Call, own: dict[str, Tensor], values: dict[int, Tensor]) -> Any:
    """The outputs of one unit, with the dimension of the units left in."""
    alone = {key: value.unsqueeze(call.dim) for key, value in values.items()}
    with _reparametrize_module(call.model, own, tie_weights=True):
        return call.filled(call.model, alone)


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
    return [
        next((dim for dim in places if len(places) > 1 and len(leaf) == whole.shape[dim]), places[0])
        for leaf, whole, places in zip(stacked, _together(call, inputs), found)
    ]


def _in_place(stacked: Any, place: int) -> Any:
    """Units x the shape of one unit's output, with its units where the model would have put them."""
    return stacked.squeeze(place + 1).movedim(0, place) if isinstance(stacked, Tensor) else stacked
