"""Features of photographs: which patches of drawings the patches of an image are like, and in which quarter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from saltflat.recipes.figures import Figures
from saltflat.recipes.rows import unit

CLASSES, DRAWINGS, FILLED = 400, 6000, 0.9  # figures with bodies: lines alone have few patches to give
PATCHES_OF_EACH = 10
AT_ONCE, FILTERS_AT_ONCE = 4, 256  # so that what is between the steps stays in the caches
FAINT = (
    10 / 255**2
)  # added to the variance of a patch, or noise on an even ground would be as loud as an edge
FLAT = 1e-3  # the variance of a patch that shows nothing, and makes no filter


@dataclass(frozen=True)
class Patches:
    """Whitened patches of drawings as filters; what they answer above a threshold, in the mean over parts of an image.

    Each patch of an image is brought to one contrast. The answers of ``filters`` filters a colour, those above
    ``threshold`` and those below its negative, are averaged in ``parts`` × ``parts`` parts of the image, and every
    image is brought to length one. The filters and the whitening come from drawings that a seed stands for: no data
    set is looked at, and no budget spent. No image's features depend on another image.

    Reference: Coates and Ng, The Importance of Encoding Versus Training with Sparse Coding and Vector Quantization,
    ICML 2011 (random patches, threshold 0.25, quarters), on drawings in the place of photographs.

    >>> Patches(filters=16)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 384])
    """

    filters: int = 256
    size: int = 6
    threshold: float = 0.25
    parts: int = 2
    ridge: float = 0.1
    seed: int = 7

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Features of images N × C × H × W in [0, 1], N × width, of length one."""
        bank = _bank(self, images.shape[1], images.shape[-1]).to(images.device)
        made = images.new_empty(len(images), 2 * bank.shape[1] * self.parts**2)
        for start in range(0, len(images), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            made[some] = unit(self._answers(images[some], bank))
        return made

    def _answers(self, images: Tensor, bank: Tensor) -> Tensor:
        """Of each filter in each part: answers above the threshold less those below, and their sum.

        A linear model cannot tell these from the two themselves, and they take one pass less over all answers.
        """
        cut = _contrasted(F.unfold(images, self.size).transpose(1, 2))
        cut = torch.cat([cut, cut.new_ones(*cut.shape[:2], 1)], 2)
        height, width = (side - self.size + 1 for side in images.shape[2:])
        means = torch.einsum("ai,bj->abij", _means(height, self.parts), _means(width, self.parts))
        means = means.reshape(self.parts**2, -1).to(images)
        answers = []
        for some in bank.split(FILTERS_AT_ONCE, 1):
            loud = F.softshrink(cut @ some, self.threshold)
            answers += [means @ loud, means @ loud.abs_()]
        return torch.cat(answers, 2).flatten(1)


@lru_cache(2)
def _bank(patches: Patches, colours: int, side: int) -> Tensor:
    """The filters in columns, (colours · size² + 1) × (colours · filters); the last row meets a constant of one."""
    chance = Generator().manual_seed(patches.seed)
    drawn = Figures.drawn(CLASSES, colours, FILLED, patches.seed)
    found = []
    for which in torch.randint(0, CLASSES, (DRAWINGS,), generator=chance).split(500):
        cut = F.unfold(drawn.images(which, side, chance), patches.size)
        places = torch.randint(0, cut.shape[2], (len(which), 1, PATCHES_OF_EACH), generator=chance)
        found.append(cut.gather(2, places.expand(-1, cut.shape[1], -1)).transpose(1, 2).flatten(0, 1))
    cuts = torch.cat(found)
    cuts = _contrasted(cuts[cuts.var(1) > FLAT])
    mean = cuts.mean(0)
    spread, axes = torch.linalg.eigh((cuts - mean).T @ (cuts - mean) / len(cuts))
    white = axes @ torch.diag((spread + patches.ridge).rsqrt()) @ axes.T
    chosen = cuts[torch.randperm(len(cuts), generator=chance)[: colours * patches.filters]]
    along = white @ unit((chosen - mean) @ white).T
    return torch.cat([along, -(mean @ along)[None]])


def _contrasted(patches: Tensor) -> Tensor:
    """Patches in the last dimension, at mean zero and one contrast."""
    patches = patches - patches.mean(-1, keepdim=True)
    return patches * (patches.square().mean(-1, keepdim=True) + FAINT).rsqrt()


def _means(side: int, parts: int) -> Tensor:
    """What takes the mean over each of several stretches of a line, parts × side; they overlap where they must."""
    means = torch.zeros(parts, side)
    for part in range(parts):
        start, stop = part * side // parts, -(-(part + 1) * side // parts)
        means[part, start:stop] = 1 / (stop - start)
    return means
