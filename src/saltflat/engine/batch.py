"""A logical batch, and how the weights were used by the units of one part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.engine.calling import (
    call_model,
    check_losses,
    has_compiled_parts,
    leaves,
    shortened,
    take,
    without_compilation,
)
from saltflat.engine.fallback import example_by_example
from saltflat.engine.frame import Frame
from saltflat.engine.micro_batch import power_of_two
from saltflat.engine.tape import OffTapeError, Tape
from saltflat.engine.uses import Use
from saltflat.engine.views import Views
from saltflat.engine.workspace import Layouts, Workspace
from saltflat.errors import InputError

# What the records of all lanes may hold together: bounded on a machine with many cores.
MICRO_BATCH_BYTES = 512 * 2**20
LEAST_MICRO_BATCH, LARGEST_MICRO_BATCH = 16, 4096
# What the activations and records of a lane may hold: with more, the way back finds less of the way forward in the
# caches. Measured over nine models: none gains from more than this, or from more units if these hold more.
LANE_BYTES, ENOUGH_UNITS = 128 * 2**20, 64
# A batch whose records, and half of whose activations, are smaller is left to one lane.
WORTH_LANES = 32 * 2**20

LossFunction = Callable[[Any, Tensor], Tensor]


@dataclass
class Facts:
    """What was learned about a model on one shape of input."""

    micro_batch: int | None = None  # units in a lane at a time
    unit_bytes: int = 0  # what the records of one unit hold
    unit_activations: int = 0  # what its activations hold
    crowding: float = 1.0  # how many times the activations one unit takes, with its records
    weighing: dict[int, int] | None = field(default_factory=dict)  # activations by address, at first sight
    draws: bool | None = None  # random numbers, in a forward pass
    compiled: bool | None = None  # whether torch compiled parts of it
    one_lane: bool | None = None  # because it draws, or cannot be copied, or has compiled parts
    off_tape: bool = False
    needs_company: bool = False  # the model does not take a batch of one
    ratios: frozenset[int] | None = None  # how many rows a unit has where it meets weights
    examined: bool = False
    workspaces: list[Workspace] = field(default_factory=list)  # those that nobody uses at the moment
    layouts: Layouts = field(default_factory=dict)  # of weights, for all workspaces

    def is_small(self, units: int) -> bool:
        """Whether as many units are done before a second lane has begun."""
        return units * max(self.unit_bytes, self.unit_activations // 2) < WORTH_LANES

    def fitting_units(self, lanes: int, device: torch.device) -> int:
        """How many units a lane may take at a time: a power of two, not below what the matrix products need."""
        fits = MICRO_BATCH_BYTES // lanes // max(self.unit_bytes, 1)
        if device.type == "cpu":
            held = max(self.unit_bytes, int(self.unit_activations * self.crowding), 1)
            fits = min(fits, max(LANE_BYTES // held, ENOUGH_UNITS))
        return max(min(power_of_two(fits), LARGEST_MICRO_BATCH), LEAST_MICRO_BATCH)

    def note_draws(self, before: Tensor, model: nn.Module) -> None:
        """Whether the model has drawn since the generator was in this state: draws would fall to lanes by chance."""
        self.draws = not torch.equal(before, torch.get_rng_state())
        self.one_lane = self.draws or has_compiled_parts(model)


@dataclass(frozen=True)
class Batch:
    """All rows of a step, with what turns them into losses.

    ``each`` rows in a row are one unit. With ``displacements``, view k of each row is taken at weights moved
    by the k-th of them. A ``frame`` shifts and scales each unit's gradient before it is clipped.
    """

    model: nn.Module
    loss_fn: LossFunction
    inputs: Any
    targets: Tensor
    each: int = 1
    row_weights: Tensor | None = None
    displacements: Sequence[Mapping[str, Tensor]] | None = None
    frame: Frame | None = None
    in_company: bool = False  # of other lanes
    short: torch.dtype | None = None  # what autocast makes of the forward pass

    def signature(self, trainable: Iterable[str]) -> Any:
        """What the facts about a model depend on."""
        shapes = tuple([(t.shape[1:], t.dtype) for t in leaves(self.inputs)])
        modules = tuple([(type(m), m.training, m._compiled_call_impl is None) for m in self.model.modules()])
        formed = self.displacements is not None, self.frame is not None  # gradients are then kept one by one
        # A loss function that is made anew for each step has the same code.
        code = getattr(self.loss_fn, "__code__", type(self.loss_fn))
        return shapes, modules, tuple(trainable), formed, code

    @torch.no_grad()
    def uses(
        self, parameters: dict[str, nn.Parameter], part: slice, facts: Facts, workspace: Workspace
    ) -> dict[str, Use]:
        """How each parameter was used by the units of one part of the rows."""
        if facts.draws is not False:  # weights may be made in another way each time
            workspace.notes.clear()
        if self.displacements is None:
            uses = self._uses(parameters, part, facts, workspace)
        else:
            uses = self._uses_over_views(parameters, part, facts, workspace, self.displacements)
        if self.frame is None:
            return uses
        return self.frame.applied(parameters, uses, (part.stop - part.start) // self.each)

    def _uses_over_views(
        self,
        parameters: dict[str, nn.Parameter],
        part: slice,
        facts: Facts,
        workspace: Workspace,
        displacements: Sequence[Mapping[str, Tensor]],
    ) -> dict[str, Use]:
        """One pass a view, each at weights of its own; a unit's gradient is the sum over its views."""
        views = len(displacements)
        if views == 0 or self.each % views:
            wanted = f"a number of views that divides rows_per_unit={self.each}"
            raise InputError("displacements", views, wanted)
        found = Views()
        for view, displacement in enumerate(displacements):
            rows = slice(part.start + view, part.stop, views)
            weights = None if self.row_weights is None else self.row_weights[rows]
            seen = replace(
                self, inputs=take(self.inputs, rows), targets=self.targets[rows], each=self.each // views,
                row_weights=weights, displacements=None, frame=None,
            )  # fmt: skip
            before = {name: p.detach().clone() for name, p in parameters.items()}
            try:
                for name, p in parameters.items():
                    p.add_(displacement[name])
                uses = seen._uses(parameters, slice(0, len(seen.targets)), facts, workspace)
                found.add(uses)  # while the weights are those of the view
            finally:
                for name, p in parameters.items():
                    p.copy_(before[name])
        return found.merged()

    def _uses(
        self, parameters: dict[str, nn.Parameter], part: slice, facts: Facts, workspace: Workspace
    ) -> dict[str, Use]:
        units = (part.stop - part.start) // self.each
        collected: dict[int, Any] | None = None
        alone = facts.needs_company and part.stop - part.start == 1
        if not facts.off_tape and not alone:
            collected = self._on_tape(list(parameters.values()), part, units, facts, workspace)
            facts.off_tape = collected is None
        if collected is None:

            def losses_of(rows: slice) -> Tensor:
                own = slice(part.start + rows.start, part.start + rows.stop)
                return self.losses(own, facts, facts.needs_company)

            collected = example_by_example(list(parameters.values()), losses_of, units, self.each)
        return {name: collected[id(p)] for name, p in parameters.items() if id(p) in collected}

    def _on_tape(
        self, parameters: list[nn.Parameter], part: slice, units: int, facts: Facts, workspace: Workspace
    ) -> dict[int, Use] | None:
        tape = Tape(parameters, units, workspace, self.in_company, facts.weighing)
        try:
            losses = self.losses(part, facts, tape=tape)
            # Rows that were counted otherwise when the model was examined: they depend on the data.
            each = (part.stop - part.start) // units
            known = None if facts.ratios is None else {ratio * each for ratio in facts.ratios}
            if known is not None and units > 1 and not tape.ratios <= known:
                return None
            return tape.collected() if tape.backward(losses) else None
        except OffTapeError:
            return None

    def losses(self, part: slice, facts: Facts, company: bool = False, tape: Tape | None = None) -> Tensor:
        """One loss a row, with the tape watching if there is one; a single row may need a copy as company."""
        company = company and part.stop - part.start == 1
        rows = torch.tensor([part.start, part.start]) if company else part
        inputs, targets = take(self.inputs, rows), self.targets[rows]
        if tape is not None:
            tape.mark([*leaves(inputs), targets])
        if facts.compiled is None:
            facts.compiled = has_compiled_parts(self.model)
        eagerly = without_compilation(self.model) if facts.compiled else nullcontext()
        with torch.enable_grad():
            with shortened(targets.device, self.short), eagerly, tape or nullcontext():
                losses = self.loss_fn(call_model(self.model, inputs), targets)
            check_losses(losses, targets.shape[0])
            losses = losses[:1] if company else losses
            return losses if self.row_weights is None else losses * self.row_weights[part]
