"""`clipped_sum`: the one way in which private data becomes a vector."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.engine import rules as _rules
from saltflat.engine.clipping import ClippingFunction, flat, total_norm
from saltflat.engine.fallback import example_by_example
from saltflat.engine.tape import OffTapeError, Tape
from saltflat.engine.uses import Use, merged
from saltflat.errors import InputError, check_count

assert _rules  # importing them registers them

LossFunction = Callable[[Any, Tensor], Tensor]

# What a micro-batch may hold: small enough for a last-level cache, large enough for the matrix products.
MICRO_BATCH_BYTES = 64 * 2**20
LARGEST_MICRO_BATCH = 4096
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


@dataclass
class _Facts:
    """What was learned about a model on one shape of input."""

    micro_batch: int | None = None
    off_tape: bool = False
    needs_company: bool = False  # the model does not take a batch of one
    ratios: frozenset[int] | None = None  # how many rows a unit has where it meets weights
    examined: bool = False


_facts: weakref.WeakKeyDictionary[nn.Module, dict[Any, _Facts]] = weakref.WeakKeyDictionary()


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
    micro_batch: int | None = None,
    check: bool = True,
) -> ClippedSum:
    """Sum the gradients of all examples, each clipped to ``clip_norm`` as one vector.

    ``loss_fn(outputs, targets)`` gives one loss per example. ``inputs`` is a tensor, a tuple or a dict of
    tensors with the examples in the first dimension; the model is called with it, ``*``\\ it or ``**``\\ it.

    Several rows can belong to one unit: with ``rows_per_unit=k``, rows i·k … i·k+k−1 are unit i, their
    losses are added (times ``row_weights``), and the unit is clipped once. With K ``displacements`` of the
    weights, view k of each row (rows k, k + K, k + 2K …) is taken at weights moved by ``displacements[k]``.

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
    rows = len(targets)
    check_count("rows_per_unit", rows_per_unit)
    if micro_batch is not None:
        check_count("micro_batch", micro_batch)
    if rows % rows_per_unit:
        raise InputError("rows_per_unit", rows_per_unit, f"a divisor of the {rows} rows")
    batch = _Batch(core, loss_fn, inputs, targets, row_weights)
    facts = _facts.setdefault(model, {}).setdefault(batch.signature(), _Facts())
    if check and rows and not facts.examined:
        from saltflat.engine.probe import examine

        found = examine(model, loss_fn, inputs, targets)
        facts.off_tape, facts.needs_company, facts.ratios = found.off_tape, found.needs_company, found.ratios
        facts.examined = rows >= 3  # fewer rows may look alike: look again at the next batch

    sums: dict[str, Tensor] = {}
    norms: list[Tensor] = []
    names: dict[str, str] = {}
    for part in _micro_batches(rows // rows_per_unit, rows_per_unit, micro_batch, facts):
        if displacements is None:
            uses = batch.uses(parameters, part, rows_per_unit, facts)
        else:
            uses = _uses_over_views(batch, parameters, part, rows_per_unit, displacements, facts)
        with torch.no_grad():
            units = (part.stop - part.start) // rows_per_unit
            part_norms, part_sums = _clip_and_sum(parameters, uses, units, clip_norm, clipping)
        norms.append(part_norms)
        for name, value in part_sums.items():
            sums[name] = sums[name].add_(value) if name in sums else value.contiguous()
        names |= {name: use.rule for name, use in uses.items()}
        if facts.micro_batch is None:
            facts.micro_batch = _fitting_micro_batch(uses, units)
    grads = {name: sums[name] if name in sums else torch.zeros_like(p) for name, p in parameters.items()}
    some = next(iter(parameters.values()))
    empty = torch.zeros(0, dtype=some.abs().dtype, device=some.device)
    rules = {name: names.get(name, "unused") for name in parameters}
    return ClippedSum(grads, torch.cat(norms) if norms else empty, rules)


def _uses_over_views(
    batch: _Batch,
    parameters: dict[str, nn.Parameter],
    part: slice,
    each: int,
    displacements: Sequence[Mapping[str, Tensor]],
    facts: _Facts,
) -> dict[str, Use]:
    """One pass a view, each at weights of its own; a unit's gradient is the sum over its views."""
    views = len(displacements)
    if views == 0 or each % views:
        raise InputError("displacements", views, f"a number of views that divides rows_per_unit={each}")
    found: dict[str, list[Use]] = {}
    for view, displacement in enumerate(displacements):
        rows = torch.arange(part.start, part.stop, device=batch.targets.device)[view::views]
        weights = None if batch.row_weights is None else batch.row_weights[rows]
        seen = _Batch(batch.model, batch.loss_fn, take(batch.inputs, rows), batch.targets[rows], weights)
        before = {name: p.detach().clone() for name, p in parameters.items()}
        try:
            with torch.no_grad():
                for name, p in parameters.items():
                    p.add_(displacement[name])
            uses = seen.uses(parameters, slice(0, len(rows)), each // views, facts)
        finally:
            with torch.no_grad():
                for name, p in parameters.items():
                    p.copy_(before[name])
        for name, use in uses.items():
            found.setdefault(name, []).append(use)
    with torch.no_grad():
        return {name: merged(uses) for name, uses in found.items()}


@dataclass(frozen=True)
class _Batch:
    model: nn.Module
    loss_fn: LossFunction
    inputs: Any
    targets: Tensor
    row_weights: Tensor | None

    def signature(self) -> Any:
        shapes = tuple((tuple(t.shape[1:]), t.dtype) for t in leaves(self.inputs))
        trainable = tuple(p.requires_grad for p in self.model.parameters())
        training = tuple(module.training for module in self.model.modules())
        # A loss function that is made anew for each step has the same code.
        return shapes, training, trainable, getattr(self.loss_fn, "__code__", type(self.loss_fn))

    def losses(self, part: slice, company: bool = False, tape: Tape | None = None) -> Tensor:
        """One loss a row, with the tape watching if there is one; a single row may need a copy as company."""
        company = company and part.stop - part.start == 1
        rows = torch.tensor([part.start, part.start]) if company else part
        inputs, targets = take(self.inputs, rows), self.targets[rows]
        if tape is not None:
            tape.mark([*leaves(inputs), targets])
        with torch.enable_grad(), without_compilation(self.model), tape or nullcontext():
            losses = self.loss_fn(call_model(self.model, inputs), targets)
            check_losses(losses, len(targets))
            losses = losses[:1] if company else losses
            return losses if self.row_weights is None else losses * self.row_weights[part]

    def uses(
        self, parameters: dict[str, nn.Parameter], part: slice, each: int, facts: _Facts
    ) -> dict[str, Use]:
        """How each parameter was used by the units of one micro-batch."""
        units = (part.stop - part.start) // each
        collected: dict[int, Any] | None = None
        alone = facts.needs_company and part.stop - part.start == 1
        if not facts.off_tape and not alone:
            collected = self._on_tape(list(parameters.values()), part, units, facts)
            facts.off_tape = collected is None
        if collected is None:

            def losses_of(rows: slice) -> Tensor:
                return self.losses(
                    slice(part.start + rows.start, part.start + rows.stop), facts.needs_company
                )

            collected = example_by_example(list(parameters.values()), losses_of, units, each)
        return {name: collected[id(p)] for name, p in parameters.items() if id(p) in collected}

    def _on_tape(
        self, parameters: list[nn.Parameter], part: slice, units: int, facts: _Facts
    ) -> dict[int, Use] | None:
        tape = Tape(parameters, units)
        try:
            losses = self.losses(part, tape=tape)
            # Rows that were counted otherwise when the model was examined: they depend on the data.
            each = (part.stop - part.start) // units
            known = None if facts.ratios is None else {ratio * each for ratio in facts.ratios}
            if known is not None and units > 1 and not tape.ratios <= known:
                return None
            return tape.collected() if tape.backward(losses) else None
        except OffTapeError:
            return None


def _clip_and_sum(
    parameters: dict[str, nn.Parameter],
    uses: dict[str, Use],
    units: int,
    clip_norm: float,
    clipping: ClippingFunction,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The norms of the units, and the sums of their clipped gradients by parameter name."""
    known = {name: use.squared_norms() for name, use in uses.items()}
    # A clipping function sees the same names each time, whatever this micro-batch used.
    zeros = torch.zeros_like(next(iter(known.values()))) if known else torch.zeros(units)
    squared = {name: known.get(name, zeros) for name in parameters}
    total = total_norm(squared)
    broken = ~(total < LONGEST)
    factors = clipping(squared, clip_norm)
    if bool(broken.any()):
        for use in uses.values():
            use.silence(broken)
        factors = {name: factor.masked_fill(broken, 0.0) for name, factor in factors.items()}
    sums = {name: use.weighted_sum(factors[name].to(parameters[name].dtype)) for name, use in uses.items()}
    return total.to(next(iter(parameters.values())).abs().dtype), sums


def _micro_batches(units: int, each: int, wanted: int | None, facts: _Facts) -> Iterator[slice]:
    """Consecutive slices of rows. The first one is small, unless a size is known or wanted."""
    start = 0
    while start < units:
        size = wanted or facts.micro_batch or 16
        stop = min(start + size, units)
        yield slice(start * each, stop * each)
        start = stop


def _fitting_micro_batch(uses: dict[str, Use], units: int) -> int:
    """The largest power of two whose records fit, judged by the records of a first micro-batch."""
    held = {t.data_ptr(): t.numel() * t.element_size() for use in uses.values() for t in _tensors_of(use)}
    fits = MICRO_BATCH_BYTES * units // max(sum(held.values()), 1)
    return min(LARGEST_MICRO_BATCH, 1 << max(int(fits).bit_length() - 1, 3))


def _tensors_of(use: Any) -> Iterator[Tensor]:
    for value in vars(use).values():
        if isinstance(value, Tensor):
            yield value
        elif hasattr(value, "squared_norms"):
            yield from _tensors_of(value)


# --- calling models and losses, shared with the probe ------------------------------------------------


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call the model with a tensor, a tuple of positional or a dict of named inputs."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def leaves(inputs: Any) -> list[Tensor]:
    """The tensors of an input, in order; an input may hold further tuples, lists and dicts."""
    if isinstance(inputs, dict | tuple | list):
        values = inputs.values() if isinstance(inputs, dict) else inputs
        return [t for value in values for t in leaves(value)]
    return [inputs] if isinstance(inputs, Tensor) else []


def take(inputs: Any, part: Any) -> Any:
    """Some rows of an input of any form."""
    if isinstance(inputs, dict):
        return {key: take(value, part) for key, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(take(value, part) for value in inputs)
    return inputs[part] if isinstance(inputs, Tensor) else inputs


def check_losses(losses: Any, rows: int) -> None:
    """Refuse a loss that is not one number an example: it cannot be clipped per example."""
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(
            "loss_fn", str(found), f"one loss per example, a tensor of shape ({rows},)",
            problem="is the shape of what the loss function returned",
            cure='Use reduction="none", and average over any dimension but the first.',
        )  # fmt: skip


def without_compilation(model: nn.Module) -> AbstractContextManager[Any]:
    """Run compiled parts of the model eagerly: the tape must see their operations."""
    if any(type(module).__name__ == "OptimizedModule" for module in model.modules()):
        return torch.compiler.set_stance("force_eager")
    return nullcontext()
