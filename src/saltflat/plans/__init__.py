"""Methods as plans: `dp_sgd`, `dp_sam`, `dp_sat`, `sai`, `dp_sat_early_stop`; baselines without privacy."""

from saltflat.plan import Ema, Multiplicity, Swa
from saltflat.plans.frame import Common
from saltflat.plans.methods import (
    METHODS,
    SUFFIXES,
    by_name,
    dp_sam,
    dp_sat,
    dp_sat_early_stop,
    dp_sgd,
    sai,
    sam,
    sgd,
)

__all__ = [
    "METHODS",
    "SUFFIXES",
    "Common",
    "Ema",
    "Multiplicity",
    "Swa",
    "by_name",
    "dp_sam",
    "dp_sat",
    "dp_sat_early_stop",
    "dp_sgd",
    "sai",
    "sam",
    "sgd",
]
