"""From noise to images: the probability flow of a denoiser, followed by Heun's method.

EDM's deterministic sampler (Karras et al. 2022, Algorithm 1). It knows nothing of networks: any function that gives
the expected clean image at a noise level will do, an exact one too.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from saltflat.errors import check_count
from saltflat.synthesis.precondition import noise_schedule

Denoise = Callable[[Tensor, Tensor], Tensor]
"""From noisy images and their noise level (one number a row) to expected clean images."""
Guide = Callable[[Tensor, Tensor], Tensor]
"""From noisy images and their noise level to ∇ₓ log(p/(1-p)) of a discriminator."""


def heun(
    denoise: Denoise, noise: Tensor, *, steps: int = 18, guide: Guide | None = None, weight: float = 0.0
) -> Tensor:
    """Images from standard normal ``noise``: an Euler step and its correction at each level, none on the last.

    ``guide`` with ``weight`` w_d adds discriminator guidance (Kim et al. 2023): d = (x - D)/σ - w_d σ ∇ log(p/(1-p)).
    The state is held in float64, because σ_max = 80 leaves few digits to small details.

    >>> at_the_origin = lambda x, sigma: torch.zeros_like(x)       # all of the data is one point
    >>> float(heun(at_the_origin, torch.ones(1, 1, 1, 1)).abs().max()) < 1e-6
    True
    """
    check_count("steps", steps)
    levels = noise_schedule(steps).to(noise.device)
    x = noise.double() * levels[0]
    rows = torch.ones(len(x), 1, 1, 1, dtype=x.dtype, device=x.device)

    def slope(at: Tensor, sigma: Tensor) -> Tensor:
        found = (at - denoise(at, rows * sigma).double()) / sigma
        if guide is not None and weight:
            found = found - weight * sigma * guide(at, rows * sigma).double()
        return found

    for now, following in pairwise(levels):
        first = slope(x, now)
        there = x + (following - now) * first
        if following > 0:
            there = x + (following - now) * (first + slope(there, following)) / 2
        x = there
    return x
