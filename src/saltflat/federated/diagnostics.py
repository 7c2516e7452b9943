"""Numbers about private clients that help to understand a method, and that no ε covers. Off unless asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

LABEL = "not covered by ε: diagnostics on private data"
FILE = "diagnostics.jsonl"
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass
class Diagnostics:
    """Update norms and what the clip does to them, round by round; the gap between training and test at the end.

    ``rows`` has for each round: the mean of the norms before the clip and their quantiles; α = mean of
    min(1, C/‖Δ‖), how much of an update the clip leaves on average; and its spread, the mean of |α_i − α| (Shi et
    al. 2023). Every row carries the label that it is not covered. With a folder it is also in ``diagnostics.jsonl``.

    >>> seen = Diagnostics()
    >>> seen.watch(1, 0.5, [0.25, 1.0])
    >>> seen.rows[0]["alpha"], seen.rows[0]["alpha_spread"], seen.rows[0]["mean_norm"]
    (0.75, 0.25, 0.625)
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    gap: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def watch(self, number: int, clip_norm: float, norms: list[float]) -> None:
        """Take in the norms of one round."""
        self._keep(self.rows, {"round": number, "clip_norm": clip_norm} | statistics_of(norms, clip_norm))

    def ended(self, train_accuracy: float | None, test_accuracy: float | None) -> None:
        """Take in how well the last model does on training and on test rows."""
        if train_accuracy is None or test_accuracy is None:
            return
        self.gap = {
            "train_accuracy": train_accuracy,
            "test_accuracy": test_accuracy,
            "train_test_gap": train_accuracy - test_accuracy,
        }
        self._keep([], self.gap)

    def _keep(self, rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
        labelled = row | {"label": LABEL}
        rows.append(labelled)
        if self.folder is not None:
            with (self.folder / FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(labelled) + "\n")


def statistics_of(norms: list[float], clip_norm: float) -> dict[str, Any]:
    """What one round's norms come to; nothing if nobody answered."""
    if not norms:
        return {"mean_norm": None, "norm_quantiles": None, "alpha": None, "alpha_spread": None}
    values = np.asarray(norms)
    alphas = np.minimum(1.0, clip_norm / np.maximum(values, 1e-300))
    return {
        "mean_norm": float(values.mean()),
        "norm_quantiles": [float(q) for q in np.quantile(values, QUANTILES)],
        "alpha": float(alphas.mean()),
        "alpha_spread": float(np.abs(alphas - alphas.mean()).mean()),
    }


def read_diagnostics(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of a run's ``diagnostics.jsonl``; of a round that was run again after a crash, the last."""
    path = Path(folder) / FILE
    if not path.exists():
        return []
    found: dict[Any, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found[row.get("round", "end")] = row
    return list(found.values())
