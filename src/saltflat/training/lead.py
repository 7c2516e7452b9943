"""The leader of several ranks: asks the others for their part of each clipped sum, and keeps everything else.

Noise, sampling, ledger, journal, optimizer, ascent, averaging and files are the leader's alone, and are the very
code of a run in one process. The other ranks hold none of it: they are told weights and units, and answer with a
sum of clipped gradients. So noise is added once because there is one source of it, every unit is computed once
because the shards do not overlap, and all ranks compute at the same weights, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from saltflat.data.source import as_source
from saltflat.engine.frame import Frame
from saltflat.errors import InputError, LostRankError, SaltflatError
from saltflat.mechanism.exact import Grid
from saltflat.mechanism.randomness import TIER_EXACT
from saltflat.plan import Plan
from saltflat.ranks.group import Group, own_part, several, shard
from saltflat.ranks.stopping import ending_in_order, undisturbed
from saltflat.training.evaluate import figures, tally
from saltflat.training.sums import Sum, Sums
from saltflat.training.task import END, MEASURE, SCALE, SHIFT, START, STOP, SUM, Task

if TYPE_CHECKING:
    from saltflat.training.run import Run
    from saltflat.training.step import Loop

OPENING, AGREEING, RUNNING, BUSY, OVER = "opening", "agreeing", "running", "busy", "over"
"""What the other ranks wait for: the plan, one another, a task, the middle of a task, nothing."""


def opened_group(model: nn.Module, device: Any) -> Group | None:
    """The ranks that this process is one of; None if it is alone."""
    if not several():
        return None
    try:
        kind = torch.device(device).type if device is not None else next(model.parameters()).device.type
    except (RuntimeError, StopIteration, AttributeError, TypeError):
        kind = "cpu"  # whatever is wrong is said by the checks that follow
    return Group(kind)


@contextmanager
def leading(group: Group | None) -> Iterator[Led | None]:
    """Lead the group inside the block; whatever ends it, the other ranks are told, or notice. Alone, nothing."""
    if group is None:
        yield None
        return
    led = Led(group)
    try:
        with ending_in_order():
            yield led
    except BaseException as error:
        with undisturbed():
            led.stop(error)
        raise
    finally:
        group.close()


class Led:
    """The ranks of a run, as its loop sees them."""

    def __init__(self, group: Group) -> None:
        self.group, self.stage = group, OPENING
        self.sums: Sums | None = None
        self.units = 0
        self.seed: int | None = None
        self.alike = True

    @property
    def size(self) -> int:
        """How many ranks there are, this one included."""
        return self.group.size

    # --- before the first release -----------------------------------------------------------------------

    def open(self, plan: Plan | None) -> None:
        """Tell every rank the plan; without one, that the run is finished and its results come next."""
        self.group.text(json.dumps({"plan": None if plan is None else plan.to_dict()}))
        self.stage = RUNNING if plan is None else AGREEING

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Wait until every rank has checked its model and data; refuse ranks that differ from this one."""
        said = [json.loads(text) for text in self.group.texts(json.dumps({"facts": facts}))]
        self.stage = RUNNING
        problem = disagreement(said)
        if problem is not None:
            raise problem
        self.alike = len({each["facts"][PROCESSOR] for each in said}) == 1

    def begin(self, loop: Loop, units: int, seed: int | None) -> None:
        """Give every rank the weights, and what else the model holds.

        In the exact tier a unit must add the same integers on whichever rank it is computed: one row more moves
        the borders of the shards, and must not change what others add.
        """
        if loop.mechanism.randomness.tier == TIER_EXACT and not self.alike:
            raise InputError(
                "randomness", TIER_EXACT, "ranks with processors of one kind",
                problem="needs gradients that are the same to the last bit on every rank",
                cure="Use randomness='secure', or processors of one kind.",
            )  # fmt: skip
        self.sums, self.units, self.seed = loop.sums, units, seed
        with self._asking(Task(START, seed=seed)):
            state = loop.model.state_dict()
            self.group.shared(state, state)

    # --- in every step ----------------------------------------------------------------------------------

    def sum_over(
        self,
        number: int,
        batch: Tensor,
        clip_norm: float,
        grid: Grid | None,
        displacements: Sequence[Mapping[str, Tensor]] | None,
        frame: Frame | None,
    ) -> Sum:
        """The clipped sum over the whole batch: each rank adds up the units of its own shard."""
        assert self.sums is not None
        parts = {SHIFT: frame.shift, SCALE: frame.scale} if frame is not None else {}
        held = [kind for kind, part in parts.items() if part is not None]
        views = displacements or ()
        task = Task(SUM, number, self.seed, len(batch), clip_norm, grid is not None, len(views), sum(held))
        with self._asking(task):
            group, weights = self.group, self.sums.weights
            group.broadcast(batch.contiguous())
            group.shared(weights, weights)
            for vectors in (*views, *(parts[kind] for kind in held)):
                group.shared(weights, vectors)
            own = own_part(batch, self.units, group.rank, group.size)
            return gathered(group, *self.sums.over(own, clip_norm, grid, displacements, frame))

    def measure(self, data: Any) -> dict[str, float]:
        """Loss and accuracy on test data, each rank on its shard of it."""
        assert self.sums is not None
        sums, source = self.sums, as_source(data)
        with self._asking(Task(MEASURE)):
            self.group.shared(sums.weights, sums.weights)
            own = shard(len(source), self.group.rank, self.group.size)
            rows = torch.arange(own.start, own.stop)
            found = tally(sums.model, source, rows, sums.device, sums.loss_fn)
            return figures(self.group.add_up(found))

    # --- at the end -------------------------------------------------------------------------------------

    def end(self, run: Run) -> None:
        """Give every rank the result: weights, average, history and certificate.

        The run is closed already: a rank that is lost now misses the result, and changes nothing.
        """
        told = {
            "plan": run.plan.to_dict(),
            "certificate": run.certificate.data,
            "history": run.history,
            "rules": run.rules,
            "folder": None if run.folder is None else str(run.folder),
            "seconds": run.seconds,
            "average": None if run.average is None else list(run.average),
        }
        with suppress(LostRankError), self._asking(Task(END)):
            self.group.text(json.dumps(told))
            state = run.model.state_dict()
            self.group.shared(state, state)
            if run.average is not None:
                self.group.shared(run.average, run.average)
        self.stage = OVER

    def stop(self, error: BaseException) -> None:
        """Tell the others why this is the end, if they wait to be told something; else they will notice."""
        if self.group.lost or self.stage in (BUSY, OVER):
            return
        stage, self.stage = self.stage, OVER
        # what is no sentence of ours is not sent: it might quote a row
        why = str(error) if isinstance(error, SaltflatError) else type(error).__name__
        text = json.dumps({"error": why})
        with suppress(LostRankError):
            if stage == OPENING:
                self.group.text(text)
            elif stage == AGREEING:
                self.group.texts(text)
            else:
                self.group.broadcast(Task(STOP).written())
                self.group.text(text)

    @contextmanager
    def _asking(self, task: Task) -> Iterator[None]:
        """Announce a task. If it fails half way, the others are in the middle of it, and cannot be told."""
        if self.stage != RUNNING:
            raise LostRankError("The other ranks are gone: this run has ended for them.")
        self.stage = BUSY
        self.group.broadcast(task.written())
        yield
        self.stage = RUNNING


