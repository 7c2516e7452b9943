"""Rényi divergences at fractional orders: the integral itself, never less, and never more than dp-accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad

from saltflat.accounting import SampledGaussian, epsilon, rdp_at_orders
from saltflat.accounting.orders import log_moment

OPACUS_ORDERS = [1 + x / 10.0 for x in range(1, 100)] + [float(x) for x in range(12, 64)]


def integral(rate: float, noise: float, order: float) -> float:
    """The moment by quadrature."""

    def logs(z: float) -> float:
        return (
            -0.5 * (z / noise) ** 2
            - math.log(noise * math.sqrt(2 * math.pi))
            + order * float(np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * noise**2)))
        )

    top = max(logs(z) for z in np.linspace(-10 * noise, order + 10 * noise, 4001))
    points = [0.0, 0.5, 1.0, order / 2, order]
    ends = (-12 * noise, order + 12 * noise)
    value = quad(lambda z: math.exp(logs(z) - top), *ends, points=points, limit=500, epsabs=0, epsrel=1e-11)
    return top + math.log(value[0])


@pytest.mark.parametrize("rate", [1e-3, 0.04, 0.3, 0.9])
@pytest.mark.parametrize("noise", [0.6, 1.5, 6.0])
@pytest.mark.parametrize("order", [1.1, 2.5, 4.7, 10.9])
def test_the_series_is_the_integral(rate: float, noise: float, order: float) -> None:
    """Without the signs, the moment at rate 0.3, noise 1.5 and order 1.1 is off in the fourth digit."""
    found, true = log_moment(rate, noise, order), integral(rate, noise, order)
    assert found == pytest.approx(true, rel=1e-8, abs=1e-11)


@pytest.mark.parametrize(
    ("history", "there"),
    [
        ([(1.5, 0.04, 2250)], 7.32911117143),  # in a test of Opacus
        ([(1.0, 0.01, 1000)], 2.1013652716430564),  # these by Opacus 1.6
        ([(0.6, 0.01, 1000), (2.0, 0.3, 10)], 9.0214182170422),
        ([(0.3, 0.001, 10)], 10.710824449230286),
        ([(1.1, 1.0, 3)], 8.039116966222146),
    ],
)
def test_epsilon_is_that_of_opacus_and_a_bound(history: list[tuple[float, float, int]], there: float) -> None:
    events = [SampledGaussian(*entry) for entry in history]
    found, order = rdp_at_orders(events, 1e-5, OPACUS_ORDERS)
    assert found == pytest.approx(there, abs=1e-8)
    assert found >= epsilon(events, 1e-5)
    assert order in OPACUS_ORDERS


def test_orders_near_one_end() -> None:
    """dp-accounting gives up at some of them; here what is left out of the series is bounded."""
    for order in (1.01, 1.1):
        found = log_moment(0.06, 0.73, order)
        assert found == pytest.approx(integral(0.06, 0.73, order), rel=1e-6)
        assert found >= integral(0.06, 0.73, order) - 1e-11


def test_without_noise_or_releases() -> None:
    assert rdp_at_orders([SampledGaussian(0.0, 0.1, 1)], 1e-5, [2.0, 2.5])[0] == math.inf
    assert rdp_at_orders([], 1e-5, [2.0, 2.5])[0] == 0.0
