"""Going on with a run that was cut off: what must be the same, and how its state is found again.

`saltflat.record.checkpoint` explains the order of writes on which this rests. Everything is read and checked
first; a folder that cannot be resumed is left as it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

import saltflat
from saltflat.errors import InputError
from saltflat.mechanism.randomness import TIERS
from saltflat.plan import Plan
from saltflat.record.agreement import check_agreement
from saltflat.record.canonical import DamagedError
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import Ledger, LedgerError
from saltflat.training.keep import Keeper, setup_of
from saltflat.training.run import Run
from saltflat.training.state import release_from_journal, restore, restore_generators
from saltflat.training.step import Loop

ANEW = "Or start anew in another folder; what this run has spent stays spent."


def plan_of(resume: str | Path, plan: Plan | None) -> Plan:
    """The plan of the run; another one is refused by what differs."""
    stored = RunFolder.open(resume, "resume").read_plan()
    if plan is None or plan == stored:
        return plan or stored
    if not isinstance(plan, Plan):
        raise InputError("plan", plan, "a Plan, or none to take that of the run")
    here = differences(stored.to_dict(), plan.to_dict())
    raise InputError(
        "plan", "; ".join(here[:3]), f"the plan of the run in {resume}", problem="differs from it",
        cure=f"Leave the plan out to go on with the run's own. {ANEW}",
    )  # fmt: skip


def differences(stored: Any, given: Any, where: str = "") -> list[str]:
    """Where two plain values differ, and how.

    >>> differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]})
    ['a[1].b is 3, was 2']
    """
    if isinstance(stored, dict) and isinstance(given, dict):
        keys = [*stored, *[key for key in given if key not in stored]]
        parts = [(f"{where}.{k}" if where else str(k), stored.get(k), given.get(k)) for k in keys]
    elif isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given):
        parts = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(stored, given))]
    else:
        return [] if stored == given else [f"{where} is {given!r}, was {stored!r}"]
    return [line for name, a, b in parts for line in differences(a, b, name)]


def finished_run(resume: str | Path, model: nn.Module | None, plan: Plan | None = None) -> Run | None:
    """The run, if there is nothing left to do."""
    plan_of(resume, plan)
    folder = RunFolder.open(resume, "resume")
    certificate = folder.read_certificate()
    if certificate is None or not certificate.is_finished:
        return None
    run = Run.load(resume, model)
    folder.tidy()
    return run


def read_checkpoint(folder: RunFolder) -> tuple[dict[str, Any], dict[str, Any], Ledger]:
    """Tensors and facts of the checkpoint, and the ledger, checked against one another and the plan."""
    if not folder.checkpoints.exist():
        raise InputError(
            "resume", str(folder.path), "a run with a checkpoint",
            problem="has no checkpoint to go on from",
            cure=ANEW.removeprefix("Or ").capitalize(),
        )  # fmt: skip
    tensors, facts = folder.checkpoints.read()
    if not folder.file("ledger.jsonl").exists():
        raise LedgerError(f"{folder.path} has a checkpoint and no ledger: it was removed.")
    ledger = folder.read_ledger(cut_short=True)
    check_agreement(ledger, folder.read_plan())
    setup, count, head = facts.get("setup"), facts.get("entries"), facts.get("ledger_head")
    if not isinstance(setup, dict) or not isinstance(count, int) or count < 1:
        raise DamagedError("checkpoint/state.safetensors does not say what it is a checkpoint of.")
    if bool(ledger.entries[0].get("seeded")) != (setup.get("seed") is not None):
        raise DamagedError("The checkpoint and the ledger do not agree on whether the run has a seed.")
    tier = ledger.entries[0].get("randomness")
    if tier not in TIERS or setup.get("randomness") != tier:
        raise DamagedError("The checkpoint and the ledger do not agree on a tier of randomness.")
    if len(ledger.entries) < count or ledger.entries[count - 1]["hash"] != head:
        raise LedgerError(
            f"The ledger has {len(ledger.entries)} entries and the checkpoint knows of {count}, or of others: "
            "the ledger was cut or exchanged, and this run cannot go on."
        )
    return tensors, facts, ledger


def check_setup(loop: Loop, facts: dict[str, Any], seed: int | None) -> None:
    """Refuse to go on with another optimizer, loss, schedule, data size, ... than the run was started with."""
    stored, here = facts["setup"], setup_of(loop, seed)
    if stored.get("meaning") != here["meaning"]:
        raise InputError(
            "saltflat", saltflat.__version__, f"the version that started this run, {facts.get('saltflat')}",
            problem="trains differently from it",
            cure=f"Install that version to go on: pip install saltflat=={facts.get('saltflat')}. {ANEW}",
        )  # fmt: skip
    if isinstance(stored.get("public"), bool):  # an older checkpoint knows only whether there was any
        here["public"] = here["public"] is not None
    for argument, value in here.items():
        if stored.get(argument) != value:
            raise InputError(
                argument, str(value), f"{stored.get(argument)}, as when the run was started",
                problem="differs from the run that is to go on", cure=f"Give it as before. {ANEW}",
            )  # fmt: skip


def replay(loop: Loop, folder: RunFolder, ledger: Ledger) -> int:
    """Use the journal's releases again, in order; returns how many. They were released once: it costs nothing."""
    entries = {entry["step"]: entry["hash"] for entry in ledger.of_kind("release")}
    given_up = {entry["step"] for entry in ledger.of_kind("aborted")}
    replayed, start = 0, loop.position
    for tensors, facts in folder.checkpoints.releases():
        step = facts.get("step")
        if not isinstance(step, int) or entries.get(step) != facts.get("entry"):
            raise LedgerError(
                f"The journal holds the release of step {step}, and the ledger does not record it: "
                "the ledger was cut or exchanged, and this run cannot go on."
            )
        if step <= start:
            continue  # the checkpoint holds it
        while loop.position + 1 < step and loop.position + 1 in given_up:
            loop.pass_over(loop.position + 1)
        if step != loop.position + 1:
            raise DamagedError(f"The journal goes from step {loop.position} to {step}: it was changed.")
        released = release_from_journal(loop, tensors, facts)
        restore_generators(loop, tensors)
        loop.use(step, loop.plan.phase_at(step - 1), released)
        replayed += 1
    return replayed


def go_on(loop: Loop, keeper: Keeper, tensors: dict[str, Any], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Bring a fresh loop to where the run was cut off, write that down, and return the metrics so far.

    In a private run, steps that were recorded and whose releases are lost are passed over. In a seeded test
    run they will be drawn again, as the same numbers, and nothing is recorded twice.
    """
    folder, ledger = keeper.folder, keeper.ledger
    restore(loop, tensors, facts)
    restore_generators(loop, tensors)
    replayed = replay(loop, folder, ledger)
    history = [row for row in folder.read_metrics(cut_short=True) if _step_of(row) <= loop.position]
    seeded = loop.mechanism.randomness.seeded
    lost = [] if seeded else list(range(loop.position + 1, ledger.releases + 1))
    for step in lost:
        loop.pass_over(step)
    seconds = facts.get("seconds")
    keeper.earlier_seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
    # From here on the folder changes. Its certificate is about a ledger that is about to grow.
    folder.clear_partials()
    folder.remove_certificate()
    folder.keep_metrics(history)
    ledger.resume_run(step=loop.position, replayed=replayed, lost=lost)
    keeper.checkpoint(loop)
    return history


def _step_of(row: dict[str, Any]) -> float:
    step = row.get("step")
    if not isinstance(step, int):
        raise DamagedError("metrics.jsonl holds a line without its step.")
    return step
