"""The pictures of the results page. Each is drawn from the results alone, and holds a hash of what it shows."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.outcomes import RESULTS, outcome, read, result_files
from papers.registry import ROOT, Registry

FOLDER = ROOT / "docs" / "pictures"
INK, GREY, GRID = "#1f2933", "#6b7785", "#d9dee4"
BLUE, ORANGE, GREEN = "#3f67a3", "#c4573a", "#3b8258"
COLOURS = {"DP-SGD": BLUE, "DP-SAT": ORANGE, "SAI": GREEN}


@dataclass(frozen=True)
class Picture:
    """A file, what it shows in words, the data that is drawn, and how."""

    name: str
    words: str
    data: Any
    draw: Callable[[Any], Any]

    @property
    def key(self) -> str:
        """Changes when what is shown does."""
        return hashlib.sha256(json.dumps(self.data, sort_keys=True).encode()).hexdigest()[:16]


def pictures(registry: Registry, results: Path = RESULTS) -> list[Picture]:
    """Those for which there is something to show."""
    found = [
        Picture(
            "results-paper-and-ours.svg", "Accuracies of the papers and ours, cell by cell, at full scale",
            paper_and_ours(registry, results), draw_paper_and_ours,
        ),
        Picture(
            "results-averages.svg", "Averages of iterates against steps, and against the cycle length",
            averages(results), draw_averages,
        ),
        Picture(
            "results-courses.svg", "Test accuracy after each epoch, run by run, by method and ε",
            courses(registry, results), draw_courses,
        ),
        Picture(
            "results-sharpness.svg", "Sharpness against epochs under DP-SAT, for three budgets",
            sharpness(results), draw_sharpness,
        ),
        Picture(
            "results-epochs.svg", "Accuracy against the number of epochs over which one budget is spent, by method",
            epochs(registry, results), draw_epochs,
        ),
    ]  # fmt: skip
    return [picture for picture in found if picture.data]


def up_to_date(picture: Picture, folder: Path = FOLDER) -> bool:
    """Whether the file shows what the results say."""
    path = folder / picture.name
    return path.exists() and f"shows {picture.key}" in path.read_text(encoding="utf-8")


def write_all(drawn: list[Picture], folder: Path = FOLDER) -> None:
    """Draw these, and remove what is no longer drawn."""
    for picture in drawn:
        write(picture, folder)
    for path in folder.glob("results-*.svg"):
        if path.name not in {picture.name for picture in drawn}:
            path.unlink()


def write(picture: Picture, folder: Path = FOLDER) -> None:
    """Draw it, unless it is there already."""
    if up_to_date(picture, folder):
        return
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    style = {
        "svg.hashsalt": "saltflat", "font.size": 10, "axes.edgecolor": GREY, "axes.labelcolor": INK,
        "text.color": INK, "xtick.color": GREY, "ytick.color": GREY, "axes.grid": True, "grid.color": GRID,
        "axes.titlesize": 11, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    }  # fmt: skip
    with plt.rc_context(style):
        figure = picture.draw(picture.data)
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
        figure.savefig(
            folder / picture.name,
            metadata={"Date": None, "Description": f"shows {picture.key}"},
            facecolor="white",
        )
        plt.close(figure)
    _shorter(folder / picture.name)


def _shorter(path: Path) -> None:
    """Six digits are enough for a picture."""
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"(\d+\.\d{3})\d+", r"\1", text), encoding="utf-8")


# --- paper and ours ---------------------------------------------------------------------------------


def paper_and_ours(registry: Registry, results: Path) -> list[dict[str, Any]]:
    """Every accuracy at full scale that both have."""
    rows = []
    for table in registry.tables.values():
        for cell in table:
            found = outcome(cell, results)
            comparable = table.scale == "full" and cell.unit == "%" and "accuracy" in cell.measure
            if comparable and cell.value is not None and found is not None and found.values:
                title = table.short or re.sub(r"[,:] .*", "", table.title)
                rows.append({
                    "label": f"{title}, {cell.row}, {cell.column}", "paper": cell.value, "deviation": cell.deviation,
                    "ours": round(found.mean, 3), "ours_deviation": round(found.deviation or 0, 3),
                })  # fmt: skip
    return rows


def draw_paper_and_ours(rows: list[dict[str, Any]]) -> Any:
    """One line a cell, the paper's number hollow and ours full."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.3 * len(rows)), layout="constrained")
    for place, row in enumerate(rows):
        axes.plot([row["paper"], row["ours"]], [place, place], color=GRID, lw=3, zorder=1)
    places = range(len(rows))
    axes.errorbar(
        [r["paper"] for r in rows], places, xerr=[r["deviation"] or 0 for r in rows], fmt="o", mfc="white",
        color=ORANGE, label="paper", capsize=2, zorder=2,
    )  # fmt: skip
    axes.errorbar(
        [r["ours"] for r in rows], places, xerr=[r["ours_deviation"] for r in rows], fmt="o", color=BLUE,
        label="ours, last iterate or average", capsize=2, zorder=3,
    )  # fmt: skip
    axes.set_yticks(list(places), [r["label"] for r in rows], color=INK)
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy, % (bars: standard deviation over runs)")
    figure.suptitle("The papers' accuracies and ours, at the same ε and δ", fontsize=11)
    figure.legend(loc="outside lower right", ncols=2)
    return figure


