"""What a mechanism releases, as plain values that an accountant can interpret.

This chapter knows nothing of models, plans or data. It is the bottom of the house: `saltflat.plan` builds
these values from the same fields that build the mechanism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from saltflat.errors import InputError, check_count, is_number


@dataclass(frozen=True)
class SampledGaussian:
    """``steps`` releases of a Gaussian sum over batches sampled at ``rate``.

    ``noise_multiplier`` is the standard deviation over the sensitivity of the whole release. With ``cap`` the
    batches are truncated Poisson: at most ``cap`` of at most ``population`` rows.

    >>> SampledGaussian(noise_multiplier=4.4627, rate=2048 / 60000, steps=1172).steps
    1172
    """

    noise_multiplier: float
    rate: float
    steps: int
    population: int | None = None
    cap: int | None = None

    def __post_init__(self) -> None:
        if not is_number(self.noise_multiplier) or not 0 <= self.noise_multiplier < math.inf:
            raise InputError("noise_multiplier", self.noise_multiplier, "a finite noise_multiplier >= 0")
        if not is_number(self.rate) or not 0 < self.rate <= 1:
            raise InputError("rate", self.rate, "0 < rate <= 1")
        check_count("steps", self.steps, least=0)
        if (self.cap is None) != (self.population is None):
            raise InputError("cap", self.cap, "cap and population together, for truncated Poisson sampling")

    @property
    def is_private(self) -> bool:
        """Whether there is any noise to speak of."""
        return self.noise_multiplier > 0 or self.steps == 0

    def single(self) -> Any:
        """One release, in dp-accounting's words."""
        import dp_accounting as dpa

        if self.cap is not None:
            return dpa.TruncatedSubsampledGaussianDpEvent(
                dataset_size=self.population,
                sampling_probability=self.rate,
                truncated_batch_size=self.cap,
                noise_multiplier=self.noise_multiplier,
            )
        gaussian = dpa.GaussianDpEvent(self.noise_multiplier)
        return gaussian if self.rate == 1 else dpa.PoissonSampledDpEvent(self.rate, gaussian)


def combined_noise(*noise_multipliers: float) -> float:
    """The noise multiplier of several Gaussian queries on one batch, taken as one query.

    Two adaptive queries with the same batch are one Gaussian with σ = (σ₁⁻² + σ₂⁻²)^(−1/2). Treating them as
    two independently sampled steps would be unsound: they share the batch.

    >>> round(combined_noise(1.0, 1.0), 4)
    0.7071
    """
    if not noise_multipliers or any(sigma == 0 for sigma in noise_multipliers):
        return 0.0
    return math.fsum(sigma**-2 for sigma in noise_multipliers) ** -0.5
