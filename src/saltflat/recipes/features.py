"""Fixed features of images: nothing in them is learned, so they cost no budget."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from saltflat.models import Scattering2d
from saltflat.models.kept import content_key, kept

# Part of every cache key. Raise it whenever the numbers change.
VERSION = 1
MOST_GROUPS = 27  # of the 81 maps of J = 2; other numbers of maps take the next divisor below
AT_ONCE = 256
LENGTH = 10.0
"""Of every row. The bias of a linear layer reads a constant of 1, so it takes a hundredth of a gradient's square."""
LUMA_AND_CHROMA = ((0.299, 0.587, 0.114), (-0.169, -0.331, 0.5), (0.5, -0.419, -0.081))
"""Brightness and two differences of colours, as in JPEG (ITU-R BT.601): colours of an image are much alike."""


@dataclass(frozen=True)
class Features:
    """Scattering coefficients, every image brought to the same length.

    ``scales`` are the J of the transforms that are joined. ``root`` takes square roots of coefficients. ``groups``
    normalises groups of maps in each image. ``mirrored`` takes the mean of an image's features and its mirror
    image's: for things that have no left and right. No image's features depend on another image.

    >>> Features()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 3969])
    """

    scales: tuple[int, ...] = (2,)
    root: bool = False
    groups: bool = True
    mirrored: bool = False

    def __call__(
        self,
        images: Tensor,
        cache_dir: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Features of images N × C × H × W in [0, 1], N × width; kept in ``cache_dir`` by the images' content."""
        if cache_dir is None:
            return self._computed(images, progress)
        settings = ["features", VERSION, *map(str, astuple(self))]
        file = Path(cache_dir) / f"features-{content_key(settings, images)}.safetensors"
        return kept(file, lambda: self._computed(images, progress)).to(images.device)

    @torch.no_grad()
    def _computed(self, images: Tensor, progress: Callable[[int, int], None] | None) -> Tensor:
        transforms = [
            Scattering2d((images.shape[2], images.shape[3]), J).to(images.device) for J in self.scales
        ]
        made, done = [], 0
        for some in images.split(AT_ONCE):
            if some.shape[1] == 3:
                some = torch.einsum("kc,nchw->nkhw", images.new_tensor(LUMA_AND_CHROMA), some)
            made.append(LENGTH * _unit(torch.cat([self._one(some, one) for one in transforms], 1)))
            done += len(some)
            if progress is not None:
                progress(done, len(images))
        return torch.cat(made) if made else images.new_empty(0, 0)

    def _one(self, images: Tensor, transform: Scattering2d) -> Tensor:
        rows = self._rows(transform(images))
        return _unit(rows + self._rows(transform(images.flip(3)))) if self.mirrored else rows

    def _rows(self, coefficients: Tensor) -> Tensor:
        coefficients = coefficients.sign() * coefficients.abs().sqrt() if self.root else coefficients
        if self.groups:
            maps = coefficients.shape[1]
            count = next(n for n in range(MOST_GROUPS, 0, -1) if maps % n == 0)
            coefficients = F.group_norm(coefficients, count)
        return _unit(coefficients.flatten(1))


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-6)
