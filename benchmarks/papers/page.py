"""``docs/results.md``, its pictures and the README's rows, from the registry and the results alone.

What stands between the two marks "by hand" is kept as it is; everything else is made anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from marks import between

from papers import pictures
from papers.outcomes import RESULTS, chosen_row, outcome
from papers.registry import ROOT, Cell, Registry, Table

PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- by hand: begin -->", "<!-- by hand: end -->"
ROWS_BEGIN, ROWS_END = "<!-- results: begin -->", "<!-- results: end -->"
NOT_RUN = "not run"
HEAD = "| | | paper | ours | difference | runs |\n|---|---|---|---|---|---|"

INTRODUCTION = """# Results beside the papers

What the papers report, what was measured here, and what was not run. Made by `python benchmarks/papers/run.py --page` from `benchmarks/papers/registry` and the results, one file a run, in `benchmarks/papers/results`; only the section by hand is written by somebody.

- Ours are **last iterates** (or averages of iterates, where it says so) at the end of the plan. The papers choose the best epoch on the test set, at least in part.
- ε is that of the whole plan by privacy loss distributions, under Poisson sampling, with the expected batch size as divisor. Each result file holds the plan, ε by PLD and by RDP, the version, the time and the class of machine.
- Noise, batches and initial weights are drawn afresh in every run, because a seeded run is not private. *Runs* counts repetitions; ± is the standard deviation over them. Every run that was made counts, also bad ones.
- "Reduced" runs are smaller than the paper's, and say how. Their accuracies stand beside the paper's for orientation only: compare within a row.
- Accuracies on test rows are exact numbers, not covered by ε.

