"""The pictures of docs/scale.md, drawn from the results of simulate.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

INK = "#1f2933"
COLOURS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#d9b310"]
Rows = list[dict[str, Any]]


def power(value: float) -> str:
    """10⁷ for 10000000."""
    exponent = round(len(str(round(value))) - 1)
    return "10" + str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """All pictures; returns their paths."""
    plt.rcParams.update(
        {"font.size": 10, "axes.edgecolor": "#9aa5b1", "text.color": INK, "axes.labelcolor": INK}
    )
    return [
        _saved(_noise(found), folder / "scale-noise.png"),
        _saved(_budget(found), folder / "scale-budget.png"),
        _saved(_ranks(found), folder / "scale-ranks.png"),
    ]


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _axes(axes: Any, title: str, across: str, up: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    axes.set_title(title, fontsize=11, loc="left", color=INK)
    axes.grid(alpha=0.25, which="major")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _noise(found: dict[str, Any]) -> Any:
    """Noise in a release over the batch size, with the knee of each population; and against sampling."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    for colour, knee in zip(COLOURS, found["knees"]):
        mine = [row for row in found["noise_by_batch"] if row["population"] == knee["population"]]
        left.plot([r["batch"] for r in mine], [r["noise"] for r in mine], color=colour, lw=1.8)
        at = next(r for r in mine if r["batch"] == knee["batch"])
        left.plot(at["batch"], at["noise"], "o", color=colour, ms=6)
        left.annotate(
            power(knee["population"]), (mine[-1]["batch"], mine[-1]["noise"]), xytext=(5, -3),
            textcoords="offset points", color=colour, fontsize=9,
        )  # fmt: skip
    left.plot([], [], "o", color="#6b7785", label="knee: larger batches save less than a third")
    left.legend(frameon=False, loc="lower left", fontsize=9)
    _axes(
        left, f"Noise left in a release, ε = {found['budget']:g}, {found['steps']:,} steps; by population",
        "batch size B", "σ / B: noise in a coordinate, in clip norms",
    )  # fmt: skip
    styles = {10**5: ("#365c8d", "-"), 10**7: ("#1fa187", "-"), 10**9: ("#d9b310", "-")}
    dashes = {10**4: ":", 10**6: "-", 10**8: "--"}
    for population, (colour, _) in styles.items():
        for parameters, dash in dashes.items():
            mine = [
                r for r in found["against_sampling"]
                if r["population"] == population and r["parameters"] == parameters
            ]  # fmt: skip
            right.plot([r["batch"] for r in mine], [r["ratio"] for r in mine], color=colour, ls=dash, lw=1.8)
    right.axhline(1, color="#c4573a", lw=1)
    right.annotate(
        "as long as the noise of sampling", (70, 1), xytext=(0, 4), textcoords="offset points",
        color="#c4573a", fontsize=9,
    )  # fmt: skip
    for population, (colour, _) in styles.items():
        right.plot([], [], color=colour, lw=1.8, label=f"population {power(population)}")
    for parameters, dash in dashes.items():
        right.plot([], [], color="#6b7785", ls=dash, label=f"{power(parameters)} parameters")
    right.legend(frameon=False, fontsize=9, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    _axes(right, "Privacy's noise over the noise of sampling, in length", "batch size B", "σ √(d/B)")
    return figure


def _budget(found: dict[str, Any]) -> Any:
    """ε of a fixed training over the population, and noise over the number of steps."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    kinds = sorted({(r["batch"], r["sigma"]) for r in found["epsilon_by_population"]})
    for colour, (batch, sigma) in zip(("#365c8d", "#c4573a", "#1fa187", "#d9b310"), kinds):
        mine = [r for r in found["epsilon_by_population"] if (r["batch"], r["sigma"]) == (batch, sigma)]
        left.plot(
            [r["population"] for r in mine], [r["epsilon"] for r in mine], color=colour, lw=1.8,
            label=f"B = {batch:,}, σ = {sigma:g}",
        )  # fmt: skip
    left.axhspan(1, 8, color="#e0f0e6", zorder=0)
    left.annotate("ε from 1 to 8", (1.2e3, 1.15), color="#3b8258", fontsize=9)
    left.legend(frameon=False, fontsize=9)
    _axes(
        left,
        f"ε of one fixed training of {found['steps']:,} steps",
        "population",
        "ε at δ = 0.1 / population",
    )
    kinds = sorted({(r["population"], r["batch"]) for r in found["noise_by_steps"]})
    for colour, (population, batch) in zip(("#440154", "#365c8d", "#1fa187", "#4ac16d", "#d9b310"), kinds):
        mine = [r for r in found["noise_by_steps"] if (r["population"], r["batch"]) == (population, batch)]
        right.plot(
            [r["steps"] for r in mine], [r["noise"] for r in mine], color=colour, marker="o", ms=4, lw=1.8,
            label=f"population {power(population)}, B = {batch:,}",
        )  # fmt: skip
    right.legend(frameon=False, fontsize=9, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    _axes(right, f"Noise left in a release, ε = {found['budget']:g}", "steps", "σ / B")
    return figure


def _ranks(found: dict[str, Any]) -> Any:
    """Where the time of a step goes, and how much of their time ranks work, over their number."""
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained", sharey=True)
    models = list(dict.fromkeys(r["model"] for r in found["speeds"]))
    for axes, batch in zip(panels, sorted({r["batch"] for r in found["speeds"]})):
        for colour, model in zip(("#440154", "#365c8d", "#1fa187", "#a0da39", "#d9b310"), models):
            mine = [r for r in found["speeds"] if (r["model"], r["batch"]) == (model, batch)]
            total = [r["rows"] + r["messages"] + r["rank 0"] for r in mine]
            axes.plot(
                [r["ranks"] for r in mine],
                [total[0] / each for each in total],
                color=colour,
                lw=1.8,
                label=model,
            )
        _axes(axes, f"batch size {batch:,}", "ranks", "")
        axes.plot([1, 4096], [1, 4096], color="#9aa5b1", ls=":", lw=1)
        axes.set(xlim=(1, 4096), ylim=(0.5, 4096))
    panels[0].set_ylabel("times as fast as one rank (model)")
    panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    return figure
