"""Preconditioning, loss and schedule against the closed forms of Karras et al. 2022, Table 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from saltflat.synthesis.precondition import (
    Denoiser,
    denoising_loss,
    draw_sigma,
    loss_weight,
    noise_schedule,
    scaling,
)

LEVELS = [0.002, 0.1, 0.5, 1.0, 7.0, 80.0]


@pytest.mark.parametrize("sigma", LEVELS)
def test_factors_and_weight_are_the_papers(sigma: float) -> None:
    c = scaling(torch.tensor(sigma, dtype=torch.float64))
    assert float(c.skip) == pytest.approx(0.25 / (sigma**2 + 0.25), rel=1e-12)
    assert float(c.out) == pytest.approx(sigma * 0.5 / math.sqrt(sigma**2 + 0.25), rel=1e-12)
    assert float(c.into) == pytest.approx(1 / math.sqrt(sigma**2 + 0.25), rel=1e-12)
    assert float(c.noise) == pytest.approx(math.log(sigma) / 4, rel=1e-12)
    weight = float(loss_weight(torch.tensor(sigma, dtype=torch.float64)))
    assert weight == pytest.approx((sigma**2 + 0.25) / (sigma * 0.5) ** 2, rel=1e-12)
    assert weight * float(c.out) ** 2 == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("sigma", LEVELS)
def test_input_and_target_have_unit_variance(sigma: float) -> None:
    """The law that the factors follow from: both hold only with c_in, c_skip and c_out as they are."""
    c = scaling(torch.tensor(sigma, dtype=torch.float64))
    into, skip, out = float(c.into), float(c.skip), float(c.out)
    assert into**2 * (0.25 + sigma**2) == pytest.approx(1.0)
    # target (y - c_skip (y + n)) / c_out, with y and n independent
    assert ((1 - skip) ** 2 * 0.25 + skip**2 * sigma**2) / out**2 == pytest.approx(1.0)


class Constant(nn.Module):
    """F that predicts nothing, and remembers what it was shown."""

    def forward(self, x: Tensor, noise: Tensor, labels: Tensor, changes: Tensor | None) -> Tensor:
        self.shown, self.noise = x, noise
        return torch.zeros_like(x)


def test_the_loss_of_knowing_nothing_is_one() -> None:
    """Fails with the weight left out, or with an error against the noise instead of the image (tried)."""
    torch.manual_seed(0)
    network = Constant()
    images = 0.5 * torch.randn(20_000, 1, 2, 2, dtype=torch.float64)
    loss = denoising_loss(Denoiser(network), images, torch.zeros(len(images), dtype=torch.long))
    assert float(loss) == pytest.approx(1.0, abs=0.02)
    assert float(network.shown.var()) == pytest.approx(1.0, abs=0.02)
    # ln σ / 4 with ln σ ~ N(-1.2, 1.2²)
    assert float(network.noise.mean()) == pytest.approx(-0.3, abs=0.01)
    assert float(network.noise.std()) == pytest.approx(0.3, abs=0.01)


def test_noise_levels_are_lognormal() -> None:
    torch.manual_seed(1)
    logs = draw_sigma(100_000, torch.zeros(1, dtype=torch.float64)).log()
    assert logs.shape == (100_000, 1, 1, 1)
    assert float(logs.mean()) == pytest.approx(-1.2, abs=0.02)
    assert float(logs.std()) == pytest.approx(1.2, abs=0.02)


@pytest.mark.parametrize("steps", [2, 18, 40])
def test_the_schedule_is_equation_five(steps: int) -> None:
    levels = noise_schedule(steps)
    for i in range(steps):
        expected = (80 ** (1 / 7) + i / (steps - 1) * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7
        assert float(levels[i]) == pytest.approx(expected, rel=1e-12)
    assert levels[-1] == 0
    assert len(levels) == steps + 1
