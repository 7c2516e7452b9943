"""Where the time of a step goes: one thread, by kind of work, an ordinary step beside a private one.

    python benchmarks/speed/where_time_goes.py        writes where-time-goes.json and the picture of docs/engine.md

Both steps are profiled in one process, in turns; the median of five rounds is kept for each kind.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function

import saltflat as sf
from saltflat.engine import native, winograd
from saltflat.engine.rules import convolution

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
PICTURE = HERE.parent.parent / "docs" / "pictures" / "where-time-goes.svg"
EXAMPLES, ROUNDS, MODEL = 128, 5, "cnn-selu"
# What the engine does in C is no operation of torch's: it is named for the profiler.
OWN = {
    "own forward": (convolution._Arithmetic, "forward"),
    "own backward": (convolution._Arithmetic, "backward"),
    "own gradients": (winograd, "gradients"),
    "own sums": (winograd, "weighted_sum"),
    "own pooling": (native, "max_pool"),
    "own pooling back": (native, "max_pool_backward"),
    "own activations": (native, "elu"),
    "own activations back": (native, "elu_backward"),
}
KINDS = {
    "forward convolutions": ("mkldnn_convolution", "aten::convolution_overrideable", "own forward"),
    "backward convolutions": ("convolution_backward", "own backward"),
    "per-unit gradients of kernels": ("aten::bmm", "own gradients", "own sums"),
    "patches and other copies": ("aten::copy_", "aten::fill_", "aten::zero_"),
    "activations and pooling": ("aten::elu", "max_pool2d", "own pooling", "own activations"),
    "lengths and clipped sums": ("vector_norm", "aten::mm", "aten::add_", "aten::sum", "aten::mul"),
}
COLOURS = ("#31688e", "#5b9bc4", "#c8553d", "#e0a458", "#8d99ae", "#588157", "#d0d0d0")


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One number an example."""
    return F.cross_entropy(outputs, targets, reduction="none")


def name_own_work() -> None:
    """Let the profiler see the compiled loops by their names."""

    def named(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def seen(*arguments: Any, **options: Any) -> Any:
            with record_function(name):
                return work(*arguments, **options)

        return seen

    for name, (place, attribute) in OWN.items():
        setattr(place, attribute, named(name, getattr(place, attribute)))


def by_kind(step: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of one step, by kind of work."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    found: dict[str, float] = defaultdict(float)
    for event in seen.key_averages():
        kind = next((k for k, names in KINDS.items() if any(n in event.key for n in names)), "the rest")
        found[kind] += event.self_cpu_time_total / 1000
    return dict(found)


def measure() -> dict[str, dict[str, float]]:
    """The median of each kind, for both steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name_own_work()
    x, y = torch.rand(EXAMPLES, 3, 32, 32), torch.randint(0, 10, (EXAMPLES,))
    plain, private = sf.models.build(MODEL), sf.models.build(MODEL)

    def ordinary() -> None:
        plain.zero_grad(set_to_none=True)
        for rows, labels in zip(x.split(64), y.split(64)):
            loss(plain(rows), labels).sum().backward()

    steps: dict[str, Callable[[], Any]] = {
        "ordinary": ordinary,
        "private": lambda: sf.clipped_sum(private, loss, x, y, 1.0),
    }
    for step in steps.values():
        step()
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            rounds[name].append(by_kind(step))
    kinds = [*KINDS, "the rest"]
    return {
        name: {kind: statistics.median(each.get(kind, 0.0) for each in found) for kind in kinds}
        for name, found in rounds.items()
    }


def draw(found: dict[str, dict[str, float]]) -> None:
    """Two stacked bars, each part labelled where it is wide enough."""
    figure, axes = plt.subplots(figsize=(8.5, 2.9))
    whole = sum(found["ordinary"].values())
    for row, parts in enumerate(found.values()):
        left = 0.0
        for colour, (kind, value) in zip(COLOURS, parts.items()):
            share = value / whole
            axes.barh(row, share, left=left, color=colour, label=kind if row == 0 else None, height=0.62)
            if share > 0.04:
                axes.text(
                    left + share / 2, row, f"{100 * share:.0f}", ha="center", va="center", color="white"
                )
            left += share
        axes.text(left + 0.01, row, f"{100 * left:.0f} %", va="center")
    axes.set_yticks([0, 1], list(found))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(sum(parts.values()) / whole for parts in found.values()))
    axes.set_xticks([])
    axes.set_title("Time of a step, in % of the ordinary one (cnn-selu, one thread)", loc="left", fontsize=10)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.45, -0.02), frameon=False, fontsize=8)
    figure.savefig(PICTURE, bbox_inches="tight")


if __name__ == "__main__":
    result = measure()
    (HERE / "where-time-goes.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result)
    for name, parts in result.items():
        print(name, {kind: round(value, 1) for kind, value in parts.items()})
