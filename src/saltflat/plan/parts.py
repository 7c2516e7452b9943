"""Parts of which methods are composed, as values: how gradients are clipped, how many views of an example there
are, what public gradients do, what steps. Their behaviour lives in `saltflat.methods` and `saltflat.engine`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, get_args

from saltflat.errors import (
    InputError,
    check_count,
    check_not_negative,
    check_positive,
    check_share,
    is_number,
)


def check_kind(argument: str, value: object, family: Any) -> None:
    """Refuse anything but a value of this type, or of one of these types (a union or a tuple)."""
    if not isinstance(value, family):
        kinds = family if isinstance(family, tuple) else get_args(family) or (family,)
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InputError(argument, value, f"{argument} of type {names}")


def check_rho(rho: float) -> None:
    """Refuse what is no radius of an ascent."""
    check_not_negative("rho", rho, cure="0.01 to 0.1 is usual; 0 switches the ascent off.")


# --- clipping ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlatClipping:
    """The whole gradient of a unit is scaled down to the clip norm."""

    kind = "flat"

    def __str__(self) -> str:
        return "flat"


@dataclass(frozen=True)
class AutomaticClipping:
    """Normalise: C·g/(‖g‖ + stability)."""

    stability: float = 0.01

    kind = "automatic"

    def __post_init__(self) -> None:
        check_positive("stability", self.stability)

    def __str__(self) -> str:
        return f"automatic, stability {self.stability:g}"


@dataclass(frozen=True)
class PerLayerClipping:
    """Each layer to C/√L, so that the squares add up to C²."""

    kind = "per-layer"

    def __str__(self) -> str:
        return "per layer"


@dataclass(frozen=True)
class QuantileClipping:
    """The clip norm follows a quantile of the gradient norms, by a noised count (Andrew et al. 2021).

    Each step also releases how many gradients were short enough, with noise of standard deviation
    ``count_noise``. Together with the gradient it is one release with σ = (σ_g⁻² + (2 σ_b)⁻²)^(−1/2).
    The phase's ``clip_norm`` is where it starts.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float = 20.0

    kind = "quantile"

    def __post_init__(self) -> None:
        check_share("quantile", self.quantile)
        check_positive("learning_rate", self.learning_rate)
        check_positive("count_noise", self.count_noise)

    def __str__(self) -> str:
        return f"quantile {self.quantile:g}, count noise {self.count_noise:g}"


Clipping = FlatClipping | AutomaticClipping | PerLayerClipping | QuantileClipping


# --- multiplicity: several views of one example, averaged before the clip ---------------------------

AUGMENTATIONS = ("flip", "crop", "cutout", "auto")
LATER: dict[str, Any] = {"later": True}
"""Marks a field that older plan files do not have: left out of a file where it has its default."""


@dataclass(frozen=True)
class Multiplicity:
    """``views`` gradients of each example, averaged before the clip: free, because the clip comes after.

    ``augmentations`` change the inputs of each view (De et al. 2022); ``deviation`` > 0 also takes view k at
    w + z_k with z_k ~ N(0, deviation²) (DPlis, Wang et al. 2021). ``rho`` > 0 takes view k at w + ρ g_k/‖g_k‖
    with g_k the gradient of the k-th of ``views`` batches of ``public_batch`` public rows: weight multiplicity.
    """

    views: int = 1
    augmentations: tuple[str, ...] = ()
    deviation: float = 0.0
    rho: float = field(default=0.0, metadata=LATER)
    public_batch: int = field(default=64, metadata=LATER)

    kind = "views"

    def __post_init__(self) -> None:
        check_count("views", self.views)
        given: Any = self.augmentations
        object.__setattr__(self, "augmentations", (given,) if isinstance(given, str) else tuple(given))
        for name in self.augmentations:
            if name not in AUGMENTATIONS:
                raise InputError("augmentations", name, f"names among {', '.join(AUGMENTATIONS)}")
        check_not_negative("deviation", self.deviation)
        check_rho(self.rho)
        check_count("public_batch", self.public_batch)
        if self.deviation and self.views == 1:
            raise InputError("views", 1, "views > 1", problem=f"is too few for deviation={self.deviation:g}")
        if self.deviation and self.rho:
            beside = f"is given beside rho={self.rho:g}"
            raise InputError("deviation", self.deviation, "deviation or rho, not both", problem=beside)

    def __str__(self) -> str:
        if self.views == 1 and not self.augmentations and not self.deviation and not self.rho:
            return "one view"
        parts = [f"{self.views} view{'s' if self.views > 1 else ''}", *self.augmentations]
        if self.deviation:
            parts.append(f"weights ± {self.deviation:g}")
        if self.rho:
            parts.append(f"weights along public gradients, ρ {self.rho:g}, batches of {self.public_batch}")
        return ", ".join(parts)


