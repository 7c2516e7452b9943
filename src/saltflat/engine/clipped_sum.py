"""`clipped_sum`: the one way in which private data becomes a vector."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from saltflat.engine import lanes
from saltflat.engine import rules as _rules
from saltflat.engine.batch import WORTH_LANES, Batch, Facts, LossFunction
from saltflat.engine.calling import autocast_type, in_full_precision, untouched
from saltflat.engine.clipping import ClippingFunction, SquaredNorms, flat, total_norm
from saltflat.engine.frame import Frame
from saltflat.engine.micro_batch import MicroBatch, micro_batches
from saltflat.engine.probe import examine
from saltflat.engine.uses import Use
from saltflat.engine.workspace import Workspace
from saltflat.errors import InputError, check_count
from saltflat.heap import keep_freed_memory

assert _rules  # importing them registers them

K = TypeVar("K")
# A first look at a model takes as many units: enough to see what a unit holds, and too few to need memory.
LEARNING_UNITS = 16
# A gradient longer than this counts as not finite: the factor that would shorten it has lost its digits.
LONGEST = 1e30


@dataclass(frozen=True)
class ClippedSum:
    """The sum of clipped per-unit gradients, before noise. Nothing in it is private yet.

    ``grads`` maps each trainable parameter's name to its part of the sum; a tied parameter goes by its first
    name. ``norms`` holds each unit's gradient norm before the clip: **not private**, never to be shown or
    stored in a private run. ``rules`` names the rule that each parameter went through.
    """

    grads: dict[str, Tensor]
    norms: Tensor = field(repr=False)
    rules: dict[str, str] = field(default_factory=dict, repr=False)


_facts: weakref.WeakKeyDictionary[nn.Module, dict[Any, Facts]] = weakref.WeakKeyDictionary()


def clipped_sum(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Tensor,
    clip_norm: float,
    *,
    clipping: ClippingFunction = flat,
    rows_per_unit: int = 1,
    row_weights: Tensor | None = None,
    displacements: Sequence[Mapping[str, Tensor]] | None = None,
    frame: Frame | None = None,
    micro_batch: int | None = None,
    check: bool = True,
) -> ClippedSum:
    """Sum the gradients of all examples, each clipped to ``clip_norm`` as one vector.

    ``loss_fn(outputs, targets)`` gives one loss per example. ``inputs`` is a tensor, a tuple or a dict of
    tensors with the examples in the first dimension; the model is called with it, ``*``\\ it or ``**``\\ it.

    Several rows can belong to one unit: with ``rows_per_unit=k``, rows i·k … i·k+k−1 are unit i, their
    losses are added (times ``row_weights``), and the unit is clipped once. With K ``displacements`` of the
    weights, view k of each row (rows k, k + K, k + 2K …) is taken at weights moved by ``displacements[k]``.
    A ``frame`` shifts and scales each unit's gradient before the clip, by public numbers: then the sum is that
    of the shifted and scaled gradients, and ``norms`` are theirs.

    Guarantees: adding or removing one unit moves the sum by at most ``clip_norm``, whatever the unit holds;
    a unit whose gradient is not finite contributes zero. Memory depends on the micro-batch, not on the batch.

    References: Abadi et al. 2016; one backward pass as in Bu et al. 2023.

    >>> model = nn.Linear(3, 2)
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> total = clipped_sum(model, loss, torch.randn(8, 3), torch.zeros(8, dtype=torch.long), clip_norm=0.5)
    >>> sorted(total.grads), total.norms.shape
    (['bias', 'weight'], torch.Size([8]))
    """
    if isinstance(clip_norm, bool) or not clip_norm > 0:
        raise InputError("clip_norm", clip_norm, "clip_norm > 0 (float('inf') for no clipping)")
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise InputError("model", model, "at least one parameter with requires_grad=True", problem="has none")
    for name, p in parameters.items():
        if p.dtype in (torch.float16, torch.bfloat16):
            raise InputError(
                "model", f"{name} in {p.dtype}", "trainable parameters in float32 or float64",
                problem="is too short to bound a sum by",
                cure="Keep the weights in float32 and let torch.autocast shorten the activations.",
            )  # fmt: skip
    core: nn.Module = getattr(model, "_orig_mod", model)  # torch.compile hides the operations
    rows = targets.shape[0]
    check_count("rows_per_unit", rows_per_unit)
    if micro_batch is not None:
        check_count("micro_batch", micro_batch)
    if rows % rows_per_unit:
        raise InputError("rows_per_unit", rows_per_unit, f"a divisor of the {rows} rows")
    short = autocast_type(next(iter(parameters.values())).device)
    batch = Batch(
        core, loss_fn, inputs, targets, rows_per_unit, row_weights, displacements, frame, short=short
    )
    known, signature = _facts.setdefault(model, {}), batch.signature(parameters)
    facts = known.setdefault(signature, Facts())
    if check and rows and not facts.examined:
        facts = known[signature] = examine(model, loss_fn, inputs, targets)
        facts.examined = rows >= 3  # fewer rows may look alike: look again at the next batch

    some = next(iter(parameters.values()))
    norms = torch.empty(rows // rows_per_unit, dtype=some.dtype.to_real(), device=some.device)
    adder = partial(_Adder, parameters, clip_norm, clipping, facts, norms)
    try:
        done = _in_turns(adder, batch, rows // rows_per_unit, micro_batch, facts)
    finally:
        facts.layouts.clear()  # the weights change before the next call
    sums: dict[str, Tensor] = {}
    for each in done:
        add_to(sums, each.sums)
    grads = {
        name: sums[name].contiguous() if name in sums else torch.zeros_like(p)
        for name, p in parameters.items()
    }
    names = {name: rule for each in done for name, rule in each.rules.items()}
    rules = {name: names.get(name, "unused") for name in parameters}
    return ClippedSum(grads, norms, rules)


class _Adder:
    """Adds up the clipped gradients of one micro-batch after the other, in one lane; ``norms`` are for all lanes."""

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        clip_norm: float,
        clipping: ClippingFunction,
        facts: Facts,
        norms: Tensor,
        batch: Batch,
    ) -> None:
        self.parameters, self.clip_norm, self.clipping = parameters, clip_norm, clipping
        self.facts, self.norms, self.batch = facts, norms, batch
        self.sums: dict[str, Tensor] = {}
        self.rules: dict[str, str] = {}

    def at_weights_of(self, model: nn.Module) -> _Adder:
        """The same weights under the same names, as a lane's own copy of the model holds them."""
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.parameters = dict(zip(self.parameters, trainable, strict=True))
        return self

    def add_all(self, parts: Sequence[MicroBatch], stop: threading.Event | None = None) -> _Adder:
        """Take these micro-batches in turn, unless another lane has failed."""
        spare = self.facts.workspaces
        workspace = spare.pop() if spare else Workspace(self.facts.layouts)
        workspace.notes.clear()  # the weights have changed since
        if len(parts) > 1:
            # What outlives a micro-batch is laid down before the first: among its activations it would keep the
            # space between two of them from ever being one again.
            self.sums = {name: torch.zeros_like(p.detach()) for name, p in self.parameters.items()}
        try:
            for part in parts:
                if stop is not None and stop.is_set():
                    break
                self.add(part, workspace)
        except BaseException:
            if stop is not None:
                stop.set()
            raise
        finally:
            workspace.notes.clear()
            spare.append(workspace)
        return self

    def add(self, part: MicroBatch, workspace: Workspace) -> None:
        """Add one micro-batch; autocast is for its forward pass alone."""
        with in_full_precision(next(iter(self.parameters.values())).device):
            self._add(part, workspace)

    def _add(self, part: MicroBatch, workspace: Workspace) -> None:
        uses = self.batch.uses(self.parameters, part.rows, self.facts, workspace)
        first, last = part.rows.start // self.batch.each, part.rows.stop // self.batch.each
        if self.facts.weighing is not None:
            weigh(uses, last - first, self.facts)
        self.rules |= {name: use.rule for name, use in uses.items()}
        norms = add_clipped(
            self.sums, self.parameters, uses, last - first, self.clip_norm, self.clipping, part.again
        )
        self.norms[first + part.again : last] = norms[part.again :]


