"""The papers' tables and figures as data, read from ``registry/*.toml`` and checked.

A file holds one paper: ``[paper]`` and any number of ``[[table]]``. A table has rows and columns, and where they
meet stands a `Cell`: what the paper says, and how our number for it is found. Most are found by a `Work`, which the
runner can make: a ``saltflat train`` command (``words``) or a function of `papers.experiments` (``experiment`` with
``settings``). Words and settings of table, row, column and cell are put together. Others are read from results that
another benchmark made (``read``, a pattern of files).

Several columns may look at different measures of one work (``one_work = true``), a column may look at the works of
another table (``work = "other-table-{row}-name"``), and ``like`` starts from another table of the same file.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REGISTRY = HERE / "registry"
TABLE_KEYS = {
    "name", "of", "title", "setting", "claim", "note", "measure", "unit", "digits", "words", "experiment", "settings",
    "read", "minutes", "repetitions", "scale", "reduced", "rows", "columns", "cells", "one_work", "like", "chosen_by",
    "own", "headline", "comparable", "short",
}  # fmt: skip
AXIS_KEYS = {
    "name", "label", "words", "settings", "minutes", "paper", "measure", "unit", "digits", "work", "headline",
}  # fmt: skip


class RegistryError(ValueError):
    """A registry that does not hold together."""


@dataclass(frozen=True)
class Work:
    """Something that can be run to find one or several cells, as often as ``repetitions`` says.

    Either ``words`` (of ``saltflat train``) or an ``experiment``. ``minutes`` is what one run takes on two cores.
    With ``chosen_by`` the words of the best row of another table are added, by that table's results.
    """

    name: str
    words: tuple[str, ...] = ()
    experiment: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    minutes: float = 0.0
    repetitions: int = 1
    scale: str = "full"
    reduced: str = ""
    chosen_by: tuple[str, str] | None = None

    @property
    def command(self) -> str:
        """What reproduces one run by hand."""
        if self.experiment is not None:
            return f"python benchmarks/papers/run.py {self.name}"
        chosen = "" if self.chosen_by is None else f" (and the best row of {self.chosen_by[0]})"
        return "saltflat train " + shlex.join(self.words) + chosen


@dataclass(frozen=True)
class Cell:
    """A number of a paper, or a claim about one, and where ours is found."""

    name: str
    row: str
    column: str
    value: float | None
    deviation: float | None
    said: str
    measure: str
    unit: str
    digits: int
    work: str | None = None
    read: str | None = None
    headline: bool = False


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper, or a comparison of our own (``own`` says why there is no paper's number).

    Where data or model are others than the paper's, numbers are not ``comparable``, and no difference is taken.
    """

    name: str
    paper: str
    of: str
    title: str
    setting: str
    claim: str
    note: str
    own: str
    short: str
    scale: str
    reduced: str
    comparable: bool
    minutes: tuple[float, float]
    cells: tuple[tuple[Cell, ...], ...]

    def __iter__(self) -> Any:
        return (cell for row in self.cells for cell in row)


@dataclass(frozen=True)
class Registry:
    """All papers: their names, their tables, and every work by its name."""

    papers: dict[str, dict[str, Any]]
    tables: dict[str, Table]
    works: dict[str, Work]

    def cells(self) -> list[Cell]:
        """Every cell of every table, in order."""
        return [cell for table in self.tables.values() for cell in table]


def load(folder: Path = REGISTRY) -> Registry:
    """Read all files of a folder; everything that is wrong with them is told at once."""
    papers: dict[str, dict[str, Any]] = {}
    tables: dict[str, Table] = {}
    works: dict[str, Work] = {}
    faults: list[str] = []
    read = {path: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))}
    for path, content in sorted(read.items(), key=lambda pair: pair[1].get("paper", {}).get("place", 0)):
        papers[path.stem] = content.get("paper", {})
        raw: dict[str, dict[str, Any]] = {}
        for given in content.get("table", []):
            merged = {**raw.get(given.get("like", ""), {}), **given}
            raw[merged.get("name", "")] = merged
            if merged.get("name") in tables:
                faults.append(f"{path.name}: two tables are called {merged['name']}")
                continue
            try:
                table, made = _table(path.stem, merged)
            except (RegistryError, KeyError, ValueError) as error:
                faults.append(f"{path.name}: {merged.get('name')}: {error}")
                continue
            tables[table.name] = table
            works |= made
    registry = Registry(papers, tables, works)
    faults += _faults(registry)
    if faults:
        raise RegistryError("\n".join(faults))
    return registry


