"""Several views of one example, averaged before the clip: augmentations, and Gaussian weights.

Weights along public gradients are in `saltflat.methods.public`.

Augmentations are tensor operations on N x C x H x W images, each row with its own draw, on any device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.errors import InputError
from saltflat.methods.augmentation import Generator, auto, uniform
from saltflat.plan import Multiplicity


def flip(images: Tensor, generator: Generator = None) -> Tensor:
    """Mirror each image left to right with probability one half.

    >>> flip(torch.arange(4.0).view(1, 1, 2, 2)).shape
    torch.Size([1, 1, 2, 2])
    """
    mirrored = uniform(images, generator) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)


def crop(images: Tensor, generator: Generator = None) -> Tensor:
    """Pad by reflection, an eighth of the side (4 pixels at 32); cut a window of the same size at random."""
    height, width = images.shape[2:]
    edge = max(1, round(min(height, width) / 8))
    padded = F.pad(images, (edge,) * 4, mode="reflect")
    rows = _offsets(images, edge, generator) + torch.arange(height, device=images.device)
    columns = _offsets(images, edge, generator) + torch.arange(width, device=images.device)
    number = torch.arange(len(images), device=images.device)
    # advanced indices around a slice put their dimensions first: N x H x W x C
    return padded[number[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def cutout(images: Tensor, generator: Generator = None) -> Tensor:
    """Grey out a square of a quarter of the side at random (DeVries & Taylor 2017)."""
    height, width = images.shape[2:]
    side = max(1, round(0.25 * min(height, width)))
    top = (uniform(images, generator) * (height - side + 1)).long().view(-1, 1, 1, 1)
    left = (uniform(images, generator) * (width - side + 1)).long().view(-1, 1, 1, 1)
    y = torch.arange(height, device=images.device).view(1, 1, -1, 1)
    x = torch.arange(width, device=images.device).view(1, 1, 1, -1)
    hole = (y >= top) & (y < top + side) & (x >= left) & (x < left + side)
    return images.masked_fill(hole, 0.5)


AUGMENTATIONS = {"flip": flip, "crop": crop, "cutout": cutout, "auto": auto}
"""By the names that plans use. All keep labels, and each row has its own draw."""


def views_of(inputs: Any, multiplicity: Multiplicity) -> Any:
    """``views`` rows for each row, one after the other, each augmented by itself."""
    if multiplicity.augmentations and not (isinstance(inputs, Tensor) and inputs.dim() == 4):
        raise InputError(
            "augmentations", ", ".join(multiplicity.augmentations), "images of shape N x C x H x W",
            problem="cannot change inputs of another form",
        )  # fmt: skip
    repeated = _repeated(inputs, multiplicity.views)
    for name in multiplicity.augmentations:
        repeated = AUGMENTATIONS[name](repeated)
    return repeated


def gaussian_displacements(
    weights: Mapping[str, Tensor], multiplicity: Multiplicity
) -> list[dict[str, Tensor]] | None:
    """For each view, a Gaussian displacement of the weights; None where there is none."""
    if not multiplicity.deviation:
        return None
    return [
        {name: multiplicity.deviation * torch.randn_like(weight) for name, weight in weights.items()}
        for _ in range(multiplicity.views)
    ]


def _repeated(inputs: Any, count: int) -> Any:
    if isinstance(inputs, dict):
        return {key: _repeated(value, count) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_repeated(value, count) for value in inputs)
    return inputs.repeat_interleave(count, dim=0)


def _offsets(images: Tensor, edge: int, generator: Generator) -> Tensor:
    return (uniform(images, generator) * (2 * edge + 1)).long()[:, None]
