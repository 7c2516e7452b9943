"""A picture of how rows were dealt out to clients: the mix of classes of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from saltflat.errors import InputError, pyplot_for
from saltflat.federated.clients import Clients

MOST_BARS = 60
MOST_NAMED = 20


def draw_partition(
    clients: Clients, classes: Sequence[str], path: str | Path, *, title: str = "Class mix of the clients"
) -> Path:
    """One bar a client, one colour a class, into a PNG, SVG or PDF file; of many clients, every n-th.

    The picture shows exact numbers about private rows, and says so: it is for simulations.
    """
    plt = pyplot_for("drawing the partition")
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError("picture", str(path), "a file that ends in .png, .svg or .pdf")
    counts = clients.class_counts(len(classes))
    shown = _by_main_class(counts[:: max(1, -(-len(counts) // MOST_BARS))])
    sizes = counts.sum(1)
    colours = plt.get_cmap("tab10" if len(classes) <= 10 else "turbo")
    with plt.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (axes, below) = plt.subplots(
            2, 1, figsize=(11, 5.6), layout="constrained", height_ratios=(4, 1), sharex=True
        )
        shares = shown / np.maximum(shown.sum(1, keepdims=True), 1)
        bottom = np.zeros(len(shown))
        for number, name in enumerate(classes):
            colour = colours(number if len(classes) <= 10 else number / (len(classes) - 1))
            named = name if len(classes) <= MOST_NAMED else None
            axes.bar(
                range(len(shown)), shares[:, number], bottom=bottom, width=0.94, color=colour, label=named
            )
            bottom += shares[:, number]
        below.bar(range(len(shown)), shown.sum(1), width=0.94, color="#6b7785")
        some = f"{len(shown)} of {len(counts)}" if len(shown) < len(counts) else f"all {len(counts)}"
        axes.set_title(f"{title}, {clients.kind}" if clients.kind else title, loc="left", fontsize=14)
        axes.set(ylabel="share of the client's rows", ylim=(0, 1), xlim=(-0.6, len(shown) - 0.4), xticks=[])
        each = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
        below.set(
            ylabel="rows", xlabel=f"clients ({some} shown, sorted by their main class), {each} rows each"
        )
        if len(classes) <= MOST_NAMED:
            handles, names = axes.get_legend_handles_labels()
            figure.legend(handles[::-1], names[::-1], title="class", loc="outside right upper", frameon=False)
        figure.supxlabel("Exact numbers about private rows: not covered by ε", fontsize=9, color="#6b7785")
        figure.savefig(path, dpi=120)
        plt.close(figure)
    return path


def _by_main_class(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Clients with the same main class side by side, the purest first."""
    main = counts.argmax(1)
    purity = counts.max(1) / np.maximum(counts.sum(1), 1)
    return counts[np.lexsort((-purity, main))]