# --- averages ---------------------------------------------------------------------------------------


def averages(results: Path) -> dict[str, Any]:
    """DP-SWA's linear and logistic regressions, as far as they were run; reduced ones where there is no full one."""
    found: dict[str, Any] = {}
    # at C = 17 first: at C = 1 DP-SGD does not come near, and an average of its iterates shows nothing
    kinds = ("dp-swa-table1-clip17", "dp-swa-table1", "dp-swa-table1-reduced")
    linear = next((kind for kind in kinds if result_files(f"{kind}-eps8", results)), kinds[-1])
    for epsilon in (1, 8):
        runs = _runs(f"{linear}-eps{epsilon}", results)
        if runs:
            size = runs[0]["settings"].get("dimension", 256)
            found[f"linear {epsilon}"] = {
                "reduced": runs[0]["reduced"], "clip_norm": runs[0]["settings"].get("clip_norm", 1.0),
                "iterate": _curve(runs, "loss", size), "average": _curve(runs, "average_loss", size),
                "by_cycle": _by_cycle(runs),
            }  # fmt: skip
        runs = _runs(f"dp-swa-table2-eps{epsilon}", results)
        if runs:
            found[f"logistic {epsilon}"] = {
                "by_cycle": _by_cycle(runs, 100),
                "last": 100 * _mean(runs, "accuracy"),
            }
    return found


def draw_averages(found: dict[str, Any]) -> Any:
    """Distance against steps; distance and accuracy against cycle lengths."""
    panels = [kind for kind in ("linear", "logistic") if any(key.startswith(kind) for key in found)]
    count = 2 * ("linear" in panels) + ("logistic" in panels)
    figure, axes = _panels(count, 4.3, 4.0)
    colours = {"1": ORANGE, "8": BLUE}
    if "linear" in panels:
        steps, cycles = axes[0], axes[1]
        for key, told in found.items():
            kind, epsilon = key.split()
            if kind != "linear":
                continue
            colour = colours[epsilon]
            steps.loglog(*zip(*told["iterate"]), color=colour, alpha=0.45, label=f"ε = {epsilon}, iterate")
            steps.loglog(*zip(*told["average"]), color=colour, lw=2, label=f"ε = {epsilon}, average")
            cycles.loglog(*zip(*told["by_cycle"]), "o-", color=colour, label=f"ε = {epsilon}")
        steps.set(xlabel="private steps", ylabel="squared distance to the generating weights")
        reduced = any(told.get("reduced") for told in found.values())
        clip_norm = next(told["clip_norm"] for key, told in found.items() if key.startswith("linear"))
        steps.set_title(f"Linear regression, C = {clip_norm:g}" + (", reduced" if reduced else ""))
        steps.legend(fontsize=8)
        cycles.set(xlabel="cycle length c", ylabel="squared distance of the average")
        cycles.set_title("The same, by cycle length")
        cycles.legend(fontsize=8)
    if "logistic" in panels:
        for key, told in found.items():
            kind, epsilon = key.split()
            if kind == "logistic":
                axes[-1].semilogx(
                    *zip(*told["by_cycle"]), "o-", color=colours[epsilon], label=f"ε = {epsilon}, average"
                )
                axes[-1].axhline(
                    told["last"], color=colours[epsilon], ls=":", label=f"ε = {epsilon}, last iterate"
                )
        axes[-1].set(xlabel="cycle length c", ylabel="test accuracy, %")
        axes[-1].set_title("Logistic regression, Fashion-MNIST")
        axes[-1].legend(fontsize=8)
    return figure


# --- courses ----------------------------------------------------------------------------------------


def courses(registry: Registry, results: Path) -> dict[str, Any]:
    """SAI's Table 1: accuracy after each epoch, for each row of which two methods were run at full scale."""
    found: dict[str, Any] = {}
    for table in registry.tables.values():
        if not table.name.startswith("sai-table1") or table.scale != "full":
            continue
        for cell in table:
            runs = [] if cell.work is None else _runs(cell.work, results)
            curves = [
                [[row["epoch"], round(100 * row["accuracy"], 2)] for row in run["history"]] for run in runs
            ]
            if curves:
                panel = found.setdefault(f"{table.short}, {cell.row}", {})
                panel[cell.column] = {"runs": curves, "paper": cell.value}
    return {title: panel for title, panel in found.items() if len(panel) > 1}


def draw_courses(found: dict[str, Any]) -> Any:
    """One panel a row of the table, one line a run; at the right edge what the paper reports."""
    figure, several = _panels(len(found), 4.4, 4.0)
    for axes, (title, panel) in zip(several, found.items()):
        for method, told in panel.items():
            for number, points in enumerate(told["runs"]):
                label = method if number == 0 else None
                axes.plot(*zip(*points), color=COLOURS[method], lw=1.4, label=label)
            if told["paper"] is not None:
                last = told["runs"][0][-1][0]
                axes.plot(1.03 * last, told["paper"], "D", ms=5, mfc="white", color=COLOURS[method])
        axes.plot([], [], "D", ms=5, mfc="white", color=GREY, label="paper")
        axes.set(xlabel="epoch", ylabel="test accuracy, %")
        axes.set_title(title.replace(", 30 epochs", ""), fontsize=10)
        axes.legend(fontsize=8)
    return figure


