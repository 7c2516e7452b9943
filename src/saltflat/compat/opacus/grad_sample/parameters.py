"""Parameters that answer ``p.grad_sample``: per-example gradients, formed when somebody reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from saltflat.engine.calling import in_full_precision
from saltflat.engine.clipped_sum import add_to
from saltflat.engine.one_call import Uses
from saltflat.engine.passes import Clip, Pass, clipped_uses, gradients_in, merged_passes
from saltflat.engine.uses import DirectUse

if TYPE_CHECKING:
    from saltflat.compat.opacus.grad_sample.recorder import Recorder


class Record:
    """What one backward pass said about the examples of a batch: lengths, a clipped sum, or each gradient.

    Nothing in it is private yet. ``processed`` is set when an optimizer has used it. Who reads gradients or lengths
    gets them in ``order``: for packed sequences that is the order of the packing, as in Opacus.
    """

    def __init__(
        self, passes: Sequence[Pass], parameters: Sequence[nn.Parameter], order: Tensor | None = None
    ) -> None:
        self.passes, self.parameters, self._order = list(passes), list(parameters), order
        self.processed = self.forgotten = False
        self.counts_norms = True  # unless it is the second pass of somebody who clips by hand
        self._parts: list[tuple[int, Uses]] | None = None
        self._formed: dict[int, Tensor] = {}

    def clipped(self, parameters: Sequence[nn.Parameter], clip: Clip) -> tuple[dict[int, Tensor], Tensor]:
        """The clipped sum by parameter id, and each example's norm before the clip."""
        if len(self.passes) == 1 and self.passes[0].clipped is not None:
            known, sums, norms = self.passes[0].clipped
            if known == clip:
                return dict(sums), norms
        found = [clipped_uses(parameters, dict(uses), units, clip) for units, uses in self.parts()]
        total: dict[int, Tensor] = {}
        for sums, _ in found:
            add_to(total, sums)
        return total, torch.cat([norms for _, norms in found])

    def parts(self) -> list[tuple[int, Uses]]:
        """How the weights were used, micro-batch by micro-batch."""
        if self.forgotten:
            raise ValueError(
                "grad_sample_mode='ghost' does not keep per-example gradients after the step; 'hooks' does."
            )
        if self._parts is None:
            self._parts = merged_passes(self.parameters, [each.kept() for each in self.passes])
        return self._parts

    def gradients(self, parameter: nn.Parameter) -> Tensor:
        """One row an example."""
        key = id(parameter)
        if key not in self._formed:
            self._formed[key] = self._ordered(gradients_in(parameter, self.parts()))
        return self._formed[key]

    def norms(self, parameter: nn.Parameter) -> Tensor:
        """Each example's gradient norm for one parameter."""
        found = []
        with torch.no_grad(), in_full_precision(parameter.device):
            for units, uses in self.parts():
                use = uses.get(id(parameter))
                zeros = torch.zeros(units, device=parameter.device, dtype=parameter.dtype)
                found.append(zeros if use is None else use.squared_norms().sqrt().to(parameter.dtype))
        return self._ordered(torch.cat(found))

    def _ordered(self, rows: Tensor) -> Tensor:
        return rows if self._order is None else rows[self._order]

    def before_the_step(self) -> None:
        """Keep the weights at which the gradients were taken: an optimizer is about to change them."""
        for each in self.passes:
            if each.clipped is not None and each.weights is None:
                each.weights = [p.detach().clone() for p in each.parameters]

    def forget(self) -> None:
        """Give up all that was needed for the clipped sum."""
        self.passes, self._parts, self._formed, self.forgotten = [], None, {}, True


