"""What the tests of synthesis share: a few public digits, settings that take no time, and a Gaussian mixture."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from saltflat.data import Examples, load
from saltflat.synthesis import Settings, settings_for, train


def public_digits() -> Examples:
    """140 rows."""
    found = load("digits", public_fraction=0.1).public
    assert found is not None
    return found


def quick(steps: int = 6, **changes: object) -> Settings:
    return settings_for("tiny", steps=steps, batch_size=8, rampup=16, **changes)


def trained(folder: Path, steps: int = 6) -> Path:
    train(public_digits(), quick(steps), out=folder, source={"data": "digits"}, grids=0)
    return folder


class Mixture:
    """A mixture of Gaussians in pixels whose denoiser is known exactly, at every noise level."""

    def __init__(self, means: Tensor, spreads: Tensor, weights: Tensor) -> None:
        self.means, self.spreads, self.weights = means.double(), spreads.double(), weights.double()

    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor:
        """E[y | y + σn = x]: each component's posterior mean, weighted by its posterior probability."""
        flat, level = x.flatten(1)[:, None], sigma.flatten()[:, None, None]
        variance = self.spreads[None, :, None] ** 2
        total = variance + level**2
        away = flat - self.means[None]
        size = flat.shape[-1]
        logs = self.weights.log()[None] - away.square().sum(-1) / (2 * total[..., 0])
        logs = logs - size / 2 * total[..., 0].log()
        mean = self.means[None] + variance / total * away
        return (logs.softmax(dim=1)[..., None] * mean).sum(dim=1).reshape(x.shape)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Its exact mean and covariance."""
        mean = (self.weights[:, None] * self.means).sum(0)
        away = self.means - mean
        within = torch.diag((self.weights * self.spreads**2).sum().repeat(len(mean)))
        return mean, within + (self.weights[:, None, None] * away[:, :, None] * away[:, None, :]).sum(0)