# --- sharpness --------------------------------------------------------------------------------------


def sharpness(results: Path) -> dict[str, Any]:
    """SAI's Figure 2: sharpness and loss after each epoch, by ε."""
    full = bool(result_files("sai-figure2-eps1", results))
    name, found = "sai-figure2" if full else "sai-figure2-reduced", {}
    for row, label in (("inf", "ε = ∞"), ("eps8", "ε = 8"), ("eps1", "ε = 1")):
        runs = _runs(f"{name}-{row}", results)
        if runs:
            found[label] = [[r["epoch"], r["sharpness"], r["loss"]] for r in runs[0]["sharpness"]]
    return {"curves": found, "full": full} if found else {}


def draw_sharpness(found: dict[str, Any]) -> Any:
    """One panel a budget: sharpness on the left axis, test loss on the right one."""
    curves = found["curves"]
    figure, several = _panels(len(curves), 4.0, 3.6)
    for axes, (label, points) in zip(several, curves.items()):
        epoch, sharp, loss = zip(*points)
        axes.plot(epoch, sharp, "o-", ms=3, color=ORANGE)
        axes.set(xlabel="epoch", ylim=(0, None))
        axes.set_title(label)
        other = axes.twinx()
        other.plot(epoch, loss, "s--", ms=3, color=BLUE)
        other.set_ylim(0, None)
        other.grid(visible=False)
        other.tick_params(colors=BLUE)
        axes.tick_params(axis="y", colors=ORANGE)
        if axes is several[0]:
            axes.set_ylabel("sharpness λ_max, test rows", color=ORANGE)
        if axes is several[-1]:
            other.set_ylabel("test loss", color=BLUE)
    scale = "dpnas-mnist" if found["full"] else "mlp, reduced"
    figure.suptitle(f"Sharpness and loss under DP-SAT on MNIST ({scale}), one run each", fontsize=11)
    return figure


# --- epochs -----------------------------------------------------------------------------------------


def epochs(registry: Registry, results: Path) -> dict[str, Any]:
    """The tables that choose a number of steps: accuracy by epochs, for each method."""
    found: dict[str, Any] = {}
    for table in registry.tables.values():
        if not table.name.startswith("fair-choose"):
            continue
        curves: dict[str, Any] = {}
        for cell in table:
            told = outcome(cell, results)
            if told is not None and told.values:
                point = [int(cell.row.split()[0]), round(told.mean, 3), round(told.deviation or 0, 3)]
                curves.setdefault(cell.column, []).append(point)
        if any(len(points) > 2 for points in curves.values()):
            found[table.title] = curves
    return found


def draw_epochs(found: dict[str, Any]) -> Any:
    """One panel a table, one line a method."""
    figure, several = _panels(len(found), 6.4, 4.0)
    for axes, (title, curves) in zip(several, found.items()):
        for method, points in curves.items():
            at, mean, deviation = zip(*points)
            axes.errorbar(at, mean, yerr=deviation, fmt="o-", color=COLOURS[method], capsize=2, label=method)
        ticks = sorted({point[0] for points in curves.values() for point in points})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set(xlabel="epochs over which ε = 1 is spent", ylabel="test accuracy, %")
        axes.set_title(title[:1].upper() + title[1:])
        axes.legend()
    return figure


# --- what several share -----------------------------------------------------------------------------


def _panels(count: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with so many panels of this size side by side."""
    import matplotlib.pyplot as plt

    size = (width * count, height)
    figure, axes = plt.subplots(1, count, figsize=size, layout="constrained", squeeze=False)
    return figure, list(axes[0])


def _runs(work: str, results: Path) -> list[dict[str, Any]]:
    found = [read(path) for _, path in sorted(result_files(work, results).items())]
    return [run for run in found if "failed" not in run]


def _mean(runs: list[dict[str, Any]], key: str) -> float:
    return statistics.fmean(run[key] for run in runs)


def _curve(runs: list[dict[str, Any]], key: str, factor: float) -> list[list[float]]:
    """The mean over runs of a number of the history, against steps."""
    points: dict[int, list[float]] = {}
    for run in runs:
        for row in run["history"]:
            if isinstance(row.get(key), float):
                points.setdefault(row["step"], []).append(factor * row[key])
    return [[step, float(f"{statistics.fmean(values):.5g}")] for step, values in sorted(points.items())]


def _by_cycle(runs: list[dict[str, Any]], factor: float = 1.0) -> list[list[float]]:
    cycles = sorted(runs[0]["by_cycle"], key=int)
    return [
        [int(c), float(f"{factor * statistics.fmean(run['by_cycle'][c] for run in runs):.5g}")]
        for c in cycles
    ]
