"""Several views of one example, averaged before the clip: augmentations, and Gaussian weights.

Weights along public gradients are in `saltflat.methods.public`.

Augmentations are operations on batches of images N x C x H x W in [0, 1], each row with its own draw, on any device.
`cutmix` changes labels too, so it belongs to a warm-up on public data and not to the views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.errors import InputError
from saltflat.plan import Multiplicity

Generator = torch.Generator | None


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


def _offsets(images: Tensor, edge: int, generator: Generator) -> Tensor:
    return (uniform(images, generator) * (2 * edge + 1)).long()[:, None]


def cutmix(images: Tensor, generator: Generator = None) -> tuple[Tensor, Tensor, Tensor]:
    """Each image with a rectangle of another one, which other one, and the share of the image that is its own.

    The share is uniform, as Beta(1, 1). Reference: Yun et al., CutMix, ICCV 2019.

    >>> images, partner, share = cutmix(torch.rand(4, 1, 8, 8))
    >>> images.shape, partner.shape, bool((share >= 0).all())
    (torch.Size([4, 1, 8, 8]), torch.Size([4]), True)
    """
    rows, _, height, width = images.shape
    partner = torch.randperm(rows, device=images.device, generator=generator)
    side = (1 - uniform(images, generator)).sqrt()
    top, bottom = _span(uniform(images, generator), side, height)
    left, right = _span(uniform(images, generator), side, width)
    y = torch.arange(height, device=images.device).view(1, -1, 1)
    x = torch.arange(width, device=images.device).view(1, 1, -1)
    hole = (y >= top) & (y < bottom) & (x >= left) & (x < right)
    mixed = torch.where(hole[:, None], images[partner], images)
    return mixed, partner, 1 - hole.float().mean((1, 2))


def _span(middle: Tensor, side: Tensor, size: int) -> tuple[Tensor, Tensor]:
    centre, half = middle * size, side * size / 2
    first, last = (centre - half).round().clamp(0, size), (centre + half).round().clamp(0, size)
    return first.view(-1, 1, 1), last.view(-1, 1, 1)


def auto(images: Tensor, generator: Generator = None) -> Tensor:
    """Two operations for each image, each with a strength of its own: moves, turns, colours, levels.

    Reference: after Cubuk et al., AutoAugment, CVPR 2019 (its operations; drawn evenly, not searched for).

    >>> auto(torch.rand(6, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([6, 3, 8, 8])
    """
    for _ in range(2):
        images = _one_operation(images, generator)
    return images


def _one_operation(images: Tensor, generator: Generator) -> Tensor:
    which = (uniform(images, generator) * (len(_MOVES) + len(_LEVELS))).long()
    strength = 2 * uniform(images, generator) - 1
    moved = _moved(images, which, strength)
    result = moved.clone() if moved is images else moved
    for number, operation in enumerate(_LEVELS, start=len(_MOVES)):
        chosen = which == number
        if bool(chosen.any()):
            result[chosen] = operation(images[chosen], strength[chosen].view(-1, 1, 1, 1))
    return result


# A linear map of the plane for each strength in [-1, 1]: rows of (xx, xy, shift x, yx, yy, shift y).
_MOVES: tuple[Callable[[Tensor], list[Tensor]], ...] = (
    lambda s: [torch.ones_like(s), 0.3 * s, 0 * s, 0 * s, torch.ones_like(s), 0 * s],  # shear along x
    lambda s: [torch.ones_like(s), 0 * s, 0 * s, 0.3 * s, torch.ones_like(s), 0 * s],  # shear along y
    lambda s: [torch.ones_like(s), 0 * s, 0.4 * s, 0 * s, torch.ones_like(s), 0 * s],  # move along x
    lambda s: [torch.ones_like(s), 0 * s, 0 * s, 0 * s, torch.ones_like(s), 0.4 * s],  # move along y
    lambda s: [*_turn(s * math.pi / 6)],  # turn by up to 30 degrees
)


def _turn(angle: Tensor) -> list[Tensor]:
    return [angle.cos(), -angle.sin(), 0 * angle, angle.sin(), angle.cos(), 0 * angle]


def _moved(images: Tensor, which: Tensor, strength: Tensor) -> Tensor:
    """The images that drew a move, moved; all others as they are, to the last bit."""
    chosen = which < len(_MOVES)
    if not bool(chosen.any()):
        return images
    maps = torch.stack([torch.stack(move(strength), dim=1) for move in _MOVES])
    own = maps[which.clamp(max=len(_MOVES) - 1), torch.arange(len(images), device=images.device)]
    some = images[chosen]
    grid = F.affine_grid(own[chosen].view(-1, 2, 3).to(images.dtype), list(some.shape), align_corners=False)
    result = images.clone()
    result[chosen] = F.grid_sample(some, grid, padding_mode="border", align_corners=False)
    return result


def _equalised(images: Tensor, _: Tensor) -> Tensor:
    """Each channel's levels spread evenly over [0, 1]."""
    rows, channels = images.shape[:2]
    levels = (images.clamp(0, 1) * 255).round().long().flatten(2)
    offset = torch.arange(rows * channels, device=images.device).view(rows, channels, 1) * 256
    counts = torch.bincount((levels + offset).flatten(), minlength=rows * channels * 256)
    below = counts.view(rows * channels, 256).cumsum(1).to(images.dtype) / levels.shape[2]
    return below.flatten()[(levels + offset).flatten()].view_as(images)


def _stretched(images: Tensor, _: Tensor) -> Tensor:
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-6), images)


_LEVELS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, s: (x * (1 + 0.6 * s)).clamp(0, 1),  # brightness
    lambda x, s: (x.mean((1, 2, 3), keepdim=True) * -0.6 * s + x * (1 + 0.6 * s)).clamp(0, 1),  # contrast
    lambda x, s: (x.mean(1, keepdim=True) * -0.6 * s + x * (1 + 0.6 * s)).clamp(0, 1),  # colour
    lambda x, s: torch.where(x < 0.75 + 0.25 * s, x, 1 - x),  # solarise
    lambda x, s: (x * 2 ** (6 + 2 * s).round()).floor() / 2 ** (6 + 2 * s).round(),  # fewer levels
    _equalised,
    _stretched,
)


def uniform(images: Tensor, generator: Generator) -> Tensor:
    """A number from 0 to 1 for each image."""
    return torch.rand(len(images), device=images.device, generator=generator)


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
