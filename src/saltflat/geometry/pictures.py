"""The plain data of a geometry as pictures. Every picture carries the label of the rows it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from saltflat.errors import pyplot_for
from saltflat.geometry.rows import TRAIN

COLOURS = ("#0b6e99", "#d97b29", "#4b9b5f", "#8a5fb0", "#b03a5b", "#6b7785")
INK, GREY, WARNING = "#1f2933", "#6b7785", "#b3261e"
STYLE: dict[Any, Any] = {
    "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.edgecolor": GREY,
    "axes.spines.top": False, "axes.spines.right": False, "axes.labelcolor": INK, "text.color": INK,
    "figure.facecolor": "white", "savefig.facecolor": "white", "legend.frameon": False,
}  # fmt: skip


def draw(found: dict[str, Any], folder: Path, stem: str = "geometry") -> list[Path]:
    """Whatever ``geometry.json`` holds: spectrum, landscape, wideness, gradients, a PNG each."""
    wanted: list[tuple[str, Any, Callable[[Any, dict[str, Any]], Any]]] = [
        ("spectrum", found.get("eigenvalues") or found.get("density"), _spectrum),
        ("landscape", found.get("landscape"), _landscape),
        ("wideness", found.get("wideness"), lambda plt, found: _wideness(plt, [found], None)),
        ("gradients", found.get("gradient_norms"), _gradients),
    ]
    paths = []
    with pyplot() as plt:
        for name, there, paint in wanted:
            if there is not None:
                figure = paint(plt, found)
                paths.append(_saved(plt, figure, folder / f"{stem}-{name}.png", [found["data"]]))
    return paths


def draw_interpolation(found: dict[str, Any], path: Path) -> Path:
    """Loss and accuracy on the line through two models."""
    with pyplot() as plt:
        has_accuracy = any(value is not None for value in found["test"]["accuracy"])
        figure, grid = plt.subplots(
            1, 2 if has_accuracy else 1, figsize=(10 if has_accuracy else 6, 4), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for axes, word in zip(grid[0], ("loss", "accuracy")):
            for split, colour, dashes in (("test", COLOURS[0], "-"), ("train", COLOURS[1], "--")):
                if found.get(split) is not None:
                    on = found["data"]["split"] if split == "test" else "private training"
                    values = _gaps(found[split][word])
                    axes.plot(found["alpha"], values, dashes, color=colour, linewidth=2, label=f"{on} rows")
            top = _head_room(axes)
            for place, run in zip((0, 1), found["runs"]):
                axes.axvline(place, color=GREY, linewidth=1, linestyle=":")
                axes.annotate(
                    _short(run), (place, top), xytext=(4, -2), textcoords="offset points", fontsize=8.5,
                    color=GREY, va="top",
                )  # fmt: skip
            axes.set(
                xlabel="α: the first model at 0, the second at 1", ylabel=word, title=f"{word} on the line"
            )
            axes.grid(alpha=0.25)
        if found.get("train") is not None:
            figure.legend(
                *grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=9
            )
        about = [found["data"]] + ([found["train_data"]] if found.get("train_data") else [])
        return _saved(plt, figure, path, about)


def draw_wideness(founds: Sequence[dict[str, Any]], path: Path, gain: float | None = None) -> Path:
    """Several models' loss and accuracy along random rays, side by side."""
    with pyplot() as plt:
        return _saved(plt, _wideness(plt, founds, gain), path, [founds[0]["data"]])


def draw_flatness(found: dict[str, Any], path: Path) -> Path:
    """Sharpness and loss against epochs, on two scales (SAI's Figure 2)."""
    rows = found["history"]
    epochs = [row["epoch"] for row in rows]
    with pyplot() as plt:
        figure, left = plt.subplots(figsize=(6.4, 4), layout="constrained")
        right = left.twinx()
        right.spines["right"].set_visible(True)
        left.plot(epochs, [row["sharpness"] for row in rows], color=WARNING, marker="o", markersize=3.5)
        right.plot(epochs, [row["loss"] for row in rows], color=COLOURS[0], marker="s", markersize=3.5)
        left.set_xlabel("epoch")
        left.set_ylabel("sharpness, λ_max of the Hessian", color=WARNING)
        right.set_ylabel("loss", color=COLOURS[0])
        left.set_ylim(bottom=min(0, left.get_ylim()[0]))
        left.grid(alpha=0.25)
        left.set_title("flatness during training")
        return _saved(plt, figure, path, [found["data"]])


@contextmanager
def pyplot() -> Iterator[Any]:
    plt = pyplot_for("drawing the pictures of a geometry")
    with plt.rc_context(STYLE):
        yield plt


