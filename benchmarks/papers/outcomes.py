"""What has been found: the result files of the runs, and the numbers that cells take from them."""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.registry import HERE, ROOT, Cell, Registry, Work

RESULTS = HERE / "results"


@dataclass(frozen=True)
class Outcome:
    """The numbers of a cell, one for each run that gave one, and how many runs gave none."""

    values: tuple[float, ...]
    failed: int = 0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over runs; None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def result_files(work: str, results: Path = RESULTS) -> dict[int, Path]:
    """The result files of a work, by the number of the repetition.

    >>> sorted(result_files("no-such-work"))
    []
    """
    named = re.compile(rf"{re.escape(work)}-(\d+)\.json")
    found = ((named.fullmatch(path.name), path) for path in results.glob(f"{work}-*.json"))
    return {int(match[1]): path for match, path in sorted(found, key=lambda pair: pair[1].name) if match}


def read(path: Path) -> dict[str, Any]:
    """One result."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def measured(result: dict[str, Any], measure: str) -> float | None:
    """A number of a result, by its name; dots lead inside. None where the run failed or has no such number.

    >>> measured({"by_cycle": {"10": 0.5}}, "by_cycle.10")
    0.5
    """
    here: Any = result
    for word in measure.split("."):
        here = here.get(word) if isinstance(here, dict) else None
    number = isinstance(here, int | float) and not isinstance(here, bool) and math.isfinite(here)
    return float(here) if number else None


def outcome(cell: Cell, results: Path = RESULTS, root: Path = ROOT) -> Outcome | None:
    """All that was found for a cell; None if nothing was run."""
    if cell.read is not None:
        files = sorted(root.glob(cell.read))
    else:
        assert cell.work is not None
        files = [path for _, path in sorted(result_files(cell.work, results).items())]
    if not files:
        return None
    numbers = [measured(read(path), cell.measure) for path in files]
    factor = 100 if cell.unit == "%" else 1
    values = tuple(factor * number for number in numbers if number is not None)
    return Outcome(values, len(numbers) - len(values))


def chosen_row(registry: Registry, work: Work, results: Path = RESULTS) -> tuple[str, str] | None:
    """The cell of the choosing table that was best for this work's column: its row and its work's name.

    None until every row of that column has been run, so that a choice is never made among fewer.
    """
    assert work.chosen_by is not None
    name, column = work.chosen_by
    tried = [cell for cell in registry.tables[name] if cell.name.endswith(f"-{column}")]
    means = {cell: outcome(cell, results) for cell in tried}
    if any(found is None or not found.values for found in means.values()):
        return None
    best = max(means, key=lambda cell: means[cell].mean)  # type: ignore[union-attr]
    assert best.work is not None
    return best.row, best.work


def words_of(registry: Registry, work: Work, results: Path = RESULTS) -> tuple[str, ...] | None:
    """The words of a work, with those that other results chose; None if they have not been found yet."""
    if work.chosen_by is None or work.experiment is not None:
        return work.words
    chosen = chosen_row(registry, work, results)
    if chosen is None:
        return None
    other = registry.works[chosen[1]].words
    place = other.index("--epochs")
    return (*work.words, *other[place : place + 2])


def settings_of(registry: Registry, work: Work, results: Path = RESULTS) -> dict[str, Any] | None:
    """The settings of an experiment, likewise."""
    if work.chosen_by is None or work.experiment is None:
        return work.settings
    chosen = chosen_row(registry, work, results)
    return (
        None if chosen is None else {**work.settings, "epochs": registry.works[chosen[1]].settings["epochs"]}
    )
