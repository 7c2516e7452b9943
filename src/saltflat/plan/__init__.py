"""What shall happen, as pure values. Imports accounting and nothing else: no torch, no data."""

from saltflat.plan.budget import Budget, Unit
from saltflat.plan.parts import (
    AdaDps,
    Ascent,
    AutomaticClipping,
    Averaging,
    Clipping,
    Dope,
    Ema,
    FlatClipping,
    FreshQuery,
    MirrorDescent,
    Multiplicity,
    NoAscent,
    NoAveraging,
    NoPublicGradient,
    Optimizer,
    PerLayerClipping,
    PreviousRelease,
    PublicGradient,
    QuantileClipping,
    Swa,
)
from saltflat.plan.phase import Phase
from saltflat.plan.plan import Plan
from saltflat.plan.sampling import Poisson, Sampling, TruncatedPoisson

__all__ = [
    "AdaDps",
    "Ascent",
    "AutomaticClipping",
    "Averaging",
    "Budget",
    "Clipping",
    "Dope",
    "Ema",
    "FlatClipping",
    "FreshQuery",
    "MirrorDescent",
    "Multiplicity",
    "NoAscent",
    "NoAveraging",
    "NoPublicGradient",
    "Optimizer",
    "PerLayerClipping",
    "Phase",
    "Plan",
    "Poisson",
    "PreviousRelease",
    "PublicGradient",
    "QuantileClipping",
    "Sampling",
    "Swa",
    "TruncatedPoisson",
    "Unit",
]
