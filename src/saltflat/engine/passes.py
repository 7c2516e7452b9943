"""Forward passes whose loss somebody else computes: the engine inside a training loop that is not its own.

`clipped_sum` runs forward and backward at once. A loop of the usual form calls the model, then a loss, then
``loss.backward()``. Here the model's call becomes one node of the caller's autograd graph. What happens in
it is the tape's, in micro-batches and lanes; when the backward pass arrives at the node with the gradients of the
outputs, each micro-batch runs its own backward pass and leaves the uses of its weights, or at once their
clipped sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from saltflat.engine import lanes
from saltflat.engine.apart import run_apart
from saltflat.engine.calling import (
    autocast_type,
    holding,
    in_full_precision,
    shortened,
    without_compilation,
)
from saltflat.engine.clipped_sum import add_clipped, add_to, weigh
from saltflat.engine.clipping import ClippingFunction
from saltflat.engine.micro_batch import micro_batches
from saltflat.engine.one_call import Back, Call, Known, Part, Uses, asks
from saltflat.engine.tape import OffTapeError, Tape
from saltflat.engine.uses import DirectUse, merged
from saltflat.engine.workspace import Workspace
from saltflat.errors import RefusedError
from saltflat.heap import keep_freed_memory


@dataclass(frozen=True)
class Clip:
    """How gradients are to be clipped: a function, its norm, and what tells two of them apart."""

    function: ClippingFunction = field(compare=False)
    norm: float
    key: Any


class Pass:
    """One call of a model, forward and backward.

    ``clip`` is asked in the backward pass how to clip; where it gives None, the uses are kept instead of a sum.
    ``arrived`` is called when the backward pass is over. Gradients of outputs are multiplied by ``scale()`` first:
    a mean over n rows becomes a sum. ``weights`` are used in place of the parameters' own, if given.
    """

    def __init__(
        self,
        call: Call,
        parameters: Sequence[nn.Parameter],
        known: Known,
        *,
        scale: Callable[[], float],
        clip: Callable[[], Clip | None],
        arrived: Callable[[Pass], None],
        weights: Sequence[Tensor] | None = None,
    ) -> None:
        self.call, self.parameters, self.known, self.scale = call, list(parameters), known, scale
        self._clip, self._arrived, self.weights = clip, arrived, weights
        self.device = self.parameters[0].device
        self.short = autocast_type(self.device)
        self.chance = torch.get_rng_state() if known.facts.draws is not False else None
        self.parts: list[Part] = []
        self._taken: list[Workspace] = []
        self.grads: list[Tensor] = []  # of the outputs, once they are known
        self.wanted: list[int] = []  # which outputs have one
        # After the backward pass: the uses of each micro-batch in order, or their clipped sums and norms.
        self.uses: list[tuple[int, Uses]] = []
        self.clipped: tuple[Clip, dict[int, Tensor], Tensor] | None = None

    # --- forward --------------------------------------------------------------------------------

    def forward(self) -> Any:
        """The model's outputs, as part of the caller's graph."""
        with holding(self.parameters, self.weights):
            self.parts = self._run_all()
        first = self.parts[0]
        floating = [i for i, t in enumerate(first.everything) if asks(t)]
        joined = [self._joined(i) for i in range(len(first.everything))]
        asking = [self.call.leaves[i] for i in self.call.rows_at if self.call.leaves[i].requires_grad]
        anchor = torch.zeros((), requires_grad=True, device=self.parameters[0].device)
        nodes = _Node.apply(self, [joined[i] for i in floating], anchor, *asking)
        for i, node in zip(floating, nodes):
            joined[i] = node
        return tree_unflatten(joined, first.spec)

    def _joined(self, leaf: int) -> Any:
        values = [(part.shown or part.everything)[leaf] for part in self.parts]
        if len(values) == 1:
            return values[0].detach() if isinstance(values[0], Tensor) else values[0]
        return torch.cat([value.detach() for value in values])

    def _run_all(self) -> list[Part]:
        facts, units = self.known.facts, self.call.units
        keep_freed_memory()
        facts.layouts.clear()  # the weights have changed since
        if facts.one_lane is None or not self.known.rowwise or facts.off_tape or self.call.dim:
            before = torch.get_rng_state()
            found = self._run_some([self.call.model], 0, [slice(0, units)])
            if facts.draws is None:
                facts.note_draws(before, self.call.model)
                self.known.rowwise = self.known.rowwise is not False and all(
                    isinstance(t, Tensor) and t.dim() > 0 and len(t) == units for t in found[0].everything
                )
            return found
        size, many = self._sizes()
        slices = [part.rows for part in micro_batches(units, size, many, 1, not facts.is_small(units))]
        models = lanes.copies(self.call.model, many) if many > 1 else [self.call.model]
        try:
            if models is not None:
                return lanes.dealt(partial(self._run_some, models), slices, many)
        except lanes.SharedRowsError:
            pass
        facts.one_lane = True
        return self._run_all()

    def _sizes(self) -> tuple[int, int]:
        """How many units a micro-batch has, and how many lanes there are."""
        facts, units = self.known.facts, self.call.units
        alone = facts.one_lane or facts.is_small(units)
        many = 1 if alone else min(lanes.lane_count(self.parameters), units)
        if facts.draws:  # random draws would depend on how the rows are dealt out
            return units, 1
        return facts.fitting_units(many, self.device), many

    def _run_some(self, models: Sequence[nn.Module], lane: int, slices: Sequence[slice]) -> list[Part]:
        spare = self.known.facts.workspaces
        workspace = spare.pop() if spare else Workspace(self.known.facts.layouts)
        workspace.notes.clear()
        self._taken.append(workspace)
        return [self._run(models[lane], rows, workspace, len(models) > 1) for rows in slices]

    def _run(self, model: nn.Module, rows: slice, workspace: Workspace, in_company: bool) -> Part:
        facts = self.known.facts
        if facts.off_tape or self.call.dim or (facts.needs_company and rows.stop - rows.start == 1):
            return self._run_apart(rows)
        inputs = self.call.some(rows)
        tape = Tape(self.parameters, rows.stop - rows.start, workspace, in_company, facts.weighing)
        tape.mark(inputs.values())
        try:
            with torch.enable_grad(), shortened(self.device, self.short), without_compilation(model), tape:
                out = self.call.filled(model, inputs)
        except OffTapeError:
            facts.off_tape = True
            return self._run_apart(rows)
        everything, spec = tree_flatten(out)

        def back(grads: list[Tensor], wanted: list[Tensor], keep: bool) -> Back | None:
            asked = [t for t in inputs.values() if t.requires_grad]
            pulled = tape.pulled_to(asked, wanted, grads, keep)
            if pulled is None:
                return None
            uses = tape.collected()
            if facts.weighing is not None:
                weigh({str(key): use for key, use in uses.items()}, rows.stop - rows.start, facts)
            return uses, pulled

        return Part(rows, spec, everything, back)

    def _run_apart(self, rows: slice) -> Part:
        """Every unit with weights of its own: by vmap, or one after the other."""
        with shortened(self.device, self.short):
            return run_apart(self.call, self.parameters, rows, self.known.together)

    # --- backward -------------------------------------------------------------------------------

    def backward(self, grads: Sequence[Tensor | None], keep_graph: bool) -> list[Tensor | None]:
        """From the gradients of the outputs to those of the inputs; uses or clipped sums stay behind."""
        self.wanted = [i for i, grad in enumerate(grads) if grad is not None]
        scale = self.scale()
        self.grads = [grad.detach() * scale for grad in grads if grad is not None]
        clip = self._clip()
        with holding(self.parameters, self.weights):
            many = 1 if self.known.facts.one_lane else lanes.lane_count(self.parameters)
            work = partial(self._all_back, clip, keep_graph)
            done = lanes.dealt(work, self.parts, min(many, len(self.parts)))
        if clip is None:
            self.uses = [(part.units, uses) for part, (uses, _, _) in zip(self.parts, done)]
        else:
            self.uses = []
            sums: dict[int, Tensor] = {}
            for _, (part_sums, _), _ in done:
                add_to(sums, part_sums)
            self.clipped = clip, sums, torch.cat([norms for _, (_, norms), _ in done])
        if not keep_graph:
            self.parts = []
            self.known.facts.workspaces.extend(self._taken)
            self._taken = []
        self._arrived(self)
        columns = zip(*[inputs for _, _, inputs in done])
        return [None if column[0] is None else torch.cat(column) / scale for column in columns]

    def _all_back(self, clip: Clip | None, keep_graph: bool, lane: int, parts: Sequence[Part]) -> list[Any]:
        return [self._go_back(clip, keep_graph, part) for part in parts]

    def _go_back(self, clip: Clip | None, keep_graph: bool, part: Part) -> Any:
        """The uses of one part, or at once their clipped sum and norms; and the gradients of its inputs."""
        alone, outputs = len(self.parts) == 1, part.outputs
        grads = [grad if alone else grad[part.rows] for grad in self.grads]
        with in_full_precision(self.device):
            found = part.back(grads, [outputs[i] for i in self.wanted], keep_graph)
            if found is None:
                self.known.facts.off_tape = True
                found = self._again(part, grads)
            uses, inputs = found
            if clip is None:
                return uses, None, inputs
            return None, clipped_uses(self.parameters, uses, part.units, clip), inputs

    def _again(self, part: Part, grads: list[Tensor]) -> Back:
        """What escaped the tape, computed unit by unit."""
        if not self.known.rowwise:
            raise RefusedError(
                "This model",
                "an operation hides its gradients from the engine, and an output is not one row per example.",
                "Return the outputs row by row, and compute the loss outside the model.",
            )
        apart = self._run_apart(part.rows)
        found = apart.back(grads, [apart.outputs[i] for i in self.wanted], False)
        assert found is not None
        return found

    # --- afterwards -----------------------------------------------------------------------------

    def kept(self) -> list[tuple[int, Uses]]:
        """The uses of each micro-batch; computed again if only their sum was kept."""
        if self.clipped is None:
            return self.uses
        again = Pass(
            self.call, self.parameters, replace(self.known, together=False), scale=self.scale, clip=lambda: None,
            arrived=lambda _: None, weights=self.weights,
        )  # fmt: skip
        again.short = self.short
        with torch.random.fork_rng(devices=[]), holding(self.parameters, self.weights):
            if self.chance is not None:
                torch.set_rng_state(self.chance)
            again.parts = again._run_all()
            again.wanted, again.grads = self.wanted, self.grads
            return [(part.units, again._go_back(None, False, part)[0]) for part in again.parts]


class _Node(torch.autograd.Function):
    """The model's call in the caller's graph."""

    @staticmethod
    def forward(ctx: Any, run: Pass, outputs: list[Tensor], anchor: Tensor, *inputs: Tensor) -> Any:
        ctx.run = run
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        keep = bool(torch._C._autograd._get_current_graph_task_keep_graph())
        run: Pass = ctx.run
        if not run.parts:
            raise RuntimeError(
                "The graph of the model's call was freed by an earlier backward pass; "
                "call backward(retain_graph=True) there."
            )
        if all(grad is None for grad in grads):
            return None, None, None, *[None] * (len(ctx.needs_input_grad) - 3)
        return None, None, None, *run.backward(grads, keep)


def clipped_uses(
    parameters: Sequence[nn.Parameter], uses: Uses, units: int, clip: Clip
) -> tuple[dict[int, Tensor], Tensor]:
    """The clipped sum of a micro-batch by parameter id, and each unit's norm; the uses are used up."""
    named = {str(i): p for i, p in enumerate(parameters)}
    own = {name: uses.pop(id(p)) for name, p in named.items() if id(p) in uses}
    sums: dict[str, Tensor] = {}
    with in_full_precision(parameters[0].device):
        norms = add_clipped(sums, named, own, units, clip.norm, clip.function)
    return {id(named[name]): value for name, value in sums.items()}, norms


