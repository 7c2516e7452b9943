"""The numbers of a bench as tables for people, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from saltflat.bench.goals import Goal, Sections, goals, summary
from saltflat.bench.growth import AXES
from saltflat.bench.tasks import LOGICAL
from saltflat.plan.table import aligned

MEGABYTE = 2**20
WIDTH = 100


def report(sections: Sections, machine: Mapping[str, Any], omitted: list[str]) -> str:
    """Everything that was measured, then the goals, then what was left out."""
    peers = ", ".join(f"{name} {version or 'not installed'}" for name, version in machine["peers"].items())
    blocks = [
        f"{machine['processor']}, {machine['threads']} thread{'s' * (machine['threads'] != 1)}, "
        f"torch {machine['torch']}\npeers: {peers}"
    ]
    writers = {
        "engines": _engines, "step": _step, "methods": _methods, "memory": _memory, "growth": _growth,
    }  # fmt: skip
    blocks += ["\n".join(write(sections[name])) for name, write in writers.items() if sections.get(name)]
    blocks.append("\n".join(_goals(goals(sections))))
    if omitted:
        blocks.append("\n".join(["left out:", *[f"  {line}" for line in omitted]]))
    return "\n".join(part for line in "\n\n".join(blocks).splitlines() for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    """A line within the width; the tables fit it anyway, and reasons may be long."""
    if len(line) <= WIDTH:
        return [line]
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _engines(found: Mapping[str, Any]) -> Iterator[str]:
    some = next(iter(found.values()))
    yield f"Throughput of saltflat's private step over that of others, {some['examples']} examples"
    yield f"(medians of {some['rounds']} rounds; in brackets the quartiles of the rounds)"
    rows = [["model", "ms", "ordinary", "chan. last", "Opacus", "torch.func", "jax", "floor", "error"]]
    for name, row in found.items():
        ratios = row["ratios"]
        ordinary = ratios["ordinary"]
        rows.append(
            [
                name,
                _milliseconds(row["contenders"]["saltflat"]["seconds"]),
                f"{ordinary['median']:.2f} ({ordinary['low']:.2f}–{ordinary['high']:.2f})",
                _ratio(ratios, "channels_last"),
                _ratio(ratios, "opacus") + _setting(row["fastest"].get("opacus")),
                _ratio(ratios, "torch.func") + _setting(row["fastest"].get("torch.func")),
                _ratio(ratios, "jax-privacy"),
                f"{row['floor']['median']:.2f}",
                f"{max(row['gradient_error'], row['clipped_error']):.0e}",
            ]
        )
    yield from _table(rows)
    absent: dict[str, list[str]] = {}
    for name, row in found.items():
        for line in _absent(row):
            absent.setdefault(line, []).append(name)
    for line, models in absent.items():
        where = "" if len(models) == len(found) else f" ({', '.join(models)})"
        yield f"  not compared: {line}{where}"
    told = summary(found and {"engines": found})
    words = {
        "ordinary": "ordinary", "channels_last": "channels_last", "opacus": "fastest Opacus",
        "torch.func": "torch.func",
    }  # fmt: skip
    for said, what in (
        ("geometric means", "geometric_mean"),
        ("at most, if gradients of matrices and kernels cost nothing", "limit"),
    ):
        means = [(word, told["means"][key][what]) for key, word in words.items()]
        yield f"  {said}: " + ", ".join(f"{word} {mean:.2f}" for word, mean in means if mean is not None)
    slower = [f"{row['model']} ({row['ratio']:.2f} × {row['peer']})" for row in told["slower_than_a_peer"]]
    yield "  slower than the fastest peer: " + (", ".join(slower) or "no model")
    for name in told["wrong_gradients"]:
        row = found[name]
        yield (
            f"  WRONG on {name}: relative error {row['gradient_error']:.1e} without a clip, "
            f"{row['clipped_error']:.1e} with one"
        )


def _absent(row: Mapping[str, Any]) -> list[str]:
    """Who could not take part on a model, and why; a family that is missing as a whole is named once."""
    lines = []
    for peer in row["missing"]:
        reasons = {other["reason"] for other in row["missing"] if other["family"] == peer["family"]}
        whole = peer["family"] not in row["ratios"] and len(reasons) == 1
        lines.append(f"{peer['family'] if whole else peer['name']}: {peer['reason']}")
    return list(dict.fromkeys(lines))


def _step(found: Mapping[str, Any]) -> Iterator[str]:
    for row in found.values():
        ratio = row["ratio"]
        yield f"A whole step, {row['model']}, batch {row['batch_size']:,} of {row['population']:,}"
        yield (
            f"  {row['seconds']:.3f} s with sampling, noise and optimizer; {row['gradient_seconds']:.3f} s for the "
            f"clipped gradient: {ratio['median']:.3f} ({ratio['low']:.3f}–{ratio['high']:.3f})"
        )


def _methods(found: Mapping[str, Any]) -> Iterator[str]:
    some = next(iter(found.values()))
    yield f"A step of each method over a step of DP-SGD, {some['model']}, batch {some['batch_size']:,}"
    rows = [["method", "seconds", "ratio", "interval", "rounds", "adds by itself, ms"]]
    for name, row in found.items():
        low, high = row["interval"]
        interval = f"{low:.3f}–{high:.3f} ({100 * row['confidence']:.0f} %)"
        rows.append([
            name, f"{row['seconds']:.3f}", f"{row['ratio']['median']:.3f}", interval, str(row["rounds"]),
            _added(row.get("added")),
        ])  # fmt: skip
    yield from _table(rows)


def _added(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    seconds, low, high = (f"{1000 * value:.1f}" for value in (row["seconds"], *row["interval"]))
    return f"{seconds} ({low} to {high})"


def _memory(found: Mapping[str, Any]) -> Iterator[str]:
    yield "Peak memory, MB, each in a fresh process"
    models = {name: row for name, row in found.items() if name != LOGICAL}
    if models:
        columns = ["saltflat", "ordinary", "opacus hooks", "opacus ghost", "saltflat, automatic"]
        rows = [["model", "micro-batch", "saltflat", "ordinary", "ratio", "hooks", "ghost", "own choice"]]
        for name, row in models.items():
            cells = [_megabytes(row["cells"].get(column, {"peak_bytes": None})) for column in columns]
            rows.append([name, str(row["micro_batch"]), *cells[:2], _number(row["ratio"]), *cells[2:]])
        yield from _table(rows)
        if small := [name for name, row in models.items() if not row["judged"]]:
            yield f"  too small to judge: {', '.join(small)}"
        for name, row in models.items():
            for column, cell in row["cells"].items():
                if cell["peak_bytes"] is None:
                    yield f"  not measured: {column} on {name}: {cell['reason']}"
    if LOGICAL in found:
        row = found[LOGICAL]
        sizes = [f"{_megabytes(cell)} at {batch:,}" for cell, batch in zip(row["cells"], row["batches"])]
        yield f"  a whole step, logical batch, {row['model']}: {', '.join(sizes)} (ratio {_number(row['ratio'])})"


def _growth(found: Mapping[str, Any]) -> Iterator[str]:
    yield "Growth"
    for axis in AXES:
        points = [row for row in found.values() if row["axis"] == axis]
        if not points:
            continue
        timed, sized = (
            list(dict.fromkeys(name for row in points for name in row[key])) for key in ("seconds", "bytes")
        )
        rows = [[axis, *[f"{name}, s" for name in timed], *[f"{name}, MB" for name in sized]]]
        for row in sorted(points, key=lambda row: row["at"]):
            seconds = [_number(row["seconds"].get(name), ".3g") for name in timed]
            sizes = [_megabytes({"peak_bytes": row["bytes"].get(name)}) for name in sized]
            rows.append([f"{row['at']:,}", *seconds, *sizes])
        yield from _table(rows)


def _goals(found: list[Goal]) -> Iterator[str]:
    yield "Goals"
    rows = [["", "goal", "found", "wanted", "over"]]
    for goal in found:
        mark = {True: "met", False: "NOT MET", None: "–"}[goal.met]
        sign = "≥" if goal.at_least else "≤"
        rows.append([mark, goal.name, _number(goal.value, ".3g"), f"{sign} {goal.bound:g}", goal.over])
    yield from _table(rows)


def _ratio(ratios: Mapping[str, Any], family: str) -> str:
    return f"{ratios[family]['median']:.2f}" if family in ratios else "–"


def _setting(name: str | None) -> str:
    """The mode and batch of the fastest setting: ``opacus ghost, 64`` is ``(ghost 64)``."""
    if name is None:
        return ""
    return f" ({name.partition(' ')[2].replace(',', '')})" if " " in name else ""


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"


def _megabytes(cell: Mapping[str, Any]) -> str:
    size = cell["peak_bytes"]
    return "–" if size is None else f"{size / MEGABYTE:.0f}"


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def _table(rows: list[list[str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows)]