def _in_turns(
    adder: Callable[[Batch], _Adder], batch: Batch, units: int, wanted: int | None, facts: Facts
) -> list[_Adder]:
    """All units, in micro-batches that are dealt out to as many lanes as the model and the machine allow."""
    keep_freed_memory()
    first = adder(batch)
    if facts.one_lane is None and units:
        _learn(adder(batch), batch, units, wanted, facts)
    alone = facts.one_lane or facts.is_small(units)
    many = 1 if alone else lanes.lane_count(list(first.parameters.values()))
    many = min(many, wanted or units, units)
    if many > 1:
        # Where each view moves the weights, every lane has weights of its own to move.
        models = lanes.copies(batch.model, many, own_weights=bool(batch.displacements))
        facts.one_lane = models is None
    if many > 1 and not facts.one_lane:
        size = _size(wanted, facts, many)
        parts = list(micro_batches(units, size, many, batch.each, few_sizes=True, fill=True))
        stop = threading.Event()
        company = [
            adder(replace(batch, model=model, in_company=True)).at_weights_of(model) for model in models or ()
        ]
        try:
            return [
                first,
                *lanes.run([partial(a.add_all, parts[i::many], stop) for i, a in enumerate(company)]),
            ]
        except lanes.SharedRowsError:
            facts.one_lane = True
    large = not facts.is_small(units)
    size = _size(wanted, facts, 1)
    return [first.add_all(list(micro_batches(units, size, 1, batch.each, few_sizes=large, fill=large)))]


