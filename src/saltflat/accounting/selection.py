"""What it costs to repeat a private mechanism a random number of times and to show only the best result.

Papernot and Steinke (2022), "Hyperparameter tuning with Rényi differential privacy", Theorems 2 and 6; the idea
is from Liu and Talwar (2019). The Rényi divergences of the mechanism that is repeated come from dp-accounting.
The two theorems are written out here, because dp-accounting's own event repeats one event, and the candidates
of a grid may differ: their curve is the largest of several.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from saltflat.accounting.calibrate import LARGEST_SCALE, rounded_up
from saltflat.accounting.epsilon import UnsupportedError, check_delta, composed_in
from saltflat.accounting.events import SampledGaussian
from saltflat.errors import InputError, check_known, check_positive, is_number

Law = Literal["geometric", "logarithmic", "poisson"]
SHAPES: dict[str, float] = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}
MOST_REPEATS = 10_000
UNITS = 10_000  # scales are searched in ten-thousandths
LEAST = 500  # a scale of 0.05: with less noise than that, nothing is protected


@dataclass(frozen=True)
class Repetitions:
    """How often a mechanism is repeated: ``mean`` times on average, by a ``law`` that is declared.

    ``geometric`` and ``logarithmic`` are truncated negative binomials (shape 1 and 0) and give at least one
    repetition. ``poisson`` may give none. The number that was drawn must stay secret.

    >>> Repetitions(8.0, "geometric").stopping, Repetitions(8.0, "poisson").stopping
    (0.125, None)
    """

    mean: float
    law: Law = "logarithmic"

    def __post_init__(self) -> None:
        if not is_number(self.mean) or not 1 <= self.mean <= MOST_REPEATS:
            expected, cure = f"1 <= repeats <= {MOST_REPEATS}", "Once or twice the size of the grid."
            raise InputError("repeats", self.mean, expected, cure=cure)
        expected = "a law of the number of trials"
        check_known("law", self.law, get_args(Law), expected, problem="is not known")

    @functools.cached_property
    def stopping(self) -> float | None:
        """γ of the truncated negative binomial with this mean; None for Poisson.

        Rounded towards a larger cost: never more than the exact γ.
        """
        if self.law == "poisson":
            return None
        if self.law == "geometric":
            return 1 / self.mean
        low, high = 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (middle, high) if _logarithmic_mean(middle) > self.mean else (low, middle)
        return low if self.mean > 1 else 1.0

    def probability(self, count: int) -> float:
        """How likely ``count`` repetitions are.

        >>> law = Repetitions(4.0, "geometric")
        >>> law.probability(1), law.probability(0)
        (0.25, 0.0)
        """
        gamma = self.stopping
        if gamma is None:
            return math.exp(count * math.log(self.mean) - self.mean - math.lgamma(count + 1))
        if count < 1:
            return 0.0
        if gamma == 1:
            return float(count == 1)
        if self.law == "geometric":
            return float(gamma * (1 - gamma) ** (count - 1))
        return float((1 - gamma) ** count / (count * -math.log(gamma)))

    def __str__(self) -> str:
        return f"{self.law}, {self.mean:g} expected"


def _logarithmic_mean(gamma: float) -> float:
    return math.inf if gamma == 0 else 1.0 if gamma == 1 else (1 / gamma - 1) / -math.log(gamma)


@dataclass(frozen=True)
class Repeated:
    """A mechanism that is repeated and of which the best result is shown.

    ``candidates`` are the releases of each setting that a repetition may take, chosen at random. ``score_noise``
    is the standard deviation of the noise on a count by which results are compared (one unit moves it by at
    most one); None where they are compared on public data. Every unit is either trained on or counted, by a side
    that does not depend on other units: so the larger of the two costs counts, not their sum.
    """

    candidates: tuple[tuple[SampledGaussian, ...], ...]
    repetitions: Repetitions
    score_noise: float | None = None

    def __post_init__(self) -> None:
        if not self.candidates or not all(self.candidates):
            raise InputError("candidates", len(self.candidates), "at least one, each with a release")
        if self.score_noise is not None:
            check_positive("score_noise", self.score_noise)

    @property
    def is_private(self) -> bool:
        """Whether every release has noise."""
        return all(event.is_private for events in self.candidates for event in events)


def repeated_epsilon(what: Repeated, delta: float) -> float:
    """ε of all repetitions and the choice among them, when only the best result is shown.

    Guarantees: an upper bound, for any score that is part of the repeated mechanism's result, provided that
    neither the number of repetitions nor anything of the other results leaves. Add/remove or zero-out one.

    >>> once = (SampledGaussian(6.0, 2048 / 60000, 1172),)
    >>> alone = repeated_epsilon(Repeated((once,), Repetitions(1.0)), 1e-5)
    >>> tuned = repeated_epsilon(Repeated((once,), Repetitions(8.0, "geometric")), 1e-5)
    >>> round(alone, 2), round(tuned, 2)
    (0.79, 1.65)
    """
    check_delta(delta)
    if not what.is_private:
        return math.inf
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    orders, curve = base_curve(what)
    return max(0.0, float(compute_epsilon(orders, selected_curve(orders, curve, what.repetitions), delta)[0]))


def base_curve(what: Repeated) -> tuple[Any, Any]:
    """Orders, and the Rényi divergence of one repetition at each: the largest of all candidates."""
    import numpy as np

    curves = [_curve(events) for events in sorted(set(what.candidates), key=repr)]
    orders = curves[0][0]
    curve = np.max([rdp for _, rdp in curves], axis=0)
    if what.score_noise is not None:
        _, counted = _curve((SampledGaussian(what.score_noise, 1.0, 1),))
        curve = np.maximum(curve, counted)
    return orders, curve


@functools.lru_cache(maxsize=4096)
def _curve(events: tuple[SampledGaussian, ...]) -> tuple[Any, Any]:
    from dp_accounting import rdp

    try:
        account = composed_in(rdp.RdpAccountant(), events)
    except UnsupportedError as error:
        raise InputError(
            "sampling", "truncated-poisson", "sampling='poisson'", problem="is not supported by Rényi accounting",
            cure="Selection is accounted by Rényi divergences only.",
        ) from error  # fmt: skip
    return account.orders, account.rdp


def selected_curve(orders: Any, curve: Any, repetitions: Repetitions) -> Any:
    """The Rényi divergence of the best of many, from that of one.

    Theorem 2 (truncated negative binomial of shape η, mean m, stopping γ), for any order λ̂ >= 1:
    ε'(λ) = ε(λ) + (1 + η) ((1 − 1/λ̂) ε(λ̂) + log(1/γ)/λ̂) + log(m)/(λ − 1).
    Theorem 6 (Poisson of mean m), with δ̂ that of one repetition at ε̂ = log(1 + 1/(λ − 1)):
    ε'(λ) = ε(λ) + m δ̂ + log(m)/(λ − 1).
    """
    import numpy as np
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

    mean, gamma = repetitions.mean, repetitions.stopping
    if gamma is None:
        tails = [compute_delta(orders, curve, math.log1p(1 / (order - 1)))[0] for order in orders]
        return curve + mean * np.array(tails) + math.log(mean) / (orders - 1)
    if mean == 1:
        return curve  # once, always
    through = np.min((1 - 1 / orders) * curve - math.log(gamma) / orders)
    through = min(through, -math.log(gamma))  # order one, where one repetition's divergence has no weight
    found = curve + (1 + SHAPES[repetitions.law]) * through + math.log(mean) / (orders - 1)
    return np.minimum.accumulate(found[::-1])[::-1]  # a divergence never falls as its order grows


def least_repeated_scale(at: Callable[[float], Repeated], target: float, delta: float) -> float:
    """The least scale, to four decimals, for which ``at(scale)`` costs at most ``target``.

    Guarantees: recomputing `repeated_epsilon` at the returned scale never gives more than ``target``.
    """
    check_delta(delta)
    if not is_number(target) or not 0 < target < math.inf:
        raise InputError("epsilon", target, "a finite epsilon > 0", cure="1 to 8 is usual.")

    def cost(units: int) -> float:
        return repeated_epsilon(at(units / UNITS), delta)

    low, high = LEAST, UNITS
    while cost(high) > target:
        low, high = high, high * 2
        if high > LARGEST_SCALE * UNITS:
            raise InputError(
                "epsilon", target, "a budget that some amount of noise can meet",
                problem="cannot be reached by any noise here",
                cure="Raise epsilon, or lower repeats; score_noise counts as well.",
            )  # fmt: skip
    while high - low > 1:
        # towards the geometric mean: costs change by a factor, not by a difference
        middle = min(max(round(math.sqrt(low * high)), low + 1), high - 1)
        low, high = (middle, high) if cost(middle) > target else (low, middle)
    return rounded_up(high / UNITS)
