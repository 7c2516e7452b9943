"""The privacy loss on a grid, all points at once: what dp-accounting finds point by point."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from saltflat.accounting import SampledGaussian, epsilon
from saltflat.accounting.epsilon import COARSE
from saltflat.accounting.grid import divergences

NOISES = (0.2, 0.5, 1.0, 1.7, 4.4627, 30.0)
RATES = (1e-6, 0.001, 64 / 1437, 0.25, 0.5, 0.9, 0.999)


@pytest.mark.parametrize("side", [AdjacencyType.ADD, AdjacencyType.REMOVE])
@pytest.mark.parametrize("rate", RATES)
def test_every_point_has_the_divergence_of_dp_accounting(rate: float, side: AdjacencyType) -> None:
    """Over the whole grid and beyond both its ends, with zero among the points.

    Fails when the losses beyond the edge are left at zero (tried).
    """
    for noise in NOISES:
        loss = GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=side)
        bounds = loss.connect_dots_bounds()
        lower, upper = math.floor(bounds.epsilon_lower / 0.01) - 3, math.ceil(bounds.epsilon_upper / 0.01) + 3
        points = np.arange(min(lower, -300), max(upper, 300) + 1) * 0.01
        found, expected = divergences(loss, points), loss.get_delta_for_epsilon(points)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("side", [AdjacencyType.ADD, AdjacencyType.REMOVE])
def test_the_edge_itself(side: AdjacencyType) -> None:
    """Where the privacy loss ends, at log(1 − rate) or its negative, and a rounding beside it."""
    loss = GaussianPrivacyLoss(1.0, sampling_prob=0.3, adjacency_type=side)
    edge = math.log1p(-0.3) if side is AdjacencyType.REMOVE else -math.log1p(-0.3)
    points = edge * (1 + np.array([-1e-7, -1e-11, 0.0, 1e-11, 1e-7]))
    np.testing.assert_array_equal(divergences(loss, points), loss.get_delta_for_epsilon(points))


def test_a_cap_never_costs_less_where_noise_is_next_to_none() -> None:
    """Where the grid gives way to a formula, one more row may push another out and move the sum by two clip norms.

    Fails when the formula takes one (tried: less noise then cost 5,426 after 18,888).
    """
    costs = [epsilon([SampledGaussian(s, 0.5, 1, 100, 50)], 1e-5) for s in (0.0105, 0.01, 0.0094)]
    assert costs == sorted(costs)
    assert costs[-1] > epsilon([SampledGaussian(0.0094, 0.5, 1)], 1e-5)


@pytest.mark.parametrize("noise", NOISES[1:])
def test_a_composition_costs_what_dp_accounting_says(noise: float) -> None:
    """Two sampled phases and a release of all rows, on the coarse grid."""
    events = [
        SampledGaussian(noise, 0.1, 30),
        SampledGaussian(2 * noise, 0.02, 7),
        SampledGaussian(9 * noise, 1.0, 1),
    ]
    plain = pld.PLDAccountant(dpa.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=COARSE)
    for event in events:
        plain.compose(event.single(), event.steps)
    assert epsilon(events, 1e-5, grid=COARSE) == pytest.approx(plain.get_epsilon(1e-5), rel=1e-9)
