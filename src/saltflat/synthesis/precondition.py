"""EDM's preconditioning, noise levels, loss and sampler (Karras, Aittala, Aila, Laine 2022, Table 1, Algorithm 1).

The network F never sees a noisy image as it is, and never predicts the clean one directly: input, output and skip
are scaled so that both have unit variance at every noise level σ. The sampler follows the probability flow of any
function that gives the expected clean image at a noise level, an exact one too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from saltflat.errors import check_count

SIGMA_DATA = 0.5
SIGMA_MIN, SIGMA_MAX = 0.002, 80.0
RHO = 7.0
MEAN_LOG_SIGMA, SPREAD_LOG_SIGMA = -1.2, 1.2


@dataclass(frozen=True)
class Scaling:
    """The four factors at given noise levels, shaped to multiply images."""

    skip: Tensor
    out: Tensor
    into: Tensor
    noise: Tensor


def scaling(sigma: Tensor) -> Scaling:
    """c_skip, c_out, c_in and c_noise.

    Guarantee: for data of variance σ_d² the input c_in·(y + n) and the target of the network both have unit variance.

    >>> c = scaling(torch.tensor(0.5))
    >>> [round(float(v), 4) for v in (c.skip, c.out, c.into, c.noise)]
    [0.5, 0.3536, 1.4142, -0.1733]
    """
    total = sigma**2 + SIGMA_DATA**2
    return Scaling(
        skip=SIGMA_DATA**2 / total,
        out=sigma * SIGMA_DATA / total.sqrt(),
        into=total.rsqrt(),
        noise=sigma.log() / 4,
    )


def loss_weight(sigma: Tensor) -> Tensor:
    """λ(σ) = (σ² + σ_d²)/(σ σ_d)² = 1/c_out²: the loss of the network itself has weight one everywhere.

    >>> float(loss_weight(torch.tensor(0.5)))
    8.0
    """
    return (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2


def draw_sigma(count: int, like: Tensor) -> Tensor:
    """Noise levels to train at: ln σ ~ N(-1.2, 1.2²), shaped to multiply images."""
    normal = torch.randn(count, 1, 1, 1, device=like.device, dtype=like.dtype)
    return (MEAN_LOG_SIGMA + SPREAD_LOG_SIGMA * normal).exp()


class Denoiser(nn.Module):
    """D(x; σ) = c_skip x + c_out F(c_in x; c_noise): the expected clean image, given a noisy one.

    ``network`` is called as ``network(x, noise, labels, changes)``: scaled images, one number an image for the noise
    level, class numbers, and what the augmentation did (None: nothing).

    >>> class Zero(nn.Module):
    ...     def forward(self, x, noise, labels, changes):
    ...         return torch.zeros_like(x)
    >>> Denoiser(Zero())(torch.ones(1, 1, 2, 2), torch.full((1, 1, 1, 1), 0.5), torch.tensor([0])).unique()
    tensor([0.5000])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, noisy: Tensor, sigma: Tensor, labels: Tensor, changes: Tensor | None = None) -> Tensor:
        c = scaling(sigma)
        seen = self.network(c.into * noisy, c.noise.flatten(), labels, changes)
        return c.skip * noisy + c.out * seen.to(noisy.dtype)


def denoising_loss(model: Denoiser, images: Tensor, labels: Tensor, changes: Tensor | None = None) -> Tensor:
    """The weighted squared error of D at random noise levels, a mean over examples and pixels."""
    sigma = draw_sigma(len(images), images)
    noisy = images + sigma * torch.randn_like(images)
    error = model(noisy, sigma, labels, changes) - images
    return (loss_weight(sigma) * error**2).mean()


def noise_schedule(steps: int) -> Tensor:
    """Noise levels of a sampler, from σ_max down to σ_min, and a zero: t_i of the paper's Equation 5, float64.

    >>> [round(float(t), 4) for t in noise_schedule(4)]
    [80.0, 9.7232, 0.47, 0.002, 0.0]
    """
    if steps == 1:
        return torch.tensor([SIGMA_MAX, 0.0], dtype=torch.float64)
    high, low = math.pow(SIGMA_MAX, 1 / RHO), math.pow(SIGMA_MIN, 1 / RHO)
    levels = (high + torch.arange(steps, dtype=torch.float64) / (steps - 1) * (low - high)) ** RHO
    return torch.cat([levels, torch.zeros(1, dtype=torch.float64)])


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
