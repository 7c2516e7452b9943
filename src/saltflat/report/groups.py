"""Runs of one plan together: what they reached, and how they got there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from saltflat.errors import is_number
from saltflat.plan import Plan
from saltflat.report.facts import RunFacts
from saltflat.report.figures import number, share
from saltflat.report.spent import Spent, spent_at, thinned

BASELINE = "dp-sgd"


@dataclass(frozen=True)
class Final:
    """The figure that a run ended with: the last iterate's or the average's, never that of the best epoch."""

    measure: str
    value: float
    averaged: bool
    label: str

    def shown(self, digits: int = 1) -> str:
        """An accuracy in percent, a loss as it is."""
        return share(self.value, digits) if self.measure == "accuracy" else number(self.value)

    @property
    def weights(self) -> str:
        """Which ones it is of."""
        return "averaged weights" if self.averaged else "last iterate"


@dataclass(frozen=True)
class Place:
    """One evaluation of the runs of a group: their values at one step."""

    step: int
    epoch: float
    epsilon: float | None
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the runs."""
        return statistics.fmean(self.values)


@dataclass(frozen=True)
class Group:
    """Runs of the same plan, on the same data and model."""

    label: str
    runs: tuple[RunFacts, ...]
    costs: tuple[Spent, ...] = field(repr=False)

    @property
    def plan(self) -> Plan:
        """That of all of them."""
        plan = self.runs[0].plan
        assert plan is not None
        return plan

    @property
    def epsilon(self) -> float | None:
        """The largest ε of its runs; None if that of one is not known."""
        found = [cost.epsilon for cost in self.costs]
        return None if None in found else max(value for value in found if value is not None)

    @property
    def sound(self) -> tuple[RunFacts, ...]:
        """The runs that can stand in a comparison: finished, undamaged, with a result."""
        return tuple(
            run for run in self.runs
            if run.state in ("verified", "not private") and (found := final(run)) is not None
            and math.isfinite(found.value)
        )  # fmt: skip

    def places(self, key: str) -> list[Place]:
        """The steps at which every run that was evaluated at all has this value, with ε by the ledgers."""
        tables = [
            {row["step"]: row for row in run.metrics if figure_in(row, key) is not None} for run in self.runs
        ]
        tables = [table for table in tables if table]
        if not tables:
            return []
        common = sorted(set.intersection(*(set(table) for table in tables)))
        rows = thinned([tables[0][step] for step in common])
        steps = [int(row["step"]) for row in rows]
        costs = self._costs_at(steps)
        return [
            Place(step, float(row["epoch"]), cost, tuple(figure_in(t[step], key) or 0.0 for t in tables))
            for step, row, cost in zip(steps, rows, costs)
        ]

    def _costs_at(self, steps: Sequence[int]) -> list[float | None]:
        """The largest ε of any run after each step; None where a ledger cannot be read or claims nothing."""
        found: list[list[float]] = []
        for run in self.runs:
            if run.ledger is None or not run.ledger_is_that_of_the_plan or run.makes_no_claim:
                return [None for _ in steps]
            found.append(spent_at(run.ledger, self.plan.budget.delta, steps))
        return [max(column) for column in zip(*found)]


def figure_in(row: dict[str, Any], key: str) -> float | None:
    """A finite number of a row of metrics. ``final`` of an accuracy is the average's, as soon as there is one."""
    if key.startswith("final "):
        measure = key.removeprefix("final ")
        averaged = figure_in(row, f"average_{measure}")
        return figure_in(row, measure) if averaged is None else averaged
    value: Any = row.get(key)
    if not is_number(value) or not math.isfinite(value):
        return None
    return float(value) if not key.endswith("accuracy") or 0 <= value <= 1 else None


def measure_of(run: RunFacts) -> str | None:
    """What was measured: accuracy, or only the loss."""
    for measure in ("accuracy", "loss"):
        if any(figure_in(row, measure) is not None for row in run.metrics):
            return measure
    return None


def final(run: RunFacts) -> Final | None:
    """The result of a run, if it was evaluated; a value that diverged is NaN."""
    measure = measure_of(run)
    if measure is None:
        return None
    last = run.metrics[-1]
    averaged = last.get(f"average_{measure}") is not None
    value = figure_in(last, f"average_{measure}" if averaged else measure)
    label = last.get("evaluation")
    return Final(measure, math.nan if value is None else value, averaged, "" if label is None else str(label))


def released(run: RunFacts) -> float | None:
    """The last accuracy on private rows that was released with noise; of a run that was found whole only."""
    if run.evaluations is None or run.state == "damaged":
        return None
    found: list[Any] = [e.get("accuracy") for e in run.evaluations.entries if e["kind"] == "result"]
    return float(found[-1]) if found and is_number(found[-1]) else None


def grouped(runs: Sequence[RunFacts], costs: Sequence[Spent]) -> list[Group]:
    """The runs by plan, data and model; those whose plan cannot be read are left out. DP-SGD comes first."""
    found: dict[tuple[object, ...], list[int]] = {}
    for place, run in enumerate(runs):
        if run.plan is not None:
            key = (run.plan.method, run.plan.hash, run.told("data"), run.told("model"))
            found.setdefault(key, []).append(place)
    keys = sorted(found, key=lambda key: key[0] != BASELINE)
    labels = _labels([runs[found[key][0]] for key in keys])
    return [
        Group(label, tuple(runs[p] for p in found[key]), tuple(costs[p] for p in found[key]))
        for label, key in zip(labels, keys)
    ]


def _labels(runs: Sequence[RunFacts]) -> list[str]:
    """The method's name, and what tells groups of one method apart."""
    methods = [run.method for run in runs]
    labels = []
    for run in runs:
        assert run.plan is not None
        label = run.method
        if methods.count(run.method) > 1:
            told = [word for word in (run.told("data"), run.told("model")) if word]
            label = ", ".join([label, f"ε = {run.plan.epsilon:.3g}", *told, f"plan {run.plan.hash[:6]}"])
        labels.append(label)
    return labels
