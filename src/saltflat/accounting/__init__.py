"""Privacy accounting over plain events. Imports no torch, no models, no plans."""

from saltflat.accounting.calibrate import least_scale, rounded_up
from saltflat.accounting.epsilon import (
    COARSE,
    FINE,
    Relation,
    UnsupportedError,
    check_delta,
    delta_at,
    epsilon,
    rdp_epsilon,
    renyi_divergence,
    replace_one_epsilon,
    used_grid,
)
from saltflat.accounting.events import SampledGaussian, combined_noise, merged, shares
from saltflat.accounting.filter import PrivacyFilter, best_order, renyi_capacity
from saltflat.accounting.orders import rdp_at_orders
from saltflat.accounting.second import second_epsilon

__all__ = [
    "COARSE",
    "FINE",
    "PrivacyFilter",
    "Relation",
    "SampledGaussian",
    "UnsupportedError",
    "best_order",
    "check_delta",
    "combined_noise",
    "delta_at",
    "epsilon",
    "least_scale",
    "merged",
    "rdp_at_orders",
    "rdp_epsilon",
    "renyi_capacity",
    "renyi_divergence",
    "replace_one_epsilon",
    "rounded_up",
    "second_epsilon",
    "shares",
    "used_grid",
]
