"""The record of private evaluations: a chain of its own beside the run's ledger.

A finished run's certificate holds the head of its ledger, so nothing may be added there. Evaluations come later,
and any number of them, so they have ``evaluations.jsonl``, written ahead like the ledger: each ``evaluation``
entry is on the disk before its noise is drawn. A ``result`` entry follows with what was released. An evaluation
without a result was cut off, and counts all the same.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from saltflat.accounting import SampledGaussian
from saltflat.record.ledger import Ledger, LedgerError

FILE = "evaluations.jsonl"
FORMAT = 1


def evaluations_in(folder: Path | None, plan_hash: str | None, in_memory: Ledger | None = None) -> Ledger:
    """The evaluations of a folder, opened to add to them; in memory where there is no folder."""
    path = None if folder is None else folder / FILE
    ledger = Ledger(path) if in_memory is None else in_memory
    if path is not None and path.exists():
        ledger = Ledger.read(path, cut_short=True)
    if ledger.entries:
        opened = ledger.entries[0]
        if opened["kind"] != "evaluations" or opened.get("plan_hash") != plan_hash:
            raise LedgerError(f"{FILE} is that of another run, or no record of evaluations.")
    else:
        ledger.record("evaluations", format=FORMAT, plan_hash=plan_hash)
    return ledger


def spent_on_evaluations(ledger: Ledger) -> dict[str, float]:
    """ε and δ of all recorded evaluations, added up; and of those on rows that training may have seen too.

    A sum holds although later evaluations are chosen from the results of earlier ones (Rogers et al. 2016).
    """
    found = ledger.of_kind("evaluation")
    together = [entry for entry in found if not entry["disjoint"]]
    return {
        "evaluations": len(found),
        "epsilon": math.fsum(entry["epsilon"] for entry in found),
        "delta": math.fsum(entry["delta"] for entry in found),
        "epsilon_together": math.fsum(entry["epsilon"] for entry in together),
        "delta_together": math.fsum(entry["delta"] for entry in together),
    }


def evaluation_events(ledger: Ledger) -> list[SampledGaussian]:
    """What the recorded evaluations released, for an accountant."""
    found = ledger.of_kind("evaluation")
    return [SampledGaussian(entry["noise_multiplier"], entry["rate"], 1) for entry in found]


def composed(spent: dict[str, float], training: tuple[float, float]) -> tuple[float, float]:
    """ε and δ of training and all evaluations together.

    A unit that was trained on is in no hold-out that was declared disjoint; a unit of such a hold-out was not
    trained on. So the larger of the two counts. Everything else adds up.

    >>> spent = {"epsilon": 0.3, "delta": 3e-6, "epsilon_together": 0.1, "delta_together": 1e-6}
    >>> [f"{value:g}" for value in composed(spent, training=(1.0, 1e-5))]
    ['1.1', '1.1e-05']
    """
    epsilon, delta = training
    return (
        max(epsilon + spent["epsilon_together"], spent["epsilon"]),
        max(delta + spent["delta_together"], spent["delta"]),
    )


def entry_of(facts: dict[str, Any], event: SampledGaussian) -> dict[str, Any]:
    """The facts of an evaluation, as its entry holds them: enough to compute ε again."""
    return {
        "query": "centred count of right answers",
        "sensitivity": 0.5,
        "noise_multiplier": event.noise_multiplier,
        "rate": event.rate,
        **facts,
    }
