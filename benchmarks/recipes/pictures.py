"""The picture of docs/recipes.md: drawn figures, each row the drawings of one.

python benchmarks/recipes/pictures.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from saltflat.recipes.figures import Figures

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "figures.png"
CLASSES, DRAWINGS = 8, 12


def sheet(colours: int, side: int) -> Tensor:
    """Drawings side by side, one figure a row, as one image H × W × colours."""
    figures = Figures.drawn(CLASSES, colours, seed=12)
    which = torch.arange(CLASSES).repeat_interleave(DRAWINGS)
    images = figures.images(which, side, torch.Generator().manual_seed(1))
    tiles = images.view(CLASSES, DRAWINGS, colours, side, side).permute(0, 3, 1, 4, 2)
    return tiles.reshape(CLASSES * side, DRAWINGS * side, colours)


if __name__ == "__main__":
    drawn, axes = plt.subplots(1, 2, figsize=(11, 3.7))
    for one, (colours, side) in zip(axes, ((1, 28), (3, 32))):
        one.imshow(sheet(colours, side).squeeze(-1), cmap="gray", vmin=0, vmax=1)
        one.axis("off")
    drawn.subplots_adjust(0, 0, 1, 1, wspace=0.02)
    drawn.savefig(PICTURE, dpi=80)
