"""Keeping a run: the journal before each release is used, a checkpoint when one is due."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import saltflat
from saltflat.errors import InputError, PrivacyWarning, is_number
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import Ledger
from saltflat.training.public_side import content_hash
from saltflat.training.state import captured, generators, release_to_journal
from saltflat.training.step import SCHEDULES, Loop, Released

EVERY = 60.0
"""Seconds between checkpoints, unless told otherwise."""

# A checkpoint is also due when the journal has grown to this many times its size: reading and disk stay bounded.
JOURNAL_RATIO = 8
LEAST_JOURNAL = 8_000_000

MEANING = 1
"""Raised whenever the same plan, model and data would be trained differently: such a run cannot go on."""


def check_every(checkpoint_every: float) -> None:
    """Refuse anything but a number of seconds; infinitely many are allowed, and mean no checkpoints."""
    if not is_number(checkpoint_every) or checkpoint_every < 0:
        raise InputError(
            "checkpoint_every", checkpoint_every, "a number of seconds, checkpoint_every >= 0",
            cure="0 writes one after every step, inf none: such a run cannot be resumed.",
        )  # fmt: skip


class Keeper:
    """Writes down what a loop needs to go on after a crash. `saltflat.record.checkpoint` says why that is enough."""

    def __init__(self, folder: RunFolder, ledger: Ledger, setup: dict[str, Any], every: float) -> None:
        self.folder, self.ledger, self.setup, self.every = folder, ledger, setup, every
        self.earlier_seconds = 0.0
        self.started = self.written = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the run has taken, together with what came before it was resumed."""
        return self.earlier_seconds + time.perf_counter() - self.started

    def journal(self, loop: Loop, number: int, released: Released) -> None:
        """Put a release on disk, before anything uses it."""
        if math.isinf(self.every):
            return
        tensors, facts = release_to_journal(released)
        entry = next(e["hash"] for e in reversed(self.ledger.entries) if e.get("step") == number)
        self.folder.checkpoints.journal().append(
            tensors | generators(loop), {"step": number, "entry": entry, **facts}
        )

    def checkpoint_if_due(self, loop: Loop) -> None:
        """Write a checkpoint if the last one is old, or the journal has grown long."""
        if math.isinf(self.every):
            return
        checkpoints = self.folder.checkpoints
        long = checkpoints.journal().size > max(JOURNAL_RATIO * checkpoints.size, LEAST_JOURNAL)
        if not long and time.perf_counter() - self.written < self.every:
            return
        try:
            self.checkpoint(loop)
        except InputError as error:  # an optimizer that keeps what cannot be stored
            warnings.warn(f"No more checkpoints: {error}", PrivacyWarning, stacklevel=2)
            self.every = math.inf

    def checkpoint(self, loop: Loop) -> None:
        """Write one now, and empty the journal."""
        if math.isinf(self.every):
            return
        tensors, facts = captured(loop)
        facts |= {
            "setup": self.setup,
            "entries": len(self.ledger.entries),
            "ledger_head": self.ledger.head,
            "seconds": round(self.seconds, 3),
            "saltflat": saltflat.__version__,
        }
        self.folder.checkpoints.write(tensors | generators(loop), facts)
        self.written = time.perf_counter()


def setup_of(loop: Loop, seed: int | None) -> dict[str, Any]:
    """What must be the same when a run goes on, beside the plan and the model.

    The number of rows is among it only where the plan's relation makes it public.
    """
    groups = [
        # the loop writes two of them anew at every step
        {
            key: value
            for key, value in sorted(group.items())
            if key not in ("lr", "noise_on_release") and isinstance(value, int | float | str | tuple | None)
        }
        for group in loop.optimizer.param_groups
    ]
    optimizer = f"{_name(type(loop.optimizer))} at {loop.base_rates} with {groups}"
    public_rows = loop.plan.budget.relation == "zero-out"
    return {
        "meaning": MEANING,
        "randomness": loop.mechanism.randomness.tier,
        "seed": seed,
        "device": loop.device.type if loop.mechanism.randomness.seeded else None,
        "optimizer": optimizer,
        "schedule": _schedule_name(loop),
        "loss_fn": _name(loop.loss_fn),
        "public": None if loop.public is None else content_hash(loop.public),
        "data": f"{loop.mechanism.rows} rows" if public_rows else None,
        "trainable": list(loop.weights),
    }


def _schedule_name(loop: Loop) -> str:
    if loop.schedule is None:
        return "constant"
    named = [name for name, schedule in SCHEDULES.items() if schedule is loop.schedule]
    return named[0] if named else _name(loop.schedule)


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))
