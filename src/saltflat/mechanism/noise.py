"""Gaussian noise in float64, the tiers ``fast`` and ``secure`` (`saltflat.mechanism.exact` holds the third); and noised
counts of votes, in all tiers.

Each unit votes yes or no, or something between. Votes are centred: a yes counts +½, a no −½, and a unit that is not
there 0. Adding or removing a unit moves the sum by at most ½, half as much as a plain count. Sums are integers on a
grid in all tiers, so they are exact and do not depend on the order of the units.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from saltflat.mechanism.exact import Grid, noised_on_grid
from saltflat.mechanism.randomness import Randomness, Source
from saltflat.mechanism.streams import CryptographicStream


def gaussian(shape: torch.Size, deviation: float, device: torch.device, source: Source) -> Tensor:
    """Normals with this standard deviation in float64, from the source that is handed in.

    >>> gaussian(torch.Size([2]), 1.0, torch.device("cpu"), torch.Generator()).dtype
    torch.float64
    """
    if isinstance(source, CryptographicStream):
        return source.normals(shape.numel()).mul_(deviation).view(shape).to(device)
    return torch.empty(shape, dtype=torch.float64, device=device).normal_(0.0, deviation, generator=source)


def noised(
    total: Mapping[str, Tensor], standard_deviation: float, divisor: float, source: Source
) -> dict[str, Tensor]:
    """``(total + N(0, sd²)) / divisor``, every coordinate with noise of its own: the release.

    ``standard_deviation`` is noise multiplier times clip norm; ``divisor`` is the *expected* batch size, a
    public constant. The sum is noised, not the mean. Drawn in float64: float32 normals never exceed 5.77
    standard deviations, which alone can cost more than δ.

    >>> noised({"w": torch.zeros(2)}, 0.0, 4.0, torch.Generator())
    {'w': tensor([0., 0.])}
    """
    release = {}
    for name, value in total.items():
        if standard_deviation == 0:
            release[name] = value / divisor
            continue
        noise = gaussian(value.shape, standard_deviation, value.device, source)
        release[name] = noise.add_(value).div_(divisor).to(value.dtype)
    return release


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