def _saved(plt: Any, figure: Any, path: Path, about: Sequence[dict[str, Any]]) -> Path:
    """Write the picture with its label under it, in red where the rows are private training rows."""
    private = any(data["covered"] == TRAIN for data in about)
    words = "\n".join(f"{data['rows']:,} rows of {data['name']} · {data['covered']}" for data in about)
    figure.supxlabel(
        words, fontsize=8.5, color=WARNING if private else GREY, weight="bold" if private else "normal"
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _spectrum(plt: Any, found: dict[str, Any]) -> Any:
    values, curve = found.get("eigenvalues"), found.get("density")
    panels = int(values is not None) + int(curve is not None)
    figure, grid = plt.subplots(1, panels, figsize=(5.2 * panels, 3.8), squeeze=False, layout="constrained")
    axes = list(grid[0])
    if curve is not None:
        here = axes.pop(0)
        here.semilogy(curve["eigenvalue"], curve["density"], color=COLOURS[0], linewidth=1.6)
        here.fill_between(curve["eigenvalue"], curve["density"], 1e-12, color=COLOURS[0], alpha=0.15)
        top = max(curve["density"])
        here.set_ylim(top * 1e-7, top * 4)
        for number, value in enumerate(values or ()):
            here.axvline(
                value, color=COLOURS[1], linewidth=0.9, label=None if number else "largest eigenvalues"
            )
        if values:
            here.legend(loc="upper right", fontsize=9)
        here.set(xlabel="eigenvalue", ylabel="density", title="spectral density of the Hessian")
        here.grid(alpha=0.25)
    if values is not None:
        here = axes.pop(0)
        places = list(range(1, len(values) + 1))
        here.bar(places, values, width=0.6, color=COLOURS[0])
        for place, value in zip(places, values):
            here.annotate(
                f"{value:.3g}", (place, value), xytext=(0, 3 if value >= 0 else -11), textcoords="offset points",
                ha="center", fontsize=9,
            )  # fmt: skip
        here.set_xticks(places, [f"λ{_subscript(place)}" for place in places])
        here.axhline(0, color=GREY, linewidth=0.8)
        here.margins(y=0.12)
        notes = []
        if found.get("lambda_ratio") is not None:
            notes.append(f"λ_max/λ₅ = {found['lambda_ratio']:.3g}")
        if found.get("trace") is not None:
            notes.append(f"trace {found['trace']['value']:.4g} ± {found['trace']['error']:.2g}")
        here.set_ylabel("eigenvalue")
        here.set_title("largest eigenvalues" + (f"\n{', '.join(notes)}" if notes else ""))
    return figure


def _landscape(plt: Any, found: dict[str, Any]) -> Any:
    import numpy as np

    plane = found["landscape"]
    heights = np.array([[np.nan if v is None else v for v in row] for row in plane["loss"]], dtype=float).T
    low, high = float(np.nanmin(heights)), float(np.nanmax(heights))
    steep = low > 0 and high / low > 30
    levels = np.geomspace(low, high, 22) if steep else np.linspace(low, high + 1e-12, 22)
    figure, axes = plt.subplots(figsize=(5.8, 4.9), layout="constrained")
    norm = plt.matplotlib.colors.LogNorm(low, high) if steep else None
    filled = axes.contourf(plane["alpha"], plane["beta"], heights, levels, cmap="YlGnBu_r", norm=norm)
    lines = axes.contour(
        plane["alpha"], plane["beta"], heights, levels[::3], colors="white", linewidths=0.7, alpha=0.9
    )
    axes.clabel(lines, fmt="%.2g", fontsize=7.5)
    axes.plot(0, 0, marker="*", markersize=14, color=COLOURS[1], markeredgecolor="white", linestyle="none")
    bar = figure.colorbar(filled, ax=axes, label="loss", format="%.2g")
    bar.minorticks_off()
    if steep:
        bar.set_ticks(levels[::3])
    axes.set(
        xlabel="first direction, filter-normalised", ylabel="second direction, filter-normalised",
        title=f"loss around {_short(found['run']) or 'the model'} (star)", aspect="equal",
    )  # fmt: skip
    return figure


def _wideness(plt: Any, founds: Sequence[dict[str, Any]], gain: float | None) -> Any:
    words = ["loss"] + (["accuracy"] if all(f["wideness"].get("accuracy") for f in founds) else [])
    figure, grid = plt.subplots(
        1, len(words), figsize=(5 * len(words), 3.8), squeeze=False, layout="constrained"
    )
    for axes, word in zip(grid[0], words):
        for found, colour in zip(founds, COLOURS):
            wide = found["wideness"]
            middle = _gaps(wide[word])
            spread = _gaps(wide["spread" if word == "loss" else "accuracy_spread"])
            name = _short(found["run"]) + ("" if found.get("weights", "last") == "last" else ", averaged")
            axes.plot(
                wide["distance"], middle, color=colour, linewidth=2, marker="o", markersize=3.5, label=name
            )
            low, high = [m - s for m, s in zip(middle, spread)], [m + s for m, s in zip(middle, spread)]
            axes.fill_between(wide["distance"], low, high, color=colour, alpha=0.18, linewidth=0)
        axes.set(xlabel="distance from the weights", ylabel=f"{word}, mean over random rays")
        axes.grid(alpha=0.25)
        if len(founds) > 1:
            axes.legend(fontsize=9)
    title = "wideness: moving away along random rays"
    if gain is not None:
        title += f"\n{_short(founds[1]['run'])} is {abs(gain):.1f} % {'wider' if gain >= 0 else 'narrower'}"
    figure.suptitle(title, fontsize=11, weight="bold")
    return figure


def _gradients(plt: Any, found: dict[str, Any]) -> Any:
    norms = found["gradient_norms"]
    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    axes.stairs(norms["counts"], norms["edges"], fill=True, color=COLOURS[0], alpha=0.75)
    axes.set_xscale("log")
    axes.axvline(norms["clip_norm"], color=WARNING, linewidth=1.6, label=f"clip norm {norms['clip_norm']:g}")
    axes.set(
        xlabel="norm of one example's gradient", ylabel="examples",
        title=f"{norms['share_clipped']:.0%} of the examples would be clipped",
    )  # fmt: skip
    axes.legend(fontsize=9)
    axes.grid(alpha=0.25)
    return figure


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _head_room(axes: Any) -> float:
    """Leave room above the lines for a name, and say where."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))
    return float(high + 0.12 * (high - low))


def _short(run: str) -> str:
    return run.rstrip("/").rpartition("/")[2]


def _subscript(number: int) -> str:
    return "".join("₀₁₂₃₄₅₆₇₈₉"[int(digit)] for digit in str(number))
