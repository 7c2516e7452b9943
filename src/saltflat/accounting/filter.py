"""A privacy filter: a stopping rule for releases whose noise is chosen while they go on.

An accountant that is asked after the fact, "what did these releases cost?", answers for a sequence that was
fixed in advance. When the noise of a release was chosen from the results of earlier ones, its answer can be too
small: the sequence that happened is then itself a function of the data. A filter is asked before each release,
and its promise holds for every way to choose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from saltflat.accounting.epsilon import UnsupportedError, check_delta, renyi_divergence
from saltflat.accounting.events import SampledGaussian
from saltflat.errors import InputError, OverdrawnError, check_positive, is_number

# Orders among which a default is chosen. Whole numbers where they are large: there the series is a finite sum.
ORDERS = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *(float(order) for order in range(11, 65)),
    *(float(64 * 2**octave * (8 + eighth) // 8) for octave in range(9) for eighth in range(1, 9)),
)


def renyi_capacity(epsilon: float, delta: float, order: float) -> float:
    """The largest Rényi divergence of this order that is worth at most (ε, δ).

    R = ε − log(1 − 1/α) + (log δ + log α) / (α − 1). Not above zero: the order is of no use for this budget.

    Reference: Canonne, Kamath and Steinke 2020, Proposition 12.

    >>> round(renyi_capacity(1.0, 1e-5, order=18.0), 4)
    0.5499
    """
    return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)


def best_order(epsilon: float, delta: float, expected: Sequence[SampledGaussian] = ()) -> float:
    """The order at which most releases fit into (ε, δ): of those that are expected, or of plain Gaussian ones.

    >>> best_order(1.0, 1e-5)
    18.0
    """

    def worth(order: float) -> float:
        capacity = renyi_capacity(epsilon, delta, order)
        if not expected or capacity <= 0:
            return capacity / order
        cost = renyi_divergence(expected, order)
        return capacity / cost if cost > 0 else math.inf

    # whole numbers and a few more will do where every order takes a moment to compute
    return max(ORDERS if not expected else [o for o in ORDERS if o <= 512 and 2 * o % 1 == 0], key=worth)


class PrivacyFilter:
    """Lets releases through as long as all of them together stay within (ε, δ), however their noise is chosen.

    ``order`` is the order α of the Rényi divergence in which costs are added up. It is fixed here, once; left
    out, it is the best one for ``expected`` releases, or for plain Gaussian ones. A release may be made only if
    `spend` returned.

    Guarantees: (ε, δ) for adding or removing one unit, for all releases that were let through, even if the
    noise, the sampling rate and the number of each were chosen from the results of all earlier ones. The price
    for this freedom is 7 to 8 % more noise than a plan that is fixed in advance.

    Reference: Feldman and Zrnic 2021, Individual Privacy Accounting via a Rényi Filter.

    >>> budget = PrivacyFilter(epsilon=1.0, delta=1e-5)
    >>> release = SampledGaussian(noise_multiplier=4.0, rate=0.01, steps=100)
    >>> while budget.can_spend(release):
    ...     budget.spend(release)    # then, and only then, release
    >>> f"{budget.share:.1%}"
    '99.2%'
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        order: float | None = None,
        expected: Sequence[SampledGaussian] = (),
    ) -> None:
        check_positive("epsilon", epsilon)
        check_delta(delta)
        if order is not None and (not is_number(order) or not 1 < order < math.inf):
            raise InputError("order", order, "a finite order > 1", cure="Left out, a good one is chosen.")
        self.epsilon, self.delta = float(epsilon), float(delta)
        self.order = float(best_order(epsilon, delta, expected) if order is None else order)
        self.capacity = renyi_capacity(self.epsilon, self.delta, self.order)
        if not self.capacity > 0:
            raise InputError(
                "order" if order is not None else "epsilon", self.order if order is not None else epsilon,
                "an order at which the budget is worth something",
                problem=f"leaves nothing to spend at epsilon={epsilon:g}, delta={delta:g}",
                cure=f"order={best_order(epsilon, delta):g} leaves most.",
            )  # fmt: skip
        self._costs: list[float] = []

    @property
    def spent(self) -> float:
        """The Rényi divergence of everything that was let through."""
        return math.fsum(self._costs)

    @property
    def left(self) -> float:
        """What may still be spent, as a Rényi divergence."""
        return max(0.0, self.capacity - self.spent)

    @property
    def share(self) -> float:
        """The share of the budget that was spent."""
        return self.spent / self.capacity

    def cost(self, *events: SampledGaussian) -> float:
        """The Rényi divergence of some releases together; an event that cannot be bounded so is refused."""
        try:
            return renyi_divergence(events, self.order)
        except UnsupportedError as error:
            raise InputError(
                "event", str(error)[:80], "Poisson sampling, or no sampling",
                problem="is an event that has no bound by Rényi divergences",
                cure="Truncated Poisson sampling cannot pass a filter.",
            ) from error  # fmt: skip

    def can_spend(self, *events: SampledGaussian) -> bool:
        """Whether all of these releases would be let through now. Asking changes nothing."""
        return self._fits(self.cost(*events))

    def spend(self, *events: SampledGaussian) -> None:
        """Let releases through, all or none. Raises `OverdrawnError` *before* anything is spent."""
        cost = self.cost(*events)
        if not self._fits(cost):
            scale = self.noise_scale(*events)
            cure = (
                f"With all noise multiplied by {scale:.4g} it would fit."
                if scale is not None
                else "No noise would make it fit."
            )
            raise OverdrawnError(
                f"This would spend {cost / self.capacity:.2%} of the budget ε = {self.epsilon:g}, "
                f"δ = {self.delta:g}, of which {self.left / self.capacity:.2%} is left.\n  {cure}"
            )
        self._costs.append(cost)

    def noise_scale(self, *events: SampledGaussian) -> float | None:
        """The least factor on the noise of these releases with which they would fit; None if there is none."""
        scaled = 1.0
        while not self._fits(self.cost(*_louder(events, scaled))):
            scaled *= 2
            if scaled > 1e6:
                return None
        low, high = scaled / 2, scaled
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self._fits(self.cost(*_louder(events, middle))) else (middle, high)
        return math.ceil(high * 1000) / 1000

    def _fits(self, cost: float) -> bool:
        return math.fsum((*self._costs, cost)) <= self.capacity

    def __repr__(self) -> str:
        return (
            f"PrivacyFilter(epsilon={self.epsilon:g}, delta={self.delta:g}, order={self.order:g}): "
            f"{self.share:.1%} spent"
        )


def _louder(events: Sequence[SampledGaussian], scale: float) -> list[SampledGaussian]:
    return [
        SampledGaussian(event.noise_multiplier * scale, event.rate, event.steps, event.population, event.cap)
        for event in events
    ]
