"""The toy pictures: one flat and one sharp minimum under the noise of privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from saltflat.geometry.pictures import COLOURS, GREY, INK, pyplot
from saltflat.geometry.toy import FLAT, SHARP, STEPS, WALKS, noise_against_sharpness, noisy_descent, surface

SIDES = (("flat minimum", FLAT, COLOURS[0]), ("sharp minimum", SHARP, "#c4573a"))


def draw_toy(folder: Path) -> list[Path]:
    """``two-minima.png`` and ``two-minima-noise.png``. The same seeds each time, so the same pictures."""
    paths = []
    with pyplot() as plt:
        for name, paint in (("two-minima", _two_minima), ("two-minima-noise", _noise)):
            figure = paint(plt)
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=130, metadata={"Software": None})
            plt.close(figure)
            paths.append(path)
    return paths


def _two_minima(plt: Any) -> Any:
    """Left the surface with one walk in each minimum, right what the noise does to the loss over many walks."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.5, 4.9), layout="constrained", gridspec_kw={"width_ratios": (1.15, 1)}
    )
    ticks = torch.linspace(0, 10, 241, dtype=torch.float64)
    plane = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)
    levels = [step / 20 for step in range(22)]
    filled = left.contourf(ticks, ticks, surface(plane), levels, cmap="YlGnBu_r")
    figure.colorbar(filled, ax=left, label="loss", ticks=levels[::4], format="%.1f")
    for name, centre, colour in SIDES:
        walks = noisy_descent(centre)
        left.plot(*walks[0].T, color="white", linewidth=2.6)
        left.plot(*walks[0].T, color=colour, linewidth=1.4, label=f"DP-SGD from the {name}")
        left.plot(*centre, marker="*", markersize=15, color=colour, markeredgecolor="white", linestyle="none")
        steps = range(STEPS + 1)
        shares = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        low, middle, high = torch.quantile(surface(walks), shares, 0)
        label = f"{name}: median and four fifths of {WALKS} runs"
        right.plot(steps, middle, color=colour, linewidth=2.2, label=label)
        right.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    left.set(xlim=(0, 10), ylim=(0, 10), aspect="equal", xlabel="first weight", ylabel="second weight")
    left.set_title("two minima, equally deep")
    left.legend(
        loc="upper left", fontsize=9, frameon=True, facecolor="white", framealpha=0.9, edgecolor="none"
    )
    right.set(xlabel="noisy step", ylabel="loss", ylim=(0, 1.2), xlim=(0, STEPS))
    right.set_title("the same noise in every step")
    right.legend(loc="upper left", fontsize=9)
    right.grid(alpha=0.25)
    title = "Salt and flat: a flat minimum survives the noise that privacy needs"
    figure.suptitle(title, fontsize=13, weight="bold", color=INK)
    return figure


def _noise(plt: Any) -> Any:
    """Sharpness along a descent, and how far noise turns the next gradient (DP-SAT's Figure 4)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", sharex=True)
    for name, centre, colour in SIDES:
        away = 1.2 / 2**0.5
        start = (centre[0] - away, centre[1] + away)
        norms, turned = noise_against_sharpness(start)
        steps = range(1, len(norms) + 1)
        left.plot(steps, norms, color=colour, linewidth=2, label=name)
        right.plot(steps, turned, color=colour, linewidth=2, label=name)
    left.set(xlabel="step", ylabel="‖H‖₂", title="sharpness on the way down")
    right.set(xlabel="step", ylabel="‖∇(w − ηg) − ∇(w − ηg̃)‖", title="how far noise turns the next gradient")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25, color=GREY)
        axes.legend(fontsize=9)
    return figure
