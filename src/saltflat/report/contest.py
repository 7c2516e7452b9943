"""Methods side by side: means and deviations over runs, and which won, against the noise between runs, honestly.

In a round all methods start from the same initial weights, so methods are compared round by round: by the
differences of two methods within each round, and Student's t for the mean of these differences. (Runs that do
not belong together may be paired too, as long as their values did not decide how.) Methods with different
numbers of runs are compared by their means, with the degrees of freedom of the smaller one.

The leader is chosen by looking at the results. So the margin allows for every pair of methods that could have been
looked at (Bonferroni): with no difference at all, one is called the winner in at most 5 % of trials.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Contest:
    """Who leads, by how much, and what chance alone could make. ``won`` is the conclusion.

    ``rival`` is the best of those that the leader is not clearly ahead of; if there is none, the best of the others.
    """

    leader: str
    rival: str
    accuracy: float
    lead: float
    margin: float
    rounds: int
    pairs: int
    beaten: tuple[str, ...]

    @property
    def won(self) -> bool:
        """Whether the leader is ahead of every other method by more than chance would make."""
        return self.rival in self.beaten

    def __str__(self) -> str:
        mean, lead = f"{100 * self.accuracy:.1f} %", f"{100 * self.lead:.1f}"
        if self.won:
            return (
                f"{self.leader} won: {mean} on average, {lead} points above {self.rival}, "
                f"more than the {100 * self.margin:.1f} that chance could make."
            )
        if self.rounds < 2:
            return (
                f"No method won: {self.leader} has the best accuracy ({mean}), {lead} points above {self.rival}, "
                "and a single round says nothing about chance."
            )
        behind = f"; it is clearly ahead of {' and '.join(self.beaten)} only" if self.beaten else ""
        return (
            f"No method won: {self.leader} has the best mean ({mean}), but only {lead} points above {self.rival}, "
            f"where chance could make {100 * self.margin:.1f}{behind}."
        )

    @property
    def test(self) -> str:
        """How it was judged, in words."""
        return (
            f"In each of the {self.rounds} rounds all methods start from the same weights, so they are compared "
            "round by round. What chance could make is the 95 % margin of the mean difference (Student's t), "
            f"widened because the best of {self.pairs} pairs is looked at."
        )

    def to_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        return {
            "won": self.won,
            "leader": self.leader,
            "rival": self.rival,
            "lead": self.lead,
            "margin": None if math.isinf(self.margin) else self.margin,
            "clearly_behind": list(self.beaten),
            "rounds": self.rounds,
            "sentence": str(self),
        }


def contest(results: Mapping[str, Sequence[float]], resolution: float = 0.0) -> Contest:
    """Compare methods by the accuracies of their rounds; entry i of each belongs to round i.

    ``resolution`` is what one test row is worth. Differences can agree by accident of that rounding, so the
    deviation between rounds is taken to be at least as large.

    >>> print(contest({"a": [0.90, 0.92, 0.91], "b": [0.91, 0.91, 0.90]}))
    No method won: a has the best mean (91.0 %), but only 0.3 points above b, where chance could make 2.9.
    >>> print(contest({"a": [0.90, 0.92, 0.91, 0.93], "b": [0.84, 0.85, 0.85, 0.86]}))
    a won: 91.5 % on average, 6.5 points above b, more than the 0.9 that chance could make.
    """
    means = {method: statistics.fmean(values) for method, values in results.items()}
    leader = max(means, key=lambda method: means[method])
    rounds, count = min(len(values) for values in results.values()), len(results)
    pairs = count * (count - 1) // 2
    leads = {method: means[leader] - means[method] for method in results if method != leader}
    margins = {method: _between(results[leader], results[method], pairs, resolution) for method in leads}
    ranked = sorted(leads, key=lambda method: leads[method])
    beaten = tuple(method for method in ranked if leads[method] > margins[method])
    rival = next((method for method in ranked if method not in beaten), ranked[0])
    return Contest(leader, rival, means[leader], leads[rival], margins[rival], rounds, pairs, beaten)


def _between(first: Sequence[float], second: Sequence[float], pairs: int, resolution: float) -> float:
    if len(first) == len(second):
        return margin([a - b for a, b in zip(first, second)], pairs, resolution)
    if min(len(first), len(second)) < 2:
        return math.inf
    squares = [max(statistics.stdev(each), resolution) ** 2 / len(each) for each in (first, second)]
    return _quantile(pairs, min(len(first), len(second)) - 1) * math.sqrt(sum(squares))


def _quantile(pairs: int, freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(1 - (1 - CONFIDENCE) / (2 * pairs), freedom))


def margin(differences: Sequence[float], pairs: int = 1, resolution: float = 0.0) -> float:
    """How far from zero the mean of paired differences may lie by chance, at 95 % over all ``pairs``."""
    rounds = len(differences)
    if rounds < 2:
        return math.inf
    deviation = max(statistics.stdev(differences), resolution)
    return _quantile(pairs, rounds - 1) * deviation / math.sqrt(rounds)


def final_accuracy(summary: Mapping[str, Any]) -> float:
    """The averaged weights' accuracy where the method averages, else the last iterate's.

    >>> final_accuracy({"accuracy": 0.8, "average_accuracy": None})
    0.8
    """
    averaged = summary["average_accuracy"]
    value = averaged if averaged is not None else summary["accuracy"]
    return float("nan") if value is None else float(value)


def deviation_of(values: Sequence[float]) -> float | None:
    """Between runs; None for a single one."""
    return statistics.stdev(values) if len(values) > 1 else None


def summarise(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row a method: mean, deviation, error reduction against the first, and how steady the end was."""
    rows: list[dict[str, Any]] = []
    for method, runs in results.items():
        values = [final_accuracy(run) for run in runs]
        mean = statistics.fmean(values)
        key = "average_accuracy" if runs[0]["average_accuracy"] is not None else "accuracy"
        tails = [[row[key] for row in run["history"][-5:] if row.get(key) is not None] for run in runs]
        steady = [statistics.pvariance(tail) for tail in tails if len(tail) > 1]
        first = rows[0]["accuracy"] if rows else mean
        rows.append(
            {
                "method": method,
                "accuracy": mean,
                "deviation": deviation_of(values),
                "error_reduction": (mean - first) / (1 - first) if first < 1 else 0.0,
                "last_iterates_variance": statistics.fmean(steady) if steady else None,
                "runs": values,
                "evaluation": runs[0].get("evaluation"),
                "epsilon": runs[0]["epsilon"],
                "steps": runs[0]["steps"],
                "seconds": statistics.fmean(run["seconds"] for run in runs),
            }
        )
    return rows
