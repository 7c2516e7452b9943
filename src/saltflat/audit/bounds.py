"""Sound lower bounds on ε from guesses, and the exact figure of a Gaussian, by a way of its own."""

from __future__ import annotations

import math

from scipy import optimize, stats

LARGEST = 100.0


def share_at_least(hits: int, trials: int, level: float) -> float:
    """A lower confidence bound on a probability (Clopper & Pearson 1934).

    >>> round(share_at_least(1000, 1000, 0.05), 4)
    0.997
    """
    return 0.0 if hits == 0 else float(stats.beta.ppf(level, hits, trials - hits + 1))


def share_at_most(hits: int, trials: int, level: float) -> float:
    """An upper confidence bound on a probability (Clopper & Pearson 1934)."""
    return 1.0 if hits == trials else float(stats.beta.ppf(1 - level, hits + 1, trials - hits))


def improbable(squares: float, count: int, level: float) -> bool:
    """Whether a sum of ``count`` squares of standard normals is out of what chance gives, at this level.

    >>> improbable(100.0, 100, 1e-8), improbable(10.0, 100, 1e-8)
    (False, True)
    """
    low, high = stats.chi2.ppf([level / 2, 1 - level / 2], count)
    return not low < squares < high


def two_worlds_bound(hits: int, false_alarms: int, trials: int, delta: float, level: float) -> float:
    """ε that must hold if an event happened ``hits`` times with the canary and ``false_alarms`` times without.

    Both shares are bounded at half the level, so the result is at most the true ε with confidence 1 − level
    (Jagielski, Ullman & Oprea 2020). The event must be fixed before the trials are looked at.

    >>> two_worlds_bound(50, 50, 100, 1e-5, 0.05)
    0.0
    """
    likely = share_at_least(hits, trials, level / 2) - delta
    unlikely = share_at_most(false_alarms, trials, level / 2)
    return max(0.0, math.log(likely / unlikely)) if likely > 0 else 0.0


def chance_of_guesses(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """A bound on the chance of so many right guesses under (ε, δ): Theorem 5.2 of Steinke et al. 2023.

    Each canary was in or out by a fair coin; some or all were guessed, the rest left open.
    """
    share = 1 / (1 + math.exp(-epsilon))
    chance = float(stats.binom.sf(right - 1, guesses, share))
    worst, reached = 0.0, 0.0
    for i, probability in enumerate(stats.binom.pmf(range(right - 1, -1, -1), guesses, share), start=1):
        reached += float(probability)
        worst = max(worst, reached / i)
    return min(1.0, chance + 2 * canaries * delta * worst)


def one_run_bound(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest ε that so many right guesses rule out, with confidence 1 − level (Steinke et al. 2023).

    >>> one_run_bound(100, 100, 50, 1e-5, 0.05)
    0.0
    >>> one_run_bound(100, 100, 100, 1e-5, 0.05) > 3
    True
    """
    if right == 0 or chance_of_guesses(canaries, guesses, right, 0.0, delta) > level:
        return 0.0
    low, high = 0.0, LARGEST
    for _ in range(60):
        middle = (low + high) / 2
        if chance_of_guesses(canaries, guesses, right, middle, delta) <= level:
            low = middle
        else:
            high = middle
    return low


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """ε of one Gaussian release at rate one, from its formula (Balle & Wang 2018) and not from an accountant.

    >>> round(gaussian_epsilon(1.0, 1e-5), 2)
    4.38
    """
    mu = 1 / noise_multiplier

    def excess(epsilon: float) -> float:
        first = stats.norm.cdf(mu / 2 - epsilon / mu)
        second = math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
        return float(first - second) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-9))