# --- public gradients: what they do to a release ----------------------------------------------------


@dataclass(frozen=True)
class NoPublicGradient:
    """Releases are made of private gradients alone."""

    kind = "none"

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True)
class Dope:
    """Differences from the public gradient are clipped: g_pub + (Σ clip(g_i − g_pub, C) + N(0, σ²C²))/B.

    One unit still moves the sum by at most C. Reference: DOPE-SGD, Nasr et al., ICML 2023.
    """

    public_batch: int = 256

    kind = "dope"

    def __post_init__(self) -> None:
        check_count("public_batch", self.public_batch)

    def __str__(self) -> str:
        return f"DOPE, batches of {self.public_batch}"


@dataclass(frozen=True)
class MirrorDescent:
    """The release is mixed with the public gradient: α_t g + (1 − α_t) g_pub with α_t = cos(πt/2T).

    Post-processing. Reference: PDA-DPMD, Amid et al., ICML 2022.
    """

    public_batch: int = 256

    kind = "mirror-descent"

    def __post_init__(self) -> None:
        check_count("public_batch", self.public_batch)

    def __str__(self) -> str:
        return f"mirror descent, batches of {self.public_batch}"


@dataclass(frozen=True)
class AdaDps:
    """Gradients are divided by √v + ``stability`` before the clip, v a moving average of squared public gradients.

    v_t = ``decay`` · v_{t−1} + (1 − ``decay``) · g_pub². Reference: AdaDPS, Li et al., ICML 2022.
    """

    public_batch: int = 256
    decay: float = 0.9
    stability: float = 0.1

    kind = "ada-dps"

    def __post_init__(self) -> None:
        check_count("public_batch", self.public_batch)
        check_share("decay", self.decay, zero=True)
        check_positive("stability", self.stability)

    def __str__(self) -> str:
        return f"AdaDPS, batches of {self.public_batch}, decay {self.decay:g}, stability {self.stability:g}"


PublicGradient = NoPublicGradient | Dope | MirrorDescent | AdaDps


# --- optimizer --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Optimizer:
    """A named optimizer with its settings, all but the learning rate, which belongs to the phases.

    >>> Optimizer("sgd", {"momentum": 0.9})
    Optimizer(name='sgd', settings={'momentum': 0.9})
    """

    name: str = "sgd"
    settings: dict[str, float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InputError(
                "optimizer", self.name, "a name such as 'sgd' or 'adam'", cure="Factories go to fit(optimizer=)."
            )  # fmt: skip
        if not isinstance(self.settings, dict):
            raise InputError("settings", self.settings, "a dict such as {'momentum': 0.9}")
        object.__setattr__(self, "settings", dict(self.settings))  # a value of its own
        for key, value in self.settings.items():
            if not isinstance(value, bool) and not (is_number(value) and math.isfinite(value)):
                raise InputError(key, value, "a finite number, or True or False", problem="is no setting")

    def default_learning_rate(self, clip_norm: float) -> float:
        """A rate to start from when none is named.

        A clipped gradient has length C at most, so a step of SGD is proportional to rate · C; the papers' 2.0
        at C = 0.1 is 0.2/C. Adam divides that scale out again.
        """
        if self.name != "sgd":
            return 0.002
        return 0.1 if math.isinf(clip_norm) else 0.2 / clip_norm

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.settings.items()))))

    def __str__(self) -> str:
        settings = ", ".join(f"{key} {value:g}" for key, value in self.settings.items())
        return f"{self.name} ({settings})" if settings else self.name
