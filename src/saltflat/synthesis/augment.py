"""Augmentation that does not leak: the network is told what was done to an image, and at sampling: nothing.

As in EDM (Karras et al. 2022, Appendix F.2): each change happens with a small probability, and its size goes into
the network as a number. Images sampled with all these numbers at zero look like unchanged ones. Resampling here is
bilinear, in one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

CHANGES = 9  # flips 2, scale 1, rotation 2, stretch 2, shift 2


@dataclass(frozen=True)
class Augmentation:
    """How often, and how much. The paper's values for CIFAR-10 are ``Augmentation.paper()``.

    The defaults flip nothing and turn by little: a digit in a mirror is another sign.

    Args:
        probability: Of each change, on its own.
        flip_x: Mirror left and right (half of the time, whatever ``probability`` is).
        flip_y: Mirror up and down.
        scale: Standard deviation of log2 of the size.
        rotate: Largest angle, in radians.
        stretch: Standard deviation of log2 of a stretch along a random axis.
        shift: Standard deviation of a shift, as a share of the image's side.

    >>> images, changes = Augmentation(probability=0.0)(torch.rand(4, 1, 8, 8))
    >>> changes.abs().sum()
    tensor(0.)
    """

    probability: float = 0.15
    flip_x: bool = False
    flip_y: bool = False
    scale: float = 0.15
    rotate: float = 0.35
    stretch: float = 0.15
    shift: float = 0.06

    @classmethod
    def paper(cls) -> Augmentation:
        """EDM's on CIFAR-10."""
        return cls(0.12, flip_x=True, flip_y=True, scale=0.2, rotate=math.pi, stretch=0.2, shift=0.125)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The changed images, and nine numbers for each that say how."""
        rows = len(images)
        mirrored = self._chosen(rows, 0.5 if self.flip_x else 0.0)
        upturned = self._chosen(rows, self.probability / 2 if self.flip_y else 0.0)
        log_size = self.scale * torch.randn(rows) * self._chosen(rows)
        angle = self.rotate * (2 * torch.rand(rows) - 1) * self._chosen(rows)
        stretched = self._chosen(rows)
        axis = math.pi * (2 * torch.rand(rows) - 1)
        log_stretch = self.stretch * torch.randn(rows) * stretched
        shift = self.shift * torch.randn(2, rows) * self._chosen(rows)
        size = (log_size * math.log(2)).exp()
        pull = (log_stretch * math.log(2)).exp()
        matrix = (
            _diagonal(1 - 2 * mirrored, 1 - 2 * upturned)
            @ _turn(angle)
            @ _turn(axis)
            @ _diagonal(1 / (size * pull), pull / size)
            @ _turn(-axis)
        )
        # places are measured from -1 to 1: a shift by the whole side is 2
        where = torch.cat([matrix, 2 * shift.T[:, :, None]], dim=2)
        changes = torch.stack(
            [
                mirrored, upturned, log_size / max(self.scale, 1e-9) * (self.scale > 0),
                angle.cos() - 1, angle.sin(),
                log_stretch * axis.cos(), log_stretch * axis.sin(),
                shift[0], shift[1],
            ],
            dim=1,
        )  # fmt: skip
        grid = F.affine_grid(where.to(images.dtype), list(images.shape), align_corners=False)
        changed = F.grid_sample(images, grid.to(images.device), padding_mode="border", align_corners=False)
        touched = (changes != 0).any(dim=1).to(images.device)
        # an unchanged image stays so to the last bit
        return torch.where(touched[:, None, None, None], changed, images), changes.to(images.device)

    def _chosen(self, rows: int, probability: float | None = None) -> Tensor:
        return (torch.rand(rows) < (self.probability if probability is None else probability)).float()


def _turn(angle: Tensor) -> Tensor:
    cosine, sine = angle.cos(), angle.sin()
    return torch.stack([torch.stack([cosine, -sine], 1), torch.stack([sine, cosine], 1)], 1)


def _diagonal(first: Tensor, second: Tensor) -> Tensor:
    return torch.diag_embed(torch.stack([first, second], dim=1))
