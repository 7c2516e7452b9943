"""What a mechanism releases, as plain values that an accountant can interpret.

This chapter knows nothing of models, plans or data. It is the bottom of the house: `saltflat.plan` builds
these values from the same fields that build the mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from saltflat.errors import InputError, check_count, check_not_negative, check_share


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
        check_not_negative("noise_multiplier", self.noise_multiplier)
        check_share("rate", self.rate, one=True)
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


def merged(events: Iterable[SampledGaussian]) -> tuple[SampledGaussian, ...]:
    """The same releases with as few events as possible: they compose in any order to the same ε.

    Equal events are counted together. Releases without sampling are one Gaussian, exactly: T of them with
    noise σ are worth one with σ/√T (Dong, Roth & Su 2022, corollary 3.3).

    >>> merged([SampledGaussian(2.0, 0.1, 3), SampledGaussian(3.0, 1.0, 9), SampledGaussian(2.0, 0.1, 4)])[0].steps
    7
    >>> merged([SampledGaussian(3.0, 1.0, 9)])[0].noise_multiplier
    1.0
    """
    counted: dict[tuple[float, float, int | None, int | None], int] = {}
    for event in events:
        if event.steps > 0:
            key = (event.noise_multiplier, event.rate, event.population, event.cap)
            counted[key] = counted.get(key, 0) + event.steps
    whole = {key: steps for key, steps in counted.items() if key[1] == 1 and key[3] is None}
    found = [
        SampledGaussian(noise, rate, steps, population, cap)
        for (noise, rate, population, cap), steps in counted.items()
        if (noise, rate, population, cap) not in whole
    ]
    if whole:
        if any(key[0] == 0 for key in whole):
            noise = 0.0
        else:
            # taken relative to the least noise, so that no square overflows
            least = min(key[0] for key in whole)
            noise = least / math.sqrt(math.fsum(n * (least / key[0]) ** 2 for key, n in whole.items()))
        found.append(SampledGaussian(noise, 1.0, 1))
    return tuple(found)


def shares(events: Iterable[SampledGaussian]) -> list[float]:
    """What part of the whole each event is, by its Rényi divergence of order 2, which adds up over releases.

    ε itself does not add up. For a Gaussian of noise σ on batches of rate q the divergence of one release is
    log(1 + q²(exp(σ⁻²) − 1)) (Abadi et al. 2016, lemma 3); a cap on batches is left out of account.

    >>> [round(share, 2) for share in shares([SampledGaussian(1.0, 0.1, 30), SampledGaussian(2.0, 0.1, 60)])]
    [0.75, 0.25]
    """
    parts = []
    for event in events:
        if event.noise_multiplier == 0:
            parts.append(math.inf)
            continue
        inverse = event.noise_multiplier**-2 if event.noise_multiplier > 1e-150 else math.inf
        grown = 2 * math.log(event.rate) + inverse
        one = grown if inverse > 30 else math.log1p(event.rate**2 * math.expm1(inverse))
        parts.append(event.steps * one)
    total = math.fsum(parts)
    if math.isinf(total):
        endless = sum(math.isinf(part) for part in parts)
        return [1 / endless if math.isinf(part) else 0.0 for part in parts]
    return [part / total if total else 0.0 for part in parts]
