"""A stretch of steps that are all alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from saltflat.errors import InputError, check_count, check_not_negative, check_positive, is_number
from saltflat.plan.ascents import ASCENTS, Ascent, NoAscent
from saltflat.plan.parts import check_kind


@dataclass(frozen=True)
class Phase:
    """``steps`` releases with one noise multiplier, clip norm, learning rate and ascent.

    ``noise_multiplier`` may be left out: `Plan.calibrated_to` solves for it, in proportion to
    ``noise_ratio``. ``learning_rate`` may be left out when the optimizer is given to ``fit``.

    >>> Phase(steps=100, clip_norm=1.0, noise_multiplier=2.0).query_noises
    (2.0,)
    >>> from saltflat.plan import FreshQuery
    >>> Phase(100, 1.0, 2.0, ascent=FreshQuery(0.05, noise_ratio=3.0)).query_noises
    (6.0, 2.0)
    """

    steps: int
    clip_norm: float
    noise_multiplier: float | None = None
    learning_rate: float | None = None
    ascent: Ascent = field(default_factory=NoAscent)
    noise_ratio: float = 1.0
    reset_momentum: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        if not is_number(self.clip_norm) or not self.clip_norm > 0:
            raise InputError("clip_norm", self.clip_norm, "clip_norm > 0", cure="0.1 to 1 is usual.")
        if math.isinf(self.clip_norm) and self.noise_multiplier != 0:
            raise InputError("clip_norm", self.clip_norm, "a finite clip_norm, because noise is scaled by it")
        if self.noise_multiplier is not None:
            check_not_negative("noise_multiplier", self.noise_multiplier, cure="0 means no privacy at all.")
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)
        check_positive("noise_ratio", self.noise_ratio)
        check_kind("ascent", self.ascent, tuple(ASCENTS.values()))
        check_kind("reset_momentum", self.reset_momentum, bool)
        check_kind("name", self.name, str)

    @property
    def query_noises(self) -> tuple[float, ...]:
        """The noise multiplier of each query on the batch of one step."""
        asked = self.ascent_noise
        return (self.sigma,) if asked is None else (asked, self.sigma)

    @property
    def ascent_noise(self) -> float | None:
        """The noise multiplier of the query that the ascent asks; None where it asks none."""
        return self.ascent.query_noise(self.sigma)

    @property
    def sigma(self) -> float:
        """The noise multiplier of the descent; an error if it has not been solved for."""
        if self.noise_multiplier is None:
            raise InputError(
                "noise_multiplier", None, "a noise multiplier in every phase", problem="is not known yet",
                cure="Give it, or calibrate the plan: plan.calibrated_to(Budget(epsilon, delta)).",
            )  # fmt: skip
        return self.noise_multiplier
