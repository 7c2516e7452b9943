"""`Survey`: one look at all rows before the first step, as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass

from saltflat.accounting import SampledGaussian, least_scale, rounded_up
from saltflat.errors import check_count, check_not_negative, check_share


@dataclass(frozen=True)
class Survey:
    """Noised histograms of ``columns`` columns over all rows, released together before the first step.

    A row adds one to at most one bucket of each column. So it moves all counts together by at most √columns in
    Euclidean length, however many buckets there are, and whatever the row holds. The whole is one Gaussian
    release of ``noise_multiplier``, without sampling; a count has noise of deviation ``noise_multiplier``·√columns.

    >>> survey = Survey(columns=4, noise_multiplier=10.0)
    >>> survey.deviation, survey.event().rate
    (20.0, 1.0)
    """

    columns: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_count("columns", self.columns)
        check_not_negative("noise_multiplier", self.noise_multiplier)

    @property
    def sensitivity(self) -> float:
        """How far one row moves the counts, never rounded down."""
        root = math.sqrt(self.columns)
        return root if root * root >= self.columns else math.nextafter(root, math.inf)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on each count."""
        return self.noise_multiplier * self.sensitivity

    def event(self) -> SampledGaussian:
        """What the release costs."""
        return SampledGaussian(self.noise_multiplier, 1.0, 1)

    def __str__(self) -> str:
        return f"noised histograms of {self.columns} columns of all rows, σ {self.noise_multiplier:g}"

    @staticmethod
    def for_share(columns: int, share: float, epsilon: float, delta: float) -> Survey:
        """The survey that takes about ``share`` of a budget, by the squared distances between worlds.

        A single Gaussian of noise σ would use up the budget; this one has σ/√share, so that unsampled steps
        with the rest of the budget would have noise larger by 1/√(1 − share).

        >>> Survey.for_share(1, 0.25, 1.0, 1e-5).noise_multiplier
        7.4614
        """
        check_share("share", share)
        if math.isinf(epsilon):
            return Survey(columns, 0.0)
        alone = least_scale(lambda scale: [SampledGaussian(scale, 1.0, 1)], epsilon, delta)
        return Survey(columns, rounded_up(alone / math.sqrt(share)))
