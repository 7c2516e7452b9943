"""A toy: points on two arms of a spiral, dense at the centre and sparse outside, and a small diffusion model of them.

What few public points do to samples made from them, in a plane where one can look: dense regions are matched or
overstated, sparse ones forgotten. Section 4.1 and appendix D.1 of the public-data paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.data.shared_rows import declared, refuse_private
from saltflat.data.source import Examples
from saltflat.errors import check_count

TURNS = 1.25
WIDTH = 0.035
STEPS = 20
UNITS = 64
SCALE = 2.2  # brings the points to about unit variance, from which diffusion starts
RATE = 5e-3


def spiral(points: int, seed: int = 0) -> Examples:
    """Points on two arms whose radius grows with the angle; the density falls linearly from the centre outwards.

    >>> rows = spiral(6)
    >>> rows.inputs.shape, rows.targets.tolist(), rows.provenance
    (torch.Size([6, 2]), [0, 1, 0, 1, 0, 1], 'public')
    """
    check_count("points", points)
    generator = torch.Generator().manual_seed(seed)
    along = 1 - (1 - torch.rand(points, generator=generator)).sqrt()  # density 2 (1 - along)
    arm = torch.arange(points) % 2
    angle = 2 * torch.pi * TURNS * along + torch.pi * arm
    radius = 0.15 + along
    middle = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    noise = WIDTH * torch.randn(points, 2, generator=generator)
    return declared((middle + noise, arm), by="their maker", name="spiral")


def share_along(points: Tensor, bins: int = 6) -> Tensor:
    """The share of the points in each of ``bins`` stretches from the centre outwards.

    >>> share_along(spiral(5000).inputs, 2)
    tensor([0.76..., 0.23...], dtype=torch.float64)
    """
    along = (torch.linalg.vector_norm(points, dim=1) - 0.15).clamp(0, 1 - 1e-6)
    return torch.bincount((along * bins).long(), minlength=bins).double() / len(points)


@dataclass
class ToyDiffusion:
    """Predicts the noise in a point at one of ``STEPS`` noise levels: two blocks of 64 units."""

    network: nn.Module
    kept: Tensor  # the share of the signal that is left after each step

    def predicted(self, points: Tensor, step: Tensor, labels: Tensor) -> Tensor:
        """The noise that the network sees in points of these classes."""
        level = self.kept[step][:, None]
        clock = torch.cat([level.sqrt(), (1 - level).sqrt(), (1 - level).log() / 3], dim=1)
        sides = nn.functional.one_hot(labels, 2).to(points)
        waves = [wave for k in (1, 2, 4) for wave in ((k * points).sin(), (k * points).cos())]
        return self.network(torch.cat([points, *waves, clock, sides], dim=1))

    @torch.no_grad()
    def sample(self, labels: Tensor, seed: int = 0) -> Tensor:
        """Points of these classes, from pure noise, one step after the other."""
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(len(labels), 2, generator=generator)
        for step in reversed(range(STEPS)):
            before = self.kept[step - 1] if step else torch.ones(())
            factor = self.kept[step] / before
            noise = self.predicted(points, torch.full((len(labels),), step), labels)
            points = (points - (1 - factor) / (1 - self.kept[step]).sqrt() * noise) / factor.sqrt()
            if step:
                spread = ((1 - before) / (1 - self.kept[step]) * (1 - factor)).sqrt()
                points = points + spread * torch.randn(points.shape, generator=generator)
        return points / SCALE


def toy_diffusion(rows: Examples, steps: int = 2000, seed: int = 0) -> ToyDiffusion:
    """A diffusion model (Ho et al. 2020) of public points in a plane, trained by Adam.

    The rate falls from 0.005 to zero as a cosine; the paper's is 0.001 throughout, over ten thousand steps.

    >>> model = toy_diffusion(spiral(50), steps=3)
    >>> model.sample(torch.tensor([0, 1, 0])).shape
    torch.Size([3, 2])
    """
    refuse_private(rows, "rows", "and a diffusion model of it would leak its rows")
    points: Tensor = rows.inputs * SCALE
    labels = rows.targets
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(19, UNITS), nn.SiLU(), nn.Linear(UNITS, UNITS), nn.SiLU(), nn.Linear(UNITS, UNITS), nn.SiLU(),
            nn.Linear(UNITS, 2),
        )  # fmt: skip
    kept = torch.cumprod(1 - torch.linspace(1e-3, 0.4, STEPS), 0)
    made, generator = ToyDiffusion(network, kept), torch.Generator().manual_seed(seed)
    optimizer: Any = torch.optim.Adam(network.parameters(), lr=RATE)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        some = torch.randint(len(points), (min(256, 4 * len(points)),), generator=generator)
        level = torch.randint(STEPS, (len(some),), generator=generator)
        noise = torch.randn(len(some), 2, generator=generator)
        share = kept[level][:, None]
        noised = share.sqrt() * points[some] + (1 - share).sqrt() * noise
        loss = (made.predicted(noised, level, labels[some]) - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return made
