"""What shall happen, as pure values. Imports accounting and nothing else: no torch, no data."""

from saltflat.plan.budget import Budget, Unit
from saltflat.plan.parts import (
    Ascent,
    AutomaticClipping,
    Averaging,
    Clipping,
    Ema,
    FlatClipping,
    FreshQuery,
    Multiplicity,
    NoAscent,
    NoAveraging,
    Optimizer,
    PerLayerClipping,
    PreviousRelease,
    QuantileClipping,
    Swa,
)
from saltflat.plan.phase import Phase
from saltflat.plan.plan import Plan
from saltflat.plan.sampling import Poisson, Sampling, TruncatedPoisson

__all__ = [
    "Ascent",
    "AutomaticClipping",
    "Averaging",
    "Budget",
    "Clipping",
    "Ema",
    "FlatClipping",
    "FreshQuery",
    "Multiplicity",
    "NoAscent",
    "NoAveraging",
    "Optimizer",
    "PerLayerClipping",
    "Phase",
    "Plan",
    "Poisson",
    "PreviousRelease",
    "QuantileClipping",
    "Sampling",
    "Swa",
    "TruncatedPoisson",
    "Unit",
]