def _size(wanted: int | None, facts: Facts, many: int) -> int:
    """How many units a lane takes at a time.

    Who asks for a micro-batch says how much memory there is: what an ordinary step over as many units takes.
    Where records on top of the activations would be much, fewer units are taken at once.
    """
    if wanted is None:
        return facts.micro_batch or 1
    much = wanted * facts.unit_bytes > WORTH_LANES
    return -(-max(1, int(wanted / facts.crowding if much else wanted)) // many)


def _learn(trial: _Adder, batch: Batch, units: int, wanted: int | None, facts: Facts) -> None:
    """Compute a few units to see what they take; nothing of it is used.

    So the micro-batches of a first call are those of every later one, and random draws the same.
    """
    count = min(LEARNING_UNITS, wanted or LEARNING_UNITS, units)
    before = torch.get_rng_state()
    with untouched(batch.model):
        trial.add(MicroBatch(slice(0, count * batch.each)), Workspace())
        facts.note_draws(before, batch.model)
    parameters = list(trial.parameters.values())
    facts.micro_batch = facts.fitting_units(lanes.lane_count(parameters), parameters[0].device)


@torch.no_grad()
def add_clipped(
    sums: dict[str, Tensor],
    parameters: dict[str, nn.Parameter],
    uses: dict[str, Use],
    units: int,
    clip_norm: float,
    clipping: ClippingFunction,
    again: int = 0,
) -> Tensor:
    """Add the clipped gradients of some units to the sums, and use up their uses; the norms before the clip.

    The first ``again`` units are not added.
    """
    known = {name: use.squared_norms() for name, use in uses.items()}
    if len(known) < len(parameters):  # a clipping function sees the same names each time, whatever was used
        zeros = torch.zeros_like(next(iter(known.values()))) if known else torch.zeros(units)
        known = {name: known.get(name, zeros) for name in parameters}
    squared = SquaredNorms(known)
    total = total_norm(squared)
    whole = total < LONGEST
    factors = clipping(squared, clip_norm)
    if again:
        counted = torch.arange(units, device=total.device) >= again
        factors = {name: factor.where(counted, 0.0) for name, factor in factors.items()}
    if not bool(whole.all()):
        broken = ~whole
        for use in uses.values():
            use.silence(broken)
        factors = {name: factor.masked_fill(broken, 0.0) for name, factor in factors.items()}
    cast: dict[tuple[int, torch.dtype], Tensor] = {}  # mostly one factor for all
    for name in list(uses):
        factor, dtype = factors[name], parameters[name].dtype
        key = id(factor), dtype
        if key not in cast:
            cast[key] = factor.to(dtype)
        add_to(sums, {name: uses.pop(name).weighted_sum(cast[key])})  # a record is of no use after its sum
    return total.to(next(iter(parameters.values())).dtype.to_real())


def add_to(sums: dict[K, Tensor], more: Mapping[K, Tensor]) -> None:
    """Add more of each, in place where there is some already."""
    for key, value in more.items():
        sums[key] = sums[key].add_(value) if key in sums else value


def weigh(uses: dict[str, Use], units: int, facts: Facts) -> None:
    """Note how much the records of one micro-batch hold, alone and together with the activations."""
    held = {t.data_ptr(): t.numel() * t.element_size() for use in uses.values() for t in _tensors_of(use)}
    activations, facts.weighing = facts.weighing or {}, None
    facts.unit_bytes = sum(held.values()) // units
    if activations:
        facts.unit_activations = sum(activations.values()) // units
        facts.crowding = sum((held | activations).values()) / sum(activations.values())


def _tensors_of(use: Any) -> Iterator[Tensor]:
    for value in vars(use).values():
        if isinstance(value, Tensor):
            yield value
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _tensors_of(value)
