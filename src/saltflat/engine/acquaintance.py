"""A look at a model through one of its calls: may it be trained, and can the tape follow it?

`saltflat.engine.probe` wants a loss a row. A call whose loss somebody else computes gets one made up: a fixed
combination of all numbers in a row of the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from saltflat.engine.batch import Facts
from saltflat.engine.calling import untouched
from saltflat.engine.one_call import Call, Known
from saltflat.engine.probe import examine, is_apart, refuse_by_name
from saltflat.errors import RefusedError


class Acquaintance:
    """What is known about a model, by the form of its calls; the first call of a form is looked at closely."""

    def __init__(self) -> None:
        self._known: dict[Any, Known] = {}

    def with_call(self, call: Call) -> Known:
        """What is known about calls like this one. Refuses a model that mixes examples."""
        trainable = tuple(p.requires_grad for p in call.model.parameters())
        form = call.form(), trainable
        general = self._known.get(form)
        # Where a unit has one row throughout, other sizes of the input change nothing that was looked at.
        if general is not None and (general.facts.off_tape or general.facts.ratios in (None, frozenset({1}))):
            return general
        exact = form, call.sizes()
        if exact not in self._known:
            self._known[exact] = _looked_at(call)
        self._known.setdefault(form, self._known[exact])
        return self._known[exact]


def _looked_at(call: Call) -> Known:
    refuse_by_name(call.model)
    by_rows = _ByRows(call)
    if call.dim:  # every unit is run on its own: none can see another
        return Known(Facts(off_tape=True), together=by_rows.is_apart())
    by_rows.find_places()
    targets = torch.zeros(call.units, device=by_rows.rows[0].device)
    facts = examine(by_rows, _made_up_losses, by_rows.rows, targets)
    return Known(facts, rowwise=False if by_rows.turned else None)


class _ByRows(nn.Module):
    """The model as a function of its rows alone, with the units first in them and in its outputs."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.model, self._call = call.model, call
        self.rows = tuple(call.leaves[i].detach().movedim(call.dim, 0) for i in call.rows_at)
        self._places: list[int] | None = None  # where the model has the units of each output, if not first

    @property
    def turned(self) -> bool:
        """Whether an output has its units elsewhere than in the first dimension: the states of an LSTM, say."""
        return any(self._places or ())

    def is_apart(self) -> bool:
        """Whether a model whose units are not in the first dimension is seen to keep them apart."""
        self.find_places()
        return bool(self._places) and is_apart(self, self.rows)

    def find_places(self) -> None:
        """See where the units of each output are, if all of them have some."""
        try:
            self._places = self._learned([rows[torch.arange(3) % len(rows)] for rows in self.rows]) or None
        except (RuntimeError, ValueError, IndexError, AssertionError):
            self._places = None

    def _learned(self, three: list[Tensor]) -> list[int]:
        """In which dimension of each output the units are: its size follows their number. None unless all have one."""
        with torch.no_grad(), untouched(self.model):
            two, all_three = self._outputs([rows[:2] for rows in three]), self._outputs(three)
        found = [
            [d for d, (a, b) in enumerate(zip(few.shape, more.shape)) if (a, b) == (2, 3)]
            for few, more in zip(two, all_three)
        ]
        return [dims[0] for dims in found] if all(len(dims) == 1 for dims in found) else []

    def _outputs(self, rows: Sequence[Tensor]) -> list[Tensor]:
        turned = {i: t.movedim(0, self._call.dim) for i, t in zip(self._call.rows_at, rows)}
        out = self._call.filled(self.model, turned)
        return [t for t in tree_flatten(out)[0] if isinstance(t, Tensor) and t.is_floating_point()]

    def forward(self, *rows: Tensor) -> dict[str, Tensor]:
        found = self._outputs(rows)
        if self._places is not None:
            found = [t.movedim(place, 0) for t, place in zip(found, self._places)]
        own = {str(i): t for i, t in enumerate(found) if t.dim() > 0 and len(t) == len(rows[0])}
        if not own:
            raise RefusedError(
                "This model",
                "none of its outputs has one row per example in the first dimension.",
                "Return a tensor whose first dimension is the batch, and compute the loss outside the model.",
            )
        return own


def _made_up_losses(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    total = torch.zeros_like(targets)
    for place, rows in outputs.items():
        flat = rows.reshape(len(rows), -1)
        count = torch.arange(flat.shape[1], device=flat.device, dtype=flat.dtype)
        total = total + (flat * torch.cos(count * 0.7 + int(place))).sum(1) / math.sqrt(flat.shape[1])
    return total
