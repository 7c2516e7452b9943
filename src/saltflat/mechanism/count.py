"""A noised count of votes: each unit says yes or no, or something between, and moves the sum by at most one half.

Votes are centred: a yes counts +½, a no −½, and a unit that is not there 0. Adding or removing a unit moves the
sum by at most ½, half as much as a plain count. Sums are integers on a grid in all tiers, so they are exact and
do not depend on the order of the units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saltflat.mechanism.exact import Grid, noised_on_grid
from saltflat.mechanism.noise import gaussian
from saltflat.mechanism.randomness import Randomness
from saltflat.mechanism.streams import CryptographicStream

SENSITIVITY = 0.5
GRID = Grid.for_clip_norm(SENSITIVITY)


def centred_sum(votes: Tensor) -> int:
    """The sum of votes between 0 and 1, centred and in steps of the grid. A vote that is no number is a no.

    >>> centred_sum(torch.tensor([1.0, 1.0, 0.0])) * GRID.step
    0.5
    """
    within = votes.double().nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0)
    return int(((within - 0.5) / GRID.step).round().long().sum())


def noised_count(total: int, noise_multiplier: float, randomness: Randomness, grid: Grid = GRID) -> float:
    """``total + N(0, (σ/2)²)`` in votes: the release. In the exact tier, a rounded Gaussian on the grid.

    ``total`` is in steps of the grid. On another ``grid`` a unit moves it by at most that grid's clip norm, in the
    place of one half.

    Guarantees: a Gaussian mechanism of noise multiplier σ when one unit is added, removed or emptied.

    >>> noised_count(centred_sum(torch.ones(3)), 0.0, Randomness.fresh())
    1.5
    """
    source = randomness.noise
    if randomness.tier == "exact":
        assert isinstance(source, CryptographicStream)
        noisy = noised_on_grid({"count": torch.tensor(total)}, grid, noise_multiplier, 1.0, source)
        return float(noisy["count"])
    if noise_multiplier == 0:
        return total * grid.step
    drawn = float(gaussian(torch.Size([]), noise_multiplier * grid.clip_norm, source.device, source))
    return total * grid.step + drawn
