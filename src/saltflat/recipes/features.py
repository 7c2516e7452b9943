"""Fixed features of images: nothing in them is learned from data, so they cost no budget."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from saltflat.models import Scattering2d
from saltflat.recipes import figures
from saltflat.recipes.metric import Metric
from saltflat.recipes.patches import Patches
from saltflat.recipes.rows import LENGTH, Progress, computed_or_kept, unit

# Part of every cache key. Raise it whenever the numbers change.
VERSION = 2
MOST_GROUPS = 27  # of the 81 maps of J = 2; other numbers of maps take the next divisor below
AT_ONCE = 256
LUMA_AND_CHROMA = ((0.299, 0.587, 0.114), (-0.169, -0.331, 0.5), (0.5, -0.419, -0.081))
"""Brightness and two differences of colours, as in JPEG (ITU-R BT.601): colours of an image are much alike."""


@dataclass(frozen=True)
class Features:
    """Scattering coefficients, every image brought to the same length.

    ``scales`` are the J of the transforms that are joined. ``root`` takes square roots of coefficients. ``groups``
    normalises groups of maps in each image. ``mirrored`` takes the mean of an image's features and its mirror
    image's: for things that have no left and right. ``metric`` brings out what told drawn figures apart. Answers of
    ``patches`` of drawings stand beside them, each of the two with half of the length's square. No image's features
    depend on another image.

    >>> Features()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 3969])
    """

    scales: tuple[int, ...] = (2,)
    root: bool = False
    groups: bool = True
    mirrored: bool = False
    metric: Metric | None = None
    patches: Patches | None = None

    def __call__(
        self,
        images: Tensor,
        cache_dir: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """Features of images N × C × H × W in [0, 1], N × width; kept in ``cache_dir`` by the images' content.

        A metric is learned first, which takes minutes; it is kept there too. ``progress(done, total)`` then counts
        drawings, and after them images.
        """
        about = _about("features", self)
        return computed_or_kept(about, images, cache_dir, lambda: self._computed(images, cache_dir, progress))

    @torch.no_grad()
    def _computed(
        self, images: Tensor, cache_dir: str | os.PathLike[str] | None, progress: Progress | None
    ) -> Tensor:
        shape = (images.shape[1], images.shape[2], images.shape[3])
        transforms = [Scattering2d(shape[1:], J).to(images.device) for J in self.scales]
        learned = [self.learned(J, shape, cache_dir, progress) for J in self.scales]
        made, done = [], 0
        for some in images.split(AT_ONCE):
            parts = [self._one(some, one, seen) for one, seen in zip(transforms, learned)]
            rows = unit(torch.cat(parts, 1))
            if self.patches is not None:
                rows = unit(torch.cat([rows, self.patches(some)], 1))
            made.append(LENGTH * rows)
            done += len(some)
            if progress is not None:
                progress(done, len(images))
        return torch.cat(made) if made else images.new_empty(0, 0)

    def learned(
        self,
        J: int,
        shape: tuple[int, int, int],
        cache_dir: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> Tensor | None:
        """What the metric learned for features of one scale, of images with ``shape``; None without a metric."""
        if self.metric is None:
            return None
        plain, metric = replace(self, metric=None), self.metric
        # all floors have it in common, whatever stands beside it
        general = replace(self, metric=replace(metric, floor=0.0), patches=None)
        found = _LEARNED.get((general, J, shape))
        if found is None:
            transform = Scattering2d(shape[1:], J)

            def learn() -> Tensor:
                return metric.learned(lambda images: plain._one(images, transform, None), shape, progress)

            found = computed_or_kept(_about("metric", general), torch.tensor([J, *shape]), cache_dir, learn)
            _LEARNED.clear()  # it is large: one is held, for test images after training images
            _LEARNED[general, J, shape] = found
        return found

    def _one(self, images: Tensor, transform: Scattering2d, learned: Tensor | None) -> Tensor:
        if images.shape[1] == 3:
            images = torch.einsum("kc,nchw->nkhw", images.new_tensor(LUMA_AND_CHROMA), images)
        rows = self._rows(transform(images))
        if self.mirrored:
            rows = unit(rows + self._rows(transform(images.flip(3))))
        if self.metric is None or learned is None:
            return rows
        return unit(self.metric.seen(rows, learned.to(rows.device)))

    def _rows(self, coefficients: Tensor) -> Tensor:
        coefficients = coefficients.sign() * coefficients.abs().sqrt() if self.root else coefficients
        if self.groups:
            maps = coefficients.shape[1]
            count = next(n for n in range(MOST_GROUPS, 0, -1) if maps % n == 0)
            coefficients = F.group_norm(coefficients, count)
        return unit(coefficients.flatten(1))


_LEARNED: dict[tuple[Features, int, tuple[int, int, int]], Tensor] = {}


def _about(kind: str, features: Features) -> list[object]:
    return [kind, VERSION, figures.VERSION, *map(str, astuple(features))]
