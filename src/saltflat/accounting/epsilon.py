"""From events to ε: privacy loss distributions first, Rényi divergences as a second opinion.

Every privacy number comes from Google's dp-accounting; this file chooses the accountant and its grid. `grid` gives it
the privacy loss of a sampled Gaussian faster than it would find it itself.
"""

from __future__ import annotations

import functools
import logging
import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from saltflat.accounting.events import SampledGaussian, merged
from saltflat.accounting.grid import sampled_gaussian
from saltflat.errors import InputError, check_share

Accountant = Literal["pld", "rdp"]
Relation = Literal["add-remove", "zero-out", "replace-one"]

# Grids of the discretised privacy loss. Both round towards a larger ε; the coarse one is for searching.
COARSE = 1e-3
FINE = 1e-4
# How many points the privacy loss of one release may have. Little noise makes it long: at σ = 0.05 on the
# fine grid, composing it would take minutes and gigabytes.
POINTS = 110_000
# How many points the privacy loss of all releases together may have: some hundred megabytes, some seconds.
TOTAL_POINTS = 4_000_000
# Beyond this grid, ε is in the thousands or millions. A formula then does as well as a distribution.
WIDEST = 0.05

# Where the formula of one Gaussian has digits to spare, it is taken instead of a grid.
LEAST_EXACT_DELTA = 1e-10
MOST_EXACT_EPSILON = 20.0


def check_delta(delta: float) -> None:
    """Refuse a δ that is not a probability strictly between 0 and 1."""
    check_share("delta", delta, cure="Well below 1/population; 1e-5 is usual.")


def epsilon(
    events: Sequence[SampledGaussian],
    delta: float,
    *,
    accountant: Accountant = "pld",
    relation: Relation = "add-remove",
    grid: float = FINE,
) -> float:
    """The ε at ``delta`` of all events composed jointly.

    Guarantees: an upper bound (the grid rounds up, and is widened where noise is little). Zero-out one has
    the same ε as add/remove one: its dominating pair is the same. Infinite when a release has no noise.

    References: Koskela et al. 2020, Doroshenko et al. 2022 (PLD); Mironov 2017 (RDP).

    >>> one = SampledGaussian(noise_multiplier=4.4627, rate=2048 / 60000, steps=1172)
    >>> round(epsilon([one], 1e-5), 3)
    1.0
    """
    check_delta(delta)
    live = merged(events)
    if not live:
        return 0.0
    if not all(event.is_private for event in live):
        return math.inf
    if accountant == "pld" and used_grid(live, grid) > WIDEST:
        return _unsampled_bound(live, delta, relation)
    return _epsilon(live, delta, accountant, relation, grid)


@functools.lru_cache(maxsize=4096)  # a pure function of values, asked again by tables, runs and certificates
def _epsilon(
    events: tuple[SampledGaussian, ...], delta: float, accountant: Accountant, relation: Relation, grid: float
) -> float:
    if accountant == "pld" and (exact := _one_gaussian(events, delta, relation)) is not None:
        return exact
    return max(0.0, float(_composed(events, accountant, relation, grid).get_epsilon(delta)))


def _one_gaussian(events: Sequence[SampledGaussian], delta: float, relation: Relation) -> float | None:
    """ε of a single Gaussian without sampling, which needs no grid; None for anything else.

    dp-accounting knows δ(ε) of a Gaussian exactly (Balle & Wang 2018, theorem 8). The least ε is found by bisection
    and rounded up. Plans that take all rows in every step are such a release, and calibrating one asks
    for its ε dozens of times.
    """
    if len(events) != 1 or events[0].rate != 1 or events[0].cap is not None or delta < LEAST_EXACT_DELTA:
        return None
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    sensitivity = 2.0 if relation == "replace-one" else 1.0
    deviation = events[0].noise_multiplier / math.sqrt(events[0].steps)
    loss = GaussianPrivacyLoss(deviation, sensitivity=sensitivity)
    low, high = 0.0, _unsampled_bound(events, delta, relation)
    if not high < MOST_EXACT_EPSILON:  # e^ε times a tail: beyond this its digits are lost
        return None
    if loss.get_delta_for_epsilon(0.0) <= delta:
        return 0.0
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if loss.get_delta_for_epsilon(middle) > delta else (low, middle)
    return high * (1 + 1e-9)


def delta_at(events: Sequence[SampledGaussian], target_epsilon: float, *, grid: float = FINE) -> float:
    """The δ at a given ε, by PLD, add/remove one."""
    live = merged(events)
    if not live:
        return 0.0
    if not all(event.is_private for event in live) or used_grid(live, grid) > WIDEST:
        return 1.0
    return float(_composed(live, "pld", "add-remove", grid).get_delta(target_epsilon))


def replace_one_epsilon(events: Sequence[SampledGaussian], delta: float) -> float | None:
    """The ε of the same releases when one row is replaced by another; None where it is not supported."""
    try:
        return epsilon(events, delta, relation="replace-one", grid=COARSE)
    except UnsupportedError:
        return None


