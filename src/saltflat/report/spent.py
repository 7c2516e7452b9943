"""What a run has spent, by the accountant and from the ledger: at each evaluation, and in all. Never less than that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from saltflat.accounting import COARSE, FINE, SampledGaussian, epsilon, merged
from saltflat.errors import SaltflatError, is_number
from saltflat.record.evaluations import composed, spent_on_evaluations
from saltflat.record.ledger import Ledger
from saltflat.record.verify import MOST_KINDS
from saltflat.report.facts import RunFacts

MOST_POINTS = 60
"""At how many evaluations ε is computed and drawn; each takes the accountant a moment."""


@dataclass(frozen=True)
class Spent:
    """What a report says of a run's cost. ``epsilon`` is None where nothing can be read that would tell.

    It is the largest of the certificate's claim, the whole plan's cost and what the ledger's releases cost, and
    holds private evaluations as well. ``training`` is without them. ``by_ledger`` is the ledger's alone.
    """

    epsilon: float | None
    delta: float | None
    training: float | None
    training_delta: float | None
    by_ledger: float | None
    evaluations: int = 0

    def is_audited(self, run: RunFacts) -> bool:
        """Whether the audit beside the run, if there is one, is of its plan."""
        return run.audit is not None and run.audit.is_of(run.method, self.training, self.training_delta)


def spent(run: RunFacts) -> Spent:
    """What the run cost, as much as any of its files shows."""
    stated: Any = run.plan.budget.delta if run.plan is not None else run.stated.get("delta")
    delta = float(stated) if is_number(stated) and 0 < stated < 1 else None
    by_ledger = ledger_epsilon(run.ledger, delta)
    found = [by_ledger]
    if run.plan is not None:
        found.append(run.plan.epsilon if run.plan.is_private else math.inf)
    if run.certificate is not None:
        claimed = run.certificate["epsilon"]
        found.append(math.inf if claimed == "inf" else float(claimed))
    if run.is_seeded:
        found.append(math.inf)
    known = [value for value in found if value is not None]
    training = max(known) if known else None
    if training is None or delta is None or run.evaluations is None:
        return Spent(training, delta, training, delta, by_ledger)
    try:
        tests = spent_on_evaluations(run.evaluations)
        total, total_delta = composed(tests, (training, delta))
    except (KeyError, TypeError, ValueError):  # a record that verify did not accept
        return Spent(None, None, training, delta, by_ledger)
    return Spent(total, total_delta, training, delta, by_ledger, int(tests["evaluations"]))


def ledger_epsilon(ledger: Ledger | None, delta: float | None) -> float | None:
    """ε of all releases in a ledger, whether or not they are those of a plan; None where it cannot be computed."""
    if ledger is None or delta is None:
        return None
    try:
        events = merged(ledger.events())
        return epsilon(events, delta) if len(events) <= MOST_KINDS else math.inf
    except SaltflatError:
        return None


def spent_at(ledger: Ledger, delta: float, steps: Sequence[int]) -> list[float]:
    """ε after each of these steps, from the ledger's first releases, on the coarse grid, which rounds up.

    The last release is taken on the fine grid, as the certificate is.

    >>> from saltflat.record.ledger import Ledger
    >>> ledger = Ledger()
    >>> for step in (1, 2, 3):
    ...     ledger.record_release(step=step, phase=0, queries=(2.0,), sampling={"rate": 0.1}, clip_norm=1.0)
    >>> one, three = spent_at(ledger, 1e-5, [1, 3])
    >>> 0 < one < three
    True
    """
    events = list(ledger.events())
    total = sum(event.steps for event in events)
    surveys = ledger.surveys  # of which one comes before the first step
    whole = epsilon(events, delta, grid=FINE)
    found = []
    for step in steps:
        count = step + surveys
        part = list(first_releases(events, count))
        # a coarse grid overstates long runs; a part never costs more than the whole
        found.append(whole if count >= total else min(epsilon(part, delta, grid=COARSE), whole))
    return found


def first_releases(events: Iterable[SampledGaussian], count: int) -> Iterable[SampledGaussian]:
    """The first so many releases of a sequence of events."""
    for event in events:
        if count <= 0:
            return
        taken = min(event.steps, count)
        yield SampledGaussian(event.noise_multiplier, event.rate, taken, event.population, event.cap)
        count -= taken


def thinned(rows: Sequence[dict[str, Any]], most: int = MOST_POINTS) -> list[dict[str, Any]]:
    """At most so many rows, evenly chosen, the first and the last among them.

    >>> [row["step"] for row in thinned([{"step": n} for n in range(100)], 4)]
    [0, 33, 66, 99]
    """
    if len(rows) <= most:
        return list(rows)
    return [rows[round(place * (len(rows) - 1) / (most - 1))] for place in range(most)]
