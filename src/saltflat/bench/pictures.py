"""The numbers of a bench as pictures: ratios by model, and growth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from saltflat.bench.goals import Sections
from saltflat.bench.growth import AXES
from saltflat.errors import pyplot_for

COLOURS = {
    "saltflat": "#0b6e99", "ordinary": "#6b7785", "channels_last": "#b9c2cc", "opacus": "#d97b29",
    "opacus hooks": "#d97b29", "torch.func": "#8a5fb0", "jax-privacy": "#4b9b5f",
}  # fmt: skip
WORDS = {
    "saltflat": "saltflat, private", "channels_last": "ordinary, channels_last", "opacus": "Opacus, fastest mode",
    "torch.func": "torch.func", "jax-privacy": "jax-privacy",
}  # fmt: skip
UNITS = {
    "logical batch": "logical batch, examples",
    "parameters": "trainable parameters",
    "micro-batch": "micro-batch, examples",
}
INK = "#1f2933"
Ends = list[tuple[tuple[float, float], str]]


def draw(sections: Sections, folder: Path) -> list[Path]:
    """Whatever the results allow: ``ratios.png`` and ``growth.png``."""
    plt = pyplot_for("drawing the pictures of a bench")
    found = []
    with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        for name, section, paint in (("ratios", "engines", _ratios), ("growth", "growth", _growth)):
            if sections.get(section):
                figure = paint(plt, sections[section])
                path = folder / f"{name}.png"
                figure.savefig(path, dpi=130)
                plt.close(figure)
                found.append(path)
    return found


def _ratios(plt: Any, found: Any) -> Any:
    """One group of bars a model, longest is fastest, with a line where the ordinary step is."""
    shown = {name: _shown_families(row) for name, row in found.items()}
    height = 0.8 / max(map(len, shown.values()))
    figure, axes = plt.subplots(figsize=(9, 1.2 + 1.15 * len(found)), layout="constrained")
    named = set()
    for number, (model, families) in enumerate(shown.items()):
        for place, family in enumerate(families):
            value = _throughput(found[model], family)
            at = number + (place - (len(families) - 1) / 2) * height
            label = None if family in named else WORDS[family]
            named.add(family)
            axes.barh(at, value or 0, height * 0.9, color=COLOURS[family], label=label)
            axes.annotate(
                f"{WORDS[family]}: not compared" if value is None else f"{value:.2f}", (value or 0, at),
                xytext=(3, 0), fontsize=8, textcoords="offset points", va="center", color=INK,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3}, zorder=3,
            )  # fmt: skip
    axes.axvline(1.0, color=INK, linewidth=1, zorder=2)
    axes.annotate(
        "ordinary step = 1", (1.0, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 3), fontsize=9,
        textcoords="offset points", ha="center", va="bottom", color=INK,
    )  # fmt: skip
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.margins(x=0.08)
    axes.set_xlabel("throughput, times that of the ordinary step in the default memory format")
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=len(named), frameon=False, fontsize=9)
    return figure


def _shown_families(row: Any) -> list[str]:
    """The families of a model's bars: those that ran, and those that tried and could not."""
    tried = {peer["family"] for peer in row["missing"] if peer["reason"] != "not installed"}
    tried.discard("jax-privacy")  # written for one model: its absence elsewhere says nothing
    return [name for name in WORDS if name in row["fastest"] or name in tried]


def _throughput(row: Any, family: str) -> float | None:
    """Of the fastest setting of a family, relative to the ordinary step."""
    name = row["fastest"].get(family)
    return None if name is None else float(row["contenders"][name]["throughput"]["median"])


def _growth(plt: Any, found: Any) -> Any:
    """Time above, memory below; a column for each thing that grows."""
    shown = [axis for axis in AXES if any(row["axis"] == axis for row in found.values())]
    figure, grid = plt.subplots(
        2, len(shown), figsize=(4.6 * len(shown), 6.4), squeeze=False, layout="constrained"
    )
    panels = []
    for column, axis in enumerate(shown):
        points = sorted((row for row in found.values() if row["axis"] == axis), key=lambda row: row["at"])
        panels.append((grid[0][column], _panel(grid[0][column], points, "seconds", 1.0)))
        panels.append((grid[1][column], _panel(grid[1][column], points, "bytes", 2.0**20)))
        examples = points[0].get("examples")
        what = "a whole step" if examples is None else f"the gradient of {examples} examples"
        grid[0][column].set_title(f"{what}, against {axis}", fontsize=10)
        grid[1][column].set_xlabel(UNITS[axis])
        _same_ticks(
            grid[0][column], grid[1][column], [row["at"] for row in points], powers=axis != "parameters"
        )
    grid[0][0].set_ylabel("time of a step, seconds")
    grid[1][0].set_ylabel("peak memory, MB")
    figure.draw_without_rendering()  # so that data can be turned into places on the page
    for axes, ends in panels:
        _name_ends(axes, ends)
    return figure


def _panel(axes: Any, points: list[Any], key: str, unit: float) -> Ends:
    """One line an engine, on two logarithmic axes; where each of them ends."""
    ends = []
    for name in ("saltflat", "ordinary", "opacus hooks"):
        line = [(row["at"], row[key][name] / unit) for row in points if row[key].get(name)]
        if line:
            axes.plot(*zip(*line), marker="o", markersize=4, linewidth=2, color=COLOURS[name])
            ends.append((line[-1], name))
    axes.set(xscale="log", yscale="log")
    axes.grid(alpha=0.25, which="major")
    values = [row[key][name] / unit for row in points for name in row[key] if row[key][name]]
    if values:
        # at least a decade, so that a flat line looks flat
        low, high = min(values) / 1.4, max(values) * 1.4
        middle = (low * high) ** 0.5
        axes.set_ylim(min(low, middle / 10**0.5), max(high, middle * 10**0.5))
    return ends


def _name_ends(axes: Any, ends: Ends) -> None:
    """The names beside the last points, moved apart where they would touch."""
    words = {"saltflat": "saltflat", "ordinary": "ordinary", "opacus hooks": "Opacus"}
    figure = axes.get_figure()
    least = 12 * figure.dpi / 72
    last = None
    for (x, y), name in sorted(ends, key=lambda end: end[0][1]):
        at = axes.transData.transform((x, y))[1]
        moved = at if last is None else max(at, last + least)
        last = moved
        axes.annotate(
            words[name], (x, y), xytext=(7, (moved - at) * 72 / figure.dpi), textcoords="offset points",
            va="center", color=COLOURS[name], fontsize=9, annotation_clip=False,
        )  # fmt: skip


def _same_ticks(above: Any, below: Any, places: list[float], powers: bool) -> None:
    """Ticks where there are points, in plain numbers, with room at the right for the names."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    for axes in (above, below):
        axes.set_xlim(min(places) / 1.3, max(places) * (max(places) / min(places)) ** 0.28 * 1.3)
        if powers:
            axes.set_xticks(places[:: 1 if len(places) < 7 else 2])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def _short(value: float) -> str:
    """1,024 as 1k only where it is a round thousand; millions with M."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e4 and value % 1000 == 0 else f"{value:g}"