def gathered(group: Group, total: dict[str, Tensor], short: float) -> Sum:
    """Both parts of a sum over all ranks, at the leader.

    The short one goes first, over connections that notice a lost rank at once: NCCL would wait.
    """
    count = group.add_up(torch.tensor([short], dtype=torch.float64))
    return group.summed(total), float(count)


PROCESSOR = "processor"
"""May differ between ranks, but in the exact tier."""

WORDS = {
    "saltflat": "the same version of saltflat",
    "torch": "the same version of torch",
    "data": "the same data on every rank: each computes its own shard of it",
    "evaluate": "the same test data on every rank",
    "loss_fn": "the same loss on every rank",
    "model": "the same model on every rank; its weights may differ, rank 0's are taken",
}


def disagreement(said: Sequence[Mapping[str, Any]]) -> SaltflatError | None:
    """What keeps the ranks from training together, as rank 0 sees it; None if nothing does.

    >>> print(disagreement([{"facts": {"data": "40 rows"}}, {"facts": {"data": "50 rows"}}]))
    data='50 rows' on rank 1 differs from '40 rows' on rank 0.
      Expected the same data on every rank: each computes its own shard of it.
    """
    for rank, each in enumerate(said):
        if "error" in each:
            return LostRankError(f"Rank {rank} cannot take part: {each['error']}")
    first = said[0]["facts"]
    for rank, each in enumerate(said):
        for word, value in each["facts"].items():
            if word != PROCESSOR and value != first.get(word):
                return InputError(
                    word, value, WORDS[word],
                    problem=f"on rank {rank} differs from {first.get(word)!r} on rank 0",
                )  # fmt: skip
    return None
