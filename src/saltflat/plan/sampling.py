"""How batches are drawn, as values. Each knows its privacy event, so the two cannot disagree."""

from __future__ import annotations

import math
from dataclasses import dataclass

from saltflat.accounting import SampledGaussian
from saltflat.errors import InputError, check_count, check_positive


def _check(population: int, batch_size: float) -> None:
    check_count(
        "population", population, cure="Declare how many rows (or people) there are, roughly and publicly."
    )
    check_positive("batch_size", batch_size)
    if batch_size > population:
        raise InputError(
            "batch_size", batch_size, "1 <= batch_size <= population",
            problem=f"is larger than population={population}",
            cure=f"A batch of the whole data set is batch_size={population}.",
        )  # fmt: skip


@dataclass(frozen=True)
class Poisson:
    """Each row joins each batch on its own with probability ``batch_size / population``.

    Both numbers are declared and public. ``batch_size`` is the expected size, and the divisor of every
    release; the size of an actual batch is private.

    >>> Poisson(population=1_000, batch_size=250).rate
    0.25
    """

    population: int
    batch_size: float

    kind = "poisson"

    def __post_init__(self) -> None:
        _check(self.population, self.batch_size)

    @property
    def rate(self) -> float:
        """The probability with which a row joins a batch."""
        return self.batch_size / self.population

    def event(self, noise_multiplier: float, steps: int) -> SampledGaussian:
        """What ``steps`` releases with this noise cost."""
        return SampledGaussian(noise_multiplier, self.rate, steps)

    def __str__(self) -> str:
        return f"Poisson, rate {self.rate:.6g} ({self.batch_size:g} expected of {self.population:,} declared)"


@dataclass(frozen=True)
class TruncatedPoisson:
    """Poisson sampling with at most ``cap`` rows in a batch, for fixed shapes.

    A batch that drew more loses the surplus at random. ``population`` is then an upper bound: more rows are
    refused. The default cap, 4.3 standard deviations above the mean, costs almost nothing.

    >>> TruncatedPoisson(population=60_000, batch_size=2048).cap
    2240
    """

    population: int
    batch_size: float
    cap: int = 0

    kind = "truncated-poisson"

    def __post_init__(self) -> None:
        _check(self.population, self.batch_size)
        if self.cap == 0:
            spread = math.sqrt(self.batch_size * (1 - self.rate))
            object.__setattr__(self, "cap", min(self.population, math.ceil(self.batch_size + 4.3 * spread)))
        check_count("cap", self.cap)
        if self.cap < self.batch_size:
            raise InputError(
                "cap", self.cap, f"cap >= batch_size={self.batch_size:g}",
                cure="A cap at the mean triples epsilon; leave it out for the default.",
            )  # fmt: skip

    @property
    def rate(self) -> float:
        """The probability with which a row is drawn, before the batch is truncated."""
        return self.batch_size / self.population

    def event(self, noise_multiplier: float, steps: int) -> SampledGaussian:
        """What ``steps`` releases with this noise cost, the truncation included."""
        return SampledGaussian(noise_multiplier, self.rate, steps, population=self.population, cap=self.cap)

    def __str__(self) -> str:
        return (
            f"truncated Poisson, rate {self.rate:.6g}, at most {self.cap} rows "
            f"({self.batch_size:g} expected of at most {self.population:,})"
        )


Sampling = Poisson | TruncatedPoisson
