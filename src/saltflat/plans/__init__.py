"""Methods as plans: `dp_sgd`, `dp_sam`, `dp_sat`, `sai`, `dp_sat_early_stop`; with public data
`weight_multiplicity`, `dope_sgd`, `mirror_descent`, `ada_dps`; baselines without privacy."""

from saltflat.plan import AdaDps, Dope, Ema, MirrorDescent, Multiplicity, Swa
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
from saltflat.plans.public import ada_dps, dope_sgd, mirror_descent, weight_multiplicity

__all__ = [
    "METHODS",
    "SUFFIXES",
    "AdaDps",
    "Common",
    "Dope",
    "Ema",
    "MirrorDescent",
    "Multiplicity",
    "Swa",
    "ada_dps",
    "by_name",
    "dope_sgd",
    "dp_sam",
    "dp_sat",
    "dp_sat_early_stop",
    "dp_sgd",
    "mirror_descent",
    "sai",
    "sam",
    "sgd",
    "weight_multiplicity",
]