`make papers MINUTES=60` makes the cheapest runs that are missing and fit into an hour, and writes this page. `python benchmarks/papers/run.py --list` shows what each run costs on two cores."""  # noqa: E501 - one line a paragraph, as in all pages


def write(registry: Registry, results: Path = RESULTS) -> None:
    """Write the page, the pictures and the rows in the README."""
    pictures.write_all(pictures.pictures(registry, results))
    PAGE.write_text(
        page(registry, PAGE.read_text("utf-8") if PAGE.exists() else "", results), encoding="utf-8"
    )
    README.write_text(with_rows(README.read_text("utf-8"), headline(registry, results)), encoding="utf-8")


def page(registry: Registry, before: str, results: Path = RESULTS) -> str:
    """The whole page; ``before`` is the page as it was, of which the part by hand is kept."""
    by_hand = re.search(rf"{BEGIN}\n(.*?){END}", before, re.DOTALL)
    parts = [
        INTRODUCTION,
        "## What was found",
        f"{BEGIN}\n{by_hand[1] if by_hand else ''}{END}",
        "## How much was run",
        overview(registry, results),
        *(f"![{p.words}](pictures/{p.name})" for p in pictures.pictures(registry, results)),
    ]
    for key, paper in registry.papers.items():
        parts.append(f"## {paper['short']}")
        parts.append(f"{paper['authors']}: *{paper['title']}*.")
        parts += [section(registry, t, results) for t in registry.tables.values() if t.paper == key]
    return "\n\n".join(parts) + "\n"


def overview(registry: Registry, results: Path) -> str:
    """How many cells of each paper were run at which scale, and how many were not."""
    lines = ["| | cells | run at full scale | run reduced | not run |", "|---|---|---|---|---|"]
    for key, paper in registry.papers.items():
        counts = {"full": 0, "reduced": 0, NOT_RUN: 0}
        for table in registry.tables.values():
            for cell in table if table.paper == key else ():
                counts[table.scale if outcome(cell, results) else NOT_RUN] += 1
        total = sum(counts.values())
        lines.append(
            f"| {paper['short']} | {total} | {counts['full']} | {counts['reduced']} | {counts[NOT_RUN]} |"
        )
    return "\n".join(lines)


def section(registry: Registry, table: Table, results: Path) -> str:
    """One table: what is held fixed, what it costs, how to make it, and its cells."""
    parts = [f"### {table.of}: {table.title}", f"{_sentence(table.setting)} {_cost(table)}"]
    if table.claim:
        parts.append(f"What the paper says: {table.claim[:1].lower()}{table.claim[1:]}")
    if table.own:
        parts.append(f"No number of a paper: {table.own}")
    if table.note:
        parts.append(table.note)
    parts += [_cells(registry, table, results), _how(registry, table)]
    return "\n\n".join(parts)


def _cells(registry: Registry, table: Table, results: Path) -> str:
    """One line a cell; where nothing was run at all, one line a row."""
    if all(outcome(cell, results) is None for cell in table):
        return _not_run(table)
    lines = [HEAD]
    for row in table.cells:
        for number, cell in enumerate(row):
            label = cell.row if number == 0 else ""
            chosen = _chosen(registry, cell, results)
            lines.append(f"| {label} | {cell.column}{chosen} | {_line(table, cell, results)} |")
    return "\n".join(lines)


def _not_run(table: Table) -> str:
    """What the paper says, and that it was not run."""
    names = [cell.column for cell in table.cells[0]]
    said = [[cell.said for cell in row] for row in table.cells]
    if not any(value for row in said for value in row):
        tried = ", ".join(row[0].row for row in table.cells)
        return f"{NOT_RUN.capitalize()}: {tried}, each with {', '.join(names)}."
    lines = [f"| paper | {' | '.join(names)} | ours |", "|---" * (len(names) + 2) + "|"]
    lines += [
        f"| {row[0].row} | {' | '.join(values)} | {NOT_RUN} |" for row, values in zip(table.cells, said)
    ]
    return "\n".join(lines)


def _cost(table: Table) -> str:
    low, high = table.minutes
    scale = "Full scale" if table.scale == "full" else f"**Reduced**: {table.reduced}"
    if not high:
        source = "another benchmark" if table.cells[0][0].read else "the runs of another table"
        return f"{scale}; from the results of {source}."
    minutes = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return f"{scale}; {minutes} minute{'' if minutes == '1' else 's'} a run on two cores."


def _how(registry: Registry, table: Table) -> str:
    made = [registry.works[cell.work] for cell in table if cell.work]
    if not made:
        return f"Read from files such as `{table.cells[0][0].read}`."
    example = "" if made[0].experiment is not None else f", for example `{made[0].command}`"
    return f"`python benchmarks/papers/run.py {table.name}`{example}"


def _chosen(registry: Registry, cell: Cell, results: Path) -> str:
    """Which row of another table decided about this cell."""
    work = registry.works.get(cell.work or "")
    if work is None or work.chosen_by is None:
        return ""
    chosen = chosen_row(registry, work, results)
    return " (not chosen yet)" if chosen is None else f" ({chosen[0]})"


def _line(table: Table, cell: Cell, results: Path) -> str:
    """Paper, ours, difference, runs."""
    said, found = cell.said or "–", outcome(cell, results)
    if found is None:
        return f"{said} | {NOT_RUN} | |"
    failed = f", {found.failed} failed" if found.failed else ""
    if not found.values:
        return f"{said} | failed | | {found.failed}"
    ours = _shown(cell, found.mean)
    if found.deviation is not None:
        ours += f" ± {_shown(cell, found.deviation)}"
    difference = "" if cell.value is None or not table.comparable else _signed(cell, found.mean - cell.value)
    return f"{said} | {ours} | {difference} | {len(found.values)}{failed}"


def _shown(cell: Cell, value: float) -> str:
    """Decimals for percentages, significant digits for anything else."""
    return (
        f"{value:.{cell.digits}f}"
        if cell.unit == "%"
        else f"{value:.{max(2, cell.digits)}g}".replace("-", "−")
    )


def _signed(cell: Cell, value: float) -> str:
    shown = _shown(cell, abs(value))
    return shown if float(shown) == 0 else f"{'−' if value < 0 else '+'}{shown}"


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a Greek letter, and a full stop."""
    first = text[:1].upper() if text[:1].isascii() else text[:1]
    return first + text[1:] + ("" if text.endswith(".") else ".")


# --- the README -------------------------------------------------------------------------------------


def headline(registry: Registry, results: Path = RESULTS) -> str:
    """The rows that the README shows: paper and ours, most of it in one look."""
    lines = [HEAD]
    for table in registry.tables.values():
        for row in table.cells if table.scale == "full" else ():
            cells = [cell for cell in row if cell.headline]
            what = f"{table.short or table.title}, {row[0].row}"
            if cells and all(outcome(cell, results) is None for cell in cells):
                names, said = (
                    " / ".join(words) for words in zip(*((cell.column, cell.said) for cell in cells))
                )
                lines.append(f"| {what} | {names} | {said} | {NOT_RUN} | | |")
                continue
            for cell in cells:
                chosen = _chosen(registry, cell, results)
                lines.append(f"| {what} | {cell.column}{chosen} | {_line(table, cell, results)} |")
                what = ""
    return "\n".join(lines)


def with_rows(readme: str, rows: str) -> str:
    """The README with these rows between its marks."""
    return between(readme, ROWS_BEGIN, ROWS_END, rows)
