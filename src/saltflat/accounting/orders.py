"""Rényi divergences at orders that somebody chose, fractional ones included.

dp-accounting sums the series of a fractional order without its signs, a bound that is a little larger. Here the
signs are kept, and what is left out is bounded: after the order, the terms alternate and fall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from saltflat.accounting.epsilon import check_delta, composed_in
from saltflat.accounting.events import SampledGaussian, merged

# How many terms beyond the order are summed: first these, and the second number where those are not enough.
TERMS = 64, 4096
# A sum whose negative terms eat up more than this share of the positive ones has lost its digits.
MOST_CANCELLED = 0.999


def rdp_at_orders(
    events: Sequence[SampledGaussian], delta: float, orders: Sequence[float]
) -> tuple[float, float]:
    """ε by Rényi divergences of these orders, and the best order: what other libraries print for the same orders.

    Guarantees: an upper bound, at every order.

    Reference: Mironov, Talwar & Zhang 2019, section 3.3.

    >>> ε, order = rdp_at_orders([SampledGaussian(1.5, 0.04, 2250)], 1e-5, [2.0, 3.0, 3.5, 4.0, 5.0])
    >>> round(ε, 3), order
    (7.33, 4.0)
    """
    from dp_accounting import rdp

    check_delta(delta)
    live = merged(events)
    if not all(event.is_private for event in live):
        return math.inf, float(orders[0])
    composed = composed_in(rdp.RdpAccountant(orders=list(orders)), live)
    if any(event.cap is not None for event in live):
        found = composed.get_epsilon_and_optimal_order(delta)
        return max(0.0, float(found[0])), float(found[1])
    bounds = [float(each) for each in composed.rdp]
    tighter = [
        bound if float(order).is_integer() else min(bound, _divergence(live, float(order)))
        for order, bound in zip(orders, bounds, strict=True)
    ]
    epsilon, best = rdp.compute_epsilon(list(orders), tighter, delta)
    return max(0.0, float(epsilon)), float(best)


def _divergence(events: Sequence[SampledGaussian], order: float) -> float:
    """The divergence of all events at a fractional order."""
    return math.fsum(
        event.steps * max(0.0, log_moment(event.rate, event.noise_multiplier, order)) / (order - 1)
        for event in events
    )


def log_moment(rate: float, noise: float, order: float) -> float:
    """log E[(p/q)^order] under q, for p a Gaussian sampled at ``rate`` and q without the unit; rounded up.

    The integral is split where both parts of the mixture weigh the same; on either side the binomial series
    converges. Infinite where rounding would have the last word.

    >>> round(log_moment(1.0, 2.0, 3.5), 6)  # α(α − 1) / 2σ²
    1.09375
    """
    import numpy as np
    from scipy.special import gammaln, log_ndtr, logsumexp

    if rate == 1:
        return order * (order - 1) / (2 * noise**2)
    split = noise**2 * math.log(1 / rate - 1) + 0.5
    for more in TERMS:
        i = np.arange(math.ceil(order) + more, dtype=np.float64)
        j = order - i
        coefficient = gammaln(order + 1) - gammaln(i + 1) - gammaln(j + 1)
        sign = np.where(np.maximum(i - 1 - math.floor(order), 0) % 2 == 1, -1.0, 1.0)
        low = coefficient + i * math.log(rate) + j * math.log1p(-rate)
        low += (i * i - i) / (2 * noise**2) + log_ndtr((split - i) / noise)
        high = coefficient + j * math.log(rate) + i * math.log1p(-rate)
        high += (j * j - j) / (2 * noise**2) + log_ndtr((j - split) / noise)
        terms, signs = np.concatenate([low, high]), np.concatenate([sign, sign])
        gained = float(logsumexp(terms[signs > 0]))
        lost = float(logsumexp(terms[signs < 0]))
        left = float(np.logaddexp(low[-1], high[-1]))  # alternating and falling: no more than the last term
        if left < gained - 30:
            break
    if not math.isfinite(gained) or lost - gained > math.log(MOST_CANCELLED):
        return math.inf
    kept = gained + math.log1p(-math.exp(lost - gained))
    return float(np.logaddexp(kept, left))
