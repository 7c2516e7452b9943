"""Methods as plans: `dp_sgd`, `dp_sgd_tapered`, `dp_sam`, `dp_sat`, `sai`, `dp_sat_early_stop`; baselines without
privacy.

With public data: `weight_multiplicity`, `dope_sgd`, `mirror_descent`, `ada_dps`. Over clients: `dp_fedavg`,
`dp_fedsam`, `dp_fedsam_topk`, `fed_smp_topk`, `fed_smp_randk`, `blur`, `lus`, `fed_sai`.
"""

from saltflat.plan import AdaDps, Dope, Ema, MirrorDescent, Multiplicity, Swa
from saltflat.plans.federated import (
    DEFAULT_CLIENTS,
    FEDERATED,
    FEDERATED_SUFFIXES,
    FederatedCommon,
    blur,
    dp_fedavg,
    dp_fedsam,
    dp_fedsam_topk,
    fed_sai,
    fed_smp_randk,
    fed_smp_topk,
    federated_by_name,
    lus,
)
from saltflat.plans.frame import Common
from saltflat.plans.methods import (
    METHODS,
    SUFFIXES,
    by_name,
    dp_sam,
    dp_sat,
    dp_sat_early_stop,
    dp_sgd,
    dp_sgd_tapered,
    sai,
    sam,
    sgd,
)
from saltflat.plans.public import ada_dps, dope_sgd, mirror_descent, weight_multiplicity

__all__ = [
    "DEFAULT_CLIENTS",
    "FEDERATED",
    "FEDERATED_SUFFIXES",
    "METHODS",
    "SUFFIXES",
    "AdaDps",
    "Common",
    "Dope",
    "Ema",
    "FederatedCommon",
    "MirrorDescent",
    "Multiplicity",
    "Swa",
    "ada_dps",
    "blur",
    "by_name",
    "dope_sgd",
    "dp_fedavg",
    "dp_fedsam",
    "dp_fedsam_topk",
    "dp_sam",
    "dp_sat",
    "dp_sat_early_stop",
    "dp_sgd",
    "dp_sgd_tapered",
    "fed_sai",
    "fed_smp_randk",
    "fed_smp_topk",
    "federated_by_name",
    "lus",
    "mirror_descent",
    "sai",
    "sam",
    "sgd",
    "weight_multiplicity",
]