class EmptyRecord(Record):
    """A batch without examples."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__([], parameters)
        self._parts = [(0, {})]

    def clipped(self, parameters: Sequence[nn.Parameter], clip: Clip) -> tuple[dict[int, Tensor], Tensor]:
        return {}, torch.zeros(0)


class GivenRecord(Record):
    """Per-example gradients of one parameter that somebody assigned to ``p.grad_sample``."""

    def __init__(self, parameter: nn.Parameter, grads: Tensor) -> None:
        super().__init__([], [parameter])
        self._formed[id(parameter)] = grads
        self._parts = [(len(grads), {id(parameter): DirectUse(grads.detach().to(parameter.dtype))})]


class Watched:
    """Mixed into the class of a parameter whose gradients are told apart by example."""

    _records: list[Record]
    _underway: Recorder | None = None  # holds backward passes that wait for others of the same examples
    _cleared_norms: Tensor | None = None  # of a batch that was cleared before a step used it

    def records(self) -> list[Record]:
        """One for each batch since the gradients were cleared."""
        if self._underway is not None:
            self._underway.close_group()
        return self._records

    @property
    def _in_ghost_mode(self) -> bool:
        return self._underway is not None and self._underway.ghost

    @property
    def grad_sample(self) -> Any:
        """Per-example gradients of the last batch; a list of them where several were accumulated; or None.

        In ghost mode None, as in Opacus, unless somebody assigned them.
        """
        shown = [r for r in self.records() if not self._in_ghost_mode or isinstance(r, GivenRecord)]
        formed = [record.gradients(self) for record in shown]  # type: ignore[arg-type]
        return None if not formed else formed[0] if len(formed) == 1 else formed

    @grad_sample.setter
    def grad_sample(self, value: Any) -> None:
        if self._in_ghost_mode:
            # Who clips by hand asks for the norms after zero_grad(), and before the second backward pass.
            waiting = [record for record in self._records if not record.processed]
            self._cleared_norms = waiting[-1].norms(self) if waiting else None  # type: ignore[arg-type]
        if self._underway is not None:
            self._underway.drop_group()
        given = [] if value is None else value if isinstance(value, list) else [value]
        self._records = [GivenRecord(self, grads) for grads in given]  # type: ignore[arg-type]

    @grad_sample.deleter
    def grad_sample(self) -> None:
        unwatch(self)  # type: ignore[arg-type]

    @property
    def _norm_sample(self) -> Any:
        """Per-example norms of the last batch; in ghost mode also after it was cleared, until the next."""
        records = self.records()
        if records and records[-1].counts_norms:
            return records[-1].norms(self)  # type: ignore[arg-type]
        return self._cleared_norms

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        plain: Any = self
        copied: nn.Parameter = plain._unwatched(
            plain.data.clone(memory_format=torch.preserve_format), plain.requires_grad
        )
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Saved and loaded as the plain parameter that it was: records belong to a process.
        plain: Any = self
        return torch._utils._rebuild_parameter, (plain.data, plain.requires_grad, {})


@lru_cache(maxsize=64)
def _watched_class(kind: type) -> type:
    return type(kind.__name__, (Watched, kind), {"_unwatched": kind, "__module__": kind.__module__})


def watch(parameter: nn.Parameter, underway: Recorder | None = None) -> None:
    """Let a parameter answer ``grad_sample``. Its numbers, its place and its name stay."""
    if not isinstance(parameter, Watched):
        own = parameter.__dict__
        own.pop("grad_sample", None)
        parameter.__class__ = _watched_class(type(parameter))
    watched: Any = parameter
    watched._records, watched._underway, watched._cleared_norms = [], underway, None


def unwatch(parameter: nn.Parameter) -> None:
    """Make it the plain parameter that it was."""
    if isinstance(parameter, Watched):
        parameter.__class__ = type(parameter)._unwatched  # type: ignore[attr-defined]
        parameter.__dict__.pop("_records", None)
        parameter.__dict__.pop("_cleared_norms", None)
        parameter.__dict__.pop("_underway", None)


def records_of(parameter: nn.Parameter) -> list[Record]:
    """The records of a parameter, or of what somebody assigned to a plain one."""
    if isinstance(parameter, Watched):
        return parameter.records()
    if not hasattr(parameter, "grad_sample"):
        raise ValueError("Per sample gradient not found. Are you using GradSampleModule?")
    value = parameter.grad_sample
    if value is None:
        return []
    found: list[Record] = []
    for grads in value if isinstance(value, list) else [value]:
        record = getattr(grads, "_saltflat_record", None)
        if record is None:
            record = grads._saltflat_record = GivenRecord(parameter, grads)
        found.append(record)
    return found