def merged_passes(
    parameters: Sequence[nn.Parameter], passes: Sequence[list[tuple[int, Uses]]]
) -> list[tuple[int, Uses]]:
    """Several calls on the same units, as one: unit i's gradient is the sum over the calls."""
    if len(passes) == 1:
        return passes[0]
    if all(len(parts) == 1 and parts[0][0] == passes[0][0][0] for parts in passes):
        units = passes[0][0][0]
        joined: Uses = {}
        for p in parameters:
            own = [parts[0][1][id(p)] for parts in passes if id(p) in parts[0][1]]
            if own:
                joined[id(p)] = merged(own)
        return [(units, joined)]
    units = max(sum(count for count, _ in parts) for parts in passes)
    total: Uses = {}
    for p in parameters:
        grads = p.new_zeros(units, *p.shape)
        for parts in passes:
            own_grads = gradients_in(p, parts)
            grads[: len(own_grads)] += own_grads
        total[id(p)] = DirectUse(grads, rule="several calls")
    return [(units, total)]


def gradients_in(parameter: nn.Parameter, parts: Sequence[tuple[int, Uses]]) -> Tensor:
    """The gradients of one parameter, one row a unit."""
    rows = []
    with torch.no_grad(), in_full_precision(parameter.device):
        for units, uses in parts:
            use, shape = uses.get(id(parameter)), (units, *parameter.shape)
            rows.append(parameter.new_zeros(shape) if use is None else use.gradients().reshape(shape))
    return torch.cat(rows) if len(rows) > 1 else rows[0]