def _faults(registry: Registry) -> list[str]:
    faults, seen = [], set()
    for key, paper in registry.papers.items():
        faults += [
            f"{key}: the paper has no {word}" for word in ("title", "authors", "short") if not paper.get(word)
        ]
    for table in registry.tables.values():
        for cell in table:
            if cell.name in seen:
                faults.append(f"{cell.name} is there twice")
            seen.add(cell.name)
            if cell.work is not None and cell.work not in registry.works:
                faults.append(f"{cell.name} looks for {cell.work}, which nothing makes")
            if not cell.said and not table.own:
                faults.append(f"{cell.name} has no paper's value, and its table is not one of our own")
    for work in registry.works.values():
        if work.chosen_by is not None and work.chosen_by[0] not in registry.tables:
            faults.append(f"{work.name} is chosen by {work.chosen_by[0]}, which is not there")
        if work.minutes <= 0:
            faults.append(f"{work.name} has no cost")
        if work.scale not in ("full", "reduced") or (work.scale == "reduced") != bool(work.reduced):
            faults.append(f"{work.name}: scale is 'full', or 'reduced' with what was reduced")
    return faults


def _table(paper: str, raw: dict[str, Any]) -> tuple[Table, dict[str, Work]]:
    _known(raw, TABLE_KEYS)
    cells, works = [], {}
    for row in raw["rows"]:
        _known(row, AXIS_KEYS)
        said = row.get("paper", [""] * len(raw["columns"]))
        if len(said) != len(raw["columns"]):
            raise RegistryError(f"row {row['name']} has {len(said)} values for {len(raw['columns'])} columns")
        line = []
        for column, value in zip(raw["columns"], said):
            _known(column, AXIS_KEYS)
            cell, work = _cell(raw, row, column, value)
            line.append(cell)
            if work is not None:
                works[work.name] = work
        cells.append(tuple(line))
    costs = [work.minutes for work in works.values()] or [0.0]
    texts = {
        key: raw.get(key, "")
        for key in ("of", "title", "setting", "claim", "note", "own", "reduced", "short")
    }
    scale, comparable = raw.get("scale", "full"), bool(raw.get("comparable", True))
    table = Table(
        raw["name"], paper, scale=scale, comparable=comparable, minutes=(min(costs), max(costs)),
        cells=tuple(cells), **texts,
    )  # fmt: skip
    return table, works


def _cell(
    raw: dict[str, Any], row: dict[str, Any], column: dict[str, Any], said: str
) -> tuple[Cell, Work | None]:
    own = raw.get("cells", {}).get(f"{row['name']}-{column['name']}", {})
    levels = (raw, row, column, own)  # the later ones win
    name = f"{raw['name']}-{row['name']}-{column['name']}"
    value, deviation = _number(said)

    def last(key: str, default: Any) -> Any:
        return next((level[key] for level in reversed(levels) if key in level), default)

    names = {"row": row["name"], "column": column["name"]}
    cell: dict[str, Any] = {
        "name": name, "row": row["label"], "column": column["label"], "value": value, "deviation": deviation,
        "said": said, "measure": last("measure", "accuracy").format(**names), "unit": last("unit", "%"),
        "digits": last("digits", 2), "headline": bool(last("headline", False)),
    }  # fmt: skip
    if "read" in raw:
        return Cell(**cell, read=raw["read"].format(**names)), None
    if "work" in column:
        return Cell(**cell, work=column["work"].format(**names)), None
    made = f"{raw['name']}-{row['name']}" if raw.get("one_work") else name
    work = Work(
        made,
        tuple(word for level in levels for word in shlex.split(level.get("words", ""))),
        raw.get("experiment"),
        {key: value for level in levels for key, value in level.get("settings", {}).items()},
        float(last("minutes", 0)),
        int(raw.get("repetitions", 1)),
        raw.get("scale", "full"),
        raw.get("reduced", ""),
        (raw["chosen_by"], column["name"]) if "chosen_by" in raw else None,
    )
    if (work.experiment is None) == (not work.words):
        raise RegistryError(f"{made} needs words or an experiment, one of them")
    return Cell(**cell, work=made), work


def _number(said: str) -> tuple[float | None, float | None]:
    """A value and its deviation, from ``45.24 ± 0.42``; none from words, which are then a claim.

    >>> _number("45.24 ± 0.42"), _number("falls"), _number("64.0")
    ((45.24, 0.42), (None, None), (64.0, None))
    """
    number = r"[-+−]?\d+(?:\.\d+)?"
    found = re.fullmatch(rf"({number})(?: ± ({number}))?", said)
    if found is None:
        return None, None
    value, deviation = (None if text is None else float(text.replace("−", "-")) for text in found.groups())
    return value, deviation


def _known(given: dict[str, Any], keys: set[str]) -> None:
    if unknown := given.keys() - keys:
        raise RegistryError(f"unknown keys {', '.join(sorted(unknown))}")
