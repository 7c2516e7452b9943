"""A measure of likeness, learned on drawn figures: which differences of features tell things apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from saltflat.errors import InputError
from saltflat.recipes.figures import Figures
from saltflat.recipes.rows import Progress

CLASSES_AT_ONCE = 25


@dataclass(frozen=True)
class Metric:
    """A linear map of features: what differs between drawings of one figure becomes short, what differs between
    figures stays long.

    Noise of DP-SGD is the same in all directions, so what a budget buys depends on how much of a feature vector's
    length tells classes apart. With the covariance within the classes made round, each direction is scaled by the
    share s of its variance that lies between classes, as √(floor + (1 − floor)·s): linear discriminant analysis
    where ``floor`` is 0, plain whitening where it is 1. ``ridge`` is added to the variances within, in units of their
    mean. ``figures`` classes are drawn, ``drawings`` times each, from a seed: no data set is looked at, and no budget
    spent.

    Reference: Hatch and Stolcke, Generalized linear kernels for one-versus-all classification, ICASSP 2006 (whitening
    within classes).
    """

    ridge: float = 1.0
    floor: float = 0.3
    figures: int = 1000
    drawings: int = 40
    filled: float = 0.5
    seed: int = 3

    def learned(
        self,
        features: Callable[[Tensor], Tensor],
        shape: tuple[int, int, int],
        progress: Progress | None = None,
    ) -> Tensor:
        """What ``features`` of images with ``shape`` colours × side × side need: colours × (width + 2) × width.

        Every colour has its own, for its share of the features: directions in columns, of one length within classes;
        a row with the share of the variance along each that lies between classes; and a row with the figures' mean.
        All floors have this in common.
        """
        if shape[1] != shape[2]:
            raise InputError("images", f"{shape[1]} × {shape[2]}", "square images", cure="Pad or crop them.")
        found = self._covariances(features, shape, progress)
        return torch.stack([self._directions(*one) for one in zip(*found)])

    def seen(self, rows: Tensor, learned: Tensor) -> Tensor:
        """Features N × (colours · width) as this metric sees them."""
        axes, shares, mean = learned[:, :-2], learned[:, -2:-1], learned[:, -1:]
        parts = rows.view(len(rows), len(learned), -1).transpose(0, 1)
        along = torch.bmm(parts - mean, axes) * (self.floor + (1 - self.floor) * shares).sqrt()
        return along.transpose(0, 1).reshape(len(rows), -1)

    @torch.no_grad()
    def _covariances(
        self, features: Callable[[Tensor], Tensor], shape: tuple[int, int, int], progress: Progress | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Within and between classes, and the mean, for each colour."""
        colours, side, _ = shape
        figures = Figures.drawn(self.figures, colours, self.filled, self.seed)
        chance = Generator().manual_seed(self.seed + 1)
        total = self.figures * self.drawings
        within = between = mean = torch.zeros(())
        for classes in torch.arange(self.figures).split(CLASSES_AT_ONCE):
            images = figures.images(classes.repeat_interleave(self.drawings), side, chance)
            rows = features(images).view(len(images), colours, -1).transpose(0, 1)
            own = rows.view(colours, len(classes), self.drawings, -1).mean(2)
            apart = rows - own.repeat_interleave(self.drawings, 1)
            within = within + apart.mT @ apart / total
            between = between + own.mT @ own / self.figures
            mean = mean + own.sum(1) / self.figures
            if progress is not None:
                progress((int(classes[-1]) + 1) * self.drawings, total)
        # the mean of few drawings varies itself: its variance is not one between classes
        within = within * (self.drawings / (self.drawings - 1))
        between = between - mean.unsqueeze(2) * mean.unsqueeze(1) - within / self.drawings
        return within, between, mean

    def _directions(self, within: Tensor, between: Tensor, mean: Tensor) -> Tensor:
        ridge = max(self.ridge, 1e-6) * within.diagonal().mean()
        factor = torch.linalg.cholesky(within + ridge * torch.eye(len(within)))
        white = torch.linalg.solve_triangular(factor, torch.eye(len(within)), upper=False)
        # what is left of the variance within, after the ridge, in the mean over directions
        left = 1 - ridge * white.square().sum() / len(within)
        spread, axes = torch.linalg.eigh(white @ between @ white.T)
        spread = spread.clamp_min(0)
        return torch.cat([white.T @ axes, (spread / (spread + left))[None], mean[None]])
