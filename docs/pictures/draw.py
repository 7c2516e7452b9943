"""Draws the pictures of the documentation: python docs/pictures/draw.py [folder] [svg|png]

The pictures are committed, so a reader needs no matplotlib; run this after changing one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, GREY = "#1f2933", "#6b7785"
PRIVATE, PUBLIC, PLAN, RECORD, PLAIN = "#fbe3dc", "#e0f0e6", "#e4ecf7", "#fdf3d3", "#ffffff"
EDGES = {PRIVATE: "#c4573a", PUBLIC: "#3b8258", PLAN: "#3f67a3", RECORD: "#b98a13", PLAIN: "#9aa5b1"}


def canvas(width: float, height: float) -> Any:
    """Axes that measure in tenths of an inch, with nothing on them."""
    figure = plt.figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width * 10), ylim=(0, height * 10))
    axes.axis("off")
    return axes


def area(
    axes: Any,
    corner: tuple[float, float],
    size: tuple[float, float],
    colour: str,
    title: str,
    *,
    below: bool = False,
) -> None:
    """A tinted region with a title in its upper left corner, or in the lower one."""
    x, y = corner
    style = "round,pad=0,rounding_size=1.2"
    axes.add_patch(
        FancyBboxPatch(corner, *size, boxstyle=style, facecolor=colour, edgecolor="none", zorder=0)
    )
    height = y + 1.4 if below else y + size[1] - 2.3
    axes.text(x + 1.4, height, title, fontsize=10.5, color=EDGES[colour], weight="bold")


def box(
    axes: Any,
    centre: tuple[float, float],
    title: str,
    note: str = "",
    *,
    colour: str = PLAIN,
    width: float = 16,
) -> None:
    """A box with a bold title and a note under it."""
    x, y = centre
    height = 6.4 + 1.9 * note.count("\n") if note else 4.6
    patch = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.9",
        facecolor="white", edgecolor=EDGES[colour], linewidth=1.5, zorder=2,
    )  # fmt: skip
    axes.add_patch(patch)
    top = y + height / 2 - 2.1 if note else y
    axes.text(x, top, title, ha="center", va="center", fontsize=11.5, weight="bold", color=INK, zorder=3)
    if note:
        below = (y - height / 2 + top - 1.1) / 2 + 0.1
        axes.text(
            x, below, note, ha="center", va="center", fontsize=9.2, color=INK, zorder=3, linespacing=1.35
        )


def arrow(
    axes: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    label: str = "",
    *,
    at: tuple[float, float] | None = None,
    colour: str = INK,
    bend: float = 0.0,
    dashed: bool = False,
    align: str = "center",
) -> None:
    """An arrow, perhaps bent, perhaps with a label at a place of its own."""
    patch = FancyArrowPatch(
        start, end, arrowstyle="-|>", mutation_scale=13, linewidth=1.5, color=colour, zorder=1,
        connectionstyle=f"arc3,rad={bend}", linestyle=(0, (4, 2.5)) if dashed else "-",
    )  # fmt: skip
    axes.add_patch(patch)
    if label:
        x, y = at or ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 1.4)
        axes.text(
            x, y, label, ha=align, va="center", fontsize=9.2, color=colour, style="italic", linespacing=1.3
        )


def elbow(axes: Any, points: list[tuple[float, float]], colour: str) -> None:
    """A line with square corners that ends in an arrow."""
    xs, ys = zip(*points[:-1])
    axes.plot(xs, ys, color=colour, linewidth=1.5, solid_joinstyle="round", zorder=1)
    arrow(axes, points[-2], points[-1], colour=colour)


def way_of_the_data() -> None:
    """From rows to a certificate: what is private, what is released, what is recorded."""
    axes = canvas(12.8, 6.4)
    area(axes, (7, 29), (68, 18), PRIVATE, "private side: nothing here leaves")
    area(axes, (80, 12), (47, 35), PUBLIC, "released: anything may be done with it, for free", below=True)
    box(
        axes,
        (64, 57.5),
        "plan",
        "sampling, phases, budget: fixed before the data is touched",
        colour=PLAN,
        width=66,
    )
    box(axes, (16.5, 37), "data", "rows, or people\nwith several rows", colour=PRIVATE, width=15)
    box(axes, (38, 37), "sampling", "each unit joins\nwith probability q", colour=PRIVATE, width=17)
    box(axes, (62.5, 37), "clipped sum", "every unit's gradient\nat w + displacement,\nshortened to C",
        colour=PRIVATE, width=20)  # fmt: skip
    box(axes, (93, 37), "release", "(sum + noise) / B\nB expected, declared", colour=PUBLIC, width=20)
    box(axes, (116.5, 37), "optimizer", "steps at w with\nthe release", colour=PUBLIC, width=17)
    box(axes, (116.5, 20), "averaging", "mean of the\niterates", colour=PUBLIC, width=17)
    box(axes, (93, 20), "ascent", "direction from\nearlier releases", colour=PUBLIC, width=17)

    arrow(axes, (24, 37), (29.5, 37))
    arrow(axes, (46.5, 37), (52.5, 37))
    arrow(axes, (72.5, 37), (83, 37), "+ noise", at=(77.6, 39), colour=EDGES[PRIVATE])
    arrow(axes, (103, 37), (108, 37))
    arrow(axes, (116.5, 32.7), (116.5, 24.3), "iterate w", at=(117.3, 28.6), align="left")
    arrow(axes, (93, 32.7), (93, 24.3), "remembered", at=(93.8, 28.6), align="left")
    arrow(axes, (84.5, 20), (62.5, 31.8), "displacement of w,\nnext step", at=(59.5, 22.5), bend=-0.3)

    fields = {"rate q": (38, 41.3), "clip norm C": (62.5, 42.3), "noise multiplier σ": (77.6, 40.4),
              "divisor B": (94.5, 41.3)}  # fmt: skip
    for label, (x, y) in fields.items():
        arrow(axes, (x, 54.3), (x, y), label, at=(x + 0.8, 50.6), colour=EDGES[PLAN], align="left")

    box(axes, (16.5, 7), "accounting", "all phases jointly:\nε at δ", colour=RECORD, width=19)
    box(axes, (47, 7), "certificate", "what is covered,\nand what is not", colour=RECORD, width=19)
    box(axes, (77.6, 7), "ledger", "every release, before\nanyone sees it", colour=RECORD, width=19)
    elbow(axes, [(31, 57.5), (3.5, 57.5), (3.5, 7), (7, 7)], EDGES[PLAN])
    axes.text(
        4.6, 23, "the same fields:\nq, σ, steps", va="center", fontsize=9.2, color=EDGES[PLAN], style="italic"
    )
    arrow(axes, (26, 7), (37.5, 7), "ε", at=(31.6, 8.4))
    arrow(axes, (68.1, 7), (56.5, 7), "chained hashes", at=(62.3, 8.6))
    arrow(axes, (77.6, 36.6), (77.6, 11.4), colour=EDGES[RECORD], dashed=True)
    axes.text(76.8, 15.2, "recorded first:\nstep, q, σ, C", ha="right", va="center", fontsize=9.2,
              color=EDGES[RECORD], style="italic")  # fmt: skip


def chapters() -> None:
    """The folders and who imports whom: from above to below, and along a floor only where an arrow is drawn.

    Not every import has an arrow; docs/architecture.md has a table of all of them.
    """
    axes = canvas(11.6, 8.7)
    training, gap = (58, 43.5), 2.4
    floors = [
        (80.5, 47, 13, PLAN, [("cli", "one file a command", 22), ("compat", "Opacus's loop, over the engine", 28)]),
        (69, 24, 52, PLAN, [("audit", "attacks", 16), ("public", "warm-up, recipe", 16)]),
        (57, 9.25, gap, PLAN, [
            ("recipes", "features, model,\nplan", 15.5), ("federated", "clients as units", 15.5),
            ("bench", "time, memory", 14), ("geometry", "how flat it is", 14),
            ("estimators", "scikit-learn", 14.5), ("report", "one page", 12),
        ]),
        (43.5, 35, 8, PLAN, [
            ("training", "build, step, fit: puts the parts together", 46), ("synthesis", "images from public ones", 23),
        ]),
        (31, 0.8, gap, PUBLIC, [
            ("engine", "clipped sums", 13.5), ("data", "rows, people", 13.5), ("models", "networks", 13),
            ("ranks", "processes", 13), ("mechanism", "sampling, noise", 15.5),
            ("methods", "what is done\nwith releases", 15), ("record", "ledger, accounts,\ncertificate, verify", 16.5),
        ]),
        (17.5, 53, 8, RECORD, [("plans", "methods as plans", 24), ("plan", "pure values, no torch", 24)]),
        (6, 21, 8, RECORD, [
            ("theory", "the papers' bounds", 24), ("errors", "what everyone may say", 24),
            ("accounting", "events, ε, calibration", 24),
        ]),
    ]  # fmt: skip
    at: dict[str, float] = {}
    for y, x, between, colour, chapter in floors:
        for title, note, width in chapter:
            box(axes, (x + width / 2, y), title, note, colour=colour, width=width)
            at[title] = x + width / 2
            x += width + between

    elbow(axes, [(47, 80.5), (at["recipes"], 80.5), (at["recipes"], 61.2)], INK)
    arrow(axes, (50, 77.2), (at["audit"] + 3, 72.3))
    arrow(axes, (54, 77.2), (at["federated"] + 5, 60.3))
    arrow(axes, (57, 77.2), (at["bench"], 60.3))
    arrow(axes, (60, 77.2), (at["geometry"], 60.3))
    arrow(axes, (63, 77.2), (at["report"] - 4, 60.3))
    arrow(axes, (67, 77.2), (at["public"] - 3, 72.3))

    arrow(axes, (at["audit"] + 2, 65.7), (at["federated"], 60.3))
    elbow(axes, [(26, 65.7), (26, 52), (37.5, 46.9)], INK)  # audit to training, between recipes and federated
    arrow(axes, (at["public"] + 1, 65.7), (at["report"], 60.3))
    axes.plot((93.5, 93.5), (65.7, 52), color=INK, linewidth=1.5, zorder=1)  # between estimators and report
    arrow(axes, (93.5, 52), (79.5, 46.9))
    arrow(axes, (93.5, 52), (at["synthesis"] - 4, 46.9))

    for title in ("federated", "bench", "geometry", "estimators"):
        arrow(axes, (at[title], 53.7), (training[0] + (at[title] - training[0]) * 0.5, 46.9))
    for name in ("data", "models"):
        arrow(axes, (at["recipes"], 52.8), (at[name] - 2, 34.4))
    for name in ("engine", "data", "models", "ranks", "mechanism", "methods", "record"):
        x, tall = at[name], name in ("methods", "record")
        arrow(axes, (training[0] + (x - training[0]) * 0.42, 40.2), (x, 35.4 if tall else 34.4))
    for name in ("mechanism", "methods", "record"):
        tall = name != "mechanism"
        arrow(axes, (at[name], 26.7 if tall else 27.7), (at["plan"] + (at[name] - 96) * 0.12, 20.8))
    arrow(axes, (at["plans"] + 12, 17.5), (at["plan"] - 12, 17.5))
    arrow(axes, (at["plan"], 14.2), (at["accounting"], 9.3))
    arrow(axes, (at["accounting"] - 12, 6), (at["errors"] + 12, 6))
    arrow(axes, (at["theory"] + 12, 6), (at["errors"] - 12, 6))
    for y, words in (
        (43.5, "assembles"),
        (25.6, "siblings: none imports another"),
        (17.5, "what shall happen"),
        (6, "what it costs"),
    ):
        axes.text(2.5, y, words, fontsize=9.5, color=GREY, style="italic", va="center")


PICTURES = {"way-of-the-data": way_of_the_data, "chapters": chapters}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    ending = sys.argv[2] if len(sys.argv) > 2 else "svg"
    matplotlib.rcParams["svg.hashsalt"] = "saltflat"  # the same picture gives the same file
    unmarked = {"Date": None, "Creator": None}
    for name, draw in PICTURES.items():
        draw()
        plt.savefig(folder / f"{name}.{ending}", dpi=110, metadata=unmarked if ending == "svg" else None)
        plt.close()


if __name__ == "__main__":
    main()
