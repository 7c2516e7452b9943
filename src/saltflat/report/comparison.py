"""Methods side by side: means and deviations over runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


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
