"""What shall happen, as pure values. Imports accounting and nothing else: no torch, no data."""

from saltflat.plan.ascents import Ascent, FreshQuery, NoAscent, OwnGradient, PreviousRelease
from saltflat.plan.averagings import Averaging, Ema, NoAveraging, Swa
from saltflat.plan.budget import Budget, Unit
from saltflat.plan.federation import (
    CentralNoise,
    Federation,
    LocalTraining,
    Mask,
    NoMask,
    OwnMask,
    Placement,
    PublicMask,
    RandomMask,
    ReleaseMask,
    SharedNoise,
)
from saltflat.plan.parts import (
    AdaDps,
    AutomaticClipping,
    Clipping,
    Dope,
    FlatClipping,
    MirrorDescent,
    Multiplicity,
    NoPublicGradient,
    Optimizer,
    PerLayerClipping,
    PublicGradient,
    QuantileClipping,
)
from saltflat.plan.phase import Phase
from saltflat.plan.plan import Plan
from saltflat.plan.sampling import Poisson, Sampling, TruncatedPoisson
from saltflat.plan.survey import Survey

__all__ = [
    "AdaDps",
    "Ascent",
    "AutomaticClipping",
    "Averaging",
    "Budget",
    "CentralNoise",
    "Clipping",
    "Dope",
    "Ema",
    "Federation",
    "FlatClipping",
    "FreshQuery",
    "LocalTraining",
    "Mask",
    "MirrorDescent",
    "Multiplicity",
    "NoAscent",
    "NoAveraging",
    "NoMask",
    "NoPublicGradient",
    "Optimizer",
    "OwnGradient",
    "OwnMask",
    "PerLayerClipping",
    "Phase",
    "Placement",
    "Plan",
    "Poisson",
    "PreviousRelease",
    "PublicGradient",
    "PublicMask",
    "QuantileClipping",
    "RandomMask",
    "ReleaseMask",
    "Sampling",
    "SharedNoise",
    "Survey",
    "Swa",
    "TruncatedPoisson",
    "Unit",
]