def rdp_epsilon(events: Sequence[SampledGaussian], delta: float) -> float | None:
    """The looser bound by Rényi divergences; None where it is not supported."""
    try:
        return epsilon(events, delta, accountant="rdp")
    except UnsupportedError:
        return None


def used_grid(events: Sequence[SampledGaussian], grid: float = FINE) -> float:
    """The grid on which these events are composed: the one asked for, or wider where noise is little.

    >>> used_grid([SampledGaussian(1.0, 0.1, 100)])
    0.0001
    """
    live = [event for event in merged(events) if event.is_private]
    least = min((event.noise_multiplier for event in live), default=1.0)
    if least < 1e-100:
        return math.inf
    reach = 0.5 / least**2 + 10 / least  # the privacy loss of one release, ten standard deviations out
    spread = 20 * math.sqrt(math.fsum(event.steps * _variance(event) for event in live))
    return max(grid, reach / POINTS, (reach + spread) / TOTAL_POINTS)


def _variance(event: SampledGaussian) -> float:
    """About the variance of the privacy loss of one release. It chooses grids; nothing else rests on it."""
    whole = event.noise_multiplier**-2
    return whole if whole > 30 else min(whole, event.rate**2 * math.expm1(whole))


def _unsampled_bound(events: Sequence[SampledGaussian], delta: float, relation: Relation) -> float:
    """ε as if every batch held all rows, from the formula of one Gaussian: an upper bound, near where ε is huge.

    One Gaussian with mean shift μ has δ(ε) <= Φ(μ/2 − ε/μ) (Balle & Wang 2018, theorem 5).
    """
    # under a cap one more row may push another out, which moves the sum by two clip norms
    step = 2.0 if relation == "replace-one" or any(event.cap is not None for event in events) else 1.0
    parts = [math.sqrt(event.steps) / event.noise_multiplier for event in events]
    shift = step * math.hypot(*parts)
    # the normal quantile of a δ below the least it can take is bounded by sqrt(2 log 1/δ)
    beyond = -statistics.NormalDist().inv_cdf(delta) if delta > 1e-300 else math.sqrt(-2 * math.log(delta))
    return shift * (shift / 2 + max(0.0, beyond))


class UnsupportedError(Exception):
    """An accountant does not know this event under this relation."""


def _composed(
    events: Sequence[SampledGaussian], accountant: Accountant, relation: Relation, grid: float
) -> Any:
    import dp_accounting as dpa
    from dp_accounting import pld, rdp

    neighbours = dpa.NeighboringRelation
    chosen = neighbours.REPLACE_ONE if relation == "replace-one" else neighbours.ADD_OR_REMOVE_ONE
    if accountant == "rdp":
        return composed_in(rdp.RdpAccountant(neighboring_relation=chosen), events)
    if accountant != "pld":
        raise InputError("accountant", accountant, "'pld' or 'rdp'")
    step = used_grid(events, grid)
    composed = pld.PLDAccountant(chosen, value_discretization_interval=step)
    for event in events:
        if relation == "replace-one" or event.cap is not None or event.rate == 1:
            composed_in(composed, [event])
            continue
        try:
            once = sampled_gaussian(event.noise_multiplier, event.rate, step)
        except ValueError as error:
            raise UnsupportedError(str(error)) from error
        composed._pld = composed._pld.compose(once.self_compose(event.steps))
    return composed


def renyi_divergence(events: Sequence[SampledGaussian], order: float) -> float:
    """The Rényi divergence of this order of all events together, add/remove one: costs simply add up.

    Infinite where a release has no noise, or where the series of a fractional order does not converge.

    Reference: Mironov 2017; Mironov, Talwar and Zhang 2019 for Poisson sampling.

    >>> renyi_divergence([SampledGaussian(noise_multiplier=2.0, rate=1.0, steps=3)], order=8.0)  # α / 2σ² each
    3.0
    """
    from dp_accounting import rdp

    live = [event for event in events if event.steps > 0]
    if not all(event.is_private for event in live):
        return math.inf
    found = float(composed_in(rdp.RdpAccountant(orders=[order]), live)._rdp[0])
    return found if found == found else math.inf


def composed_in(accountant: Any, events: Sequence[SampledGaussian]) -> Any:
    """Compose all events in one of dp-accounting's accountants."""
    import dp_accounting as dpa

    # RDP announces each order at which its series does not converge, and leaves it out: still a bound.
    logger, level = logging.getLogger("absl"), logging.getLogger("absl").level
    logger.setLevel(logging.ERROR)
    try:
        for event in events:
            accountant.compose(event.single(), event.steps)
    except (dpa.UnsupportedEventError, NotImplementedError, ValueError) as error:
        raise UnsupportedError(str(error)) from error
    finally:
        logger.setLevel(level)
    return accountant
