"""Two worlds: one release with a canary and without it, many times; how well can they be told apart?

The canary is clipped to exactly the clip norm, and the attacker knows its direction, the weights and all other
units: the strongest adversary against one release. Everyone joins the batch, so that the release is one
Gaussian whose ε is known from a formula.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saltflat.audit.bounds import gaussian_epsilon, improbable, two_worlds_bound
from saltflat.audit.findings import Check, LowerBound
from saltflat.audit.replay import HUGE, draws_by_itself, tied_subject
from saltflat.audit.worlds import Subject
from saltflat.plan import Phase

LEVEL = 1e-7
CONFIDENCE = 0.95
# Where the line between the worlds is drawn, in deviations from the middle: fixed before any trial.
LINES = (-2.0, -1.0, 0.0, 1.0, 2.0)
UNITS = 3


def along_the_canary(subject: Subject, phase: Phase, trials: int) -> tuple[Tensor, Tensor]:
    """The releases of both worlds along the canary's direction, in clip norms: 0 + noise, and 1 + noise."""
    others, canary = subject.units(UNITS), subject.units(UNITS + 1).take(slice(-subject.rows_a_unit, None))
    worlds = {False: others.joined(canary.scaled(0.0)), True: others.joined(canary.scaled(HUGE))}
    once = subject.of_phase(phase, 1, units=UNITS + 1)
    still = [subject.run(worlds[there], once, seed=7).releases[0] for there in (False, True)]
    direction = still[1] - still[0]  # the same noise in both
    direction /= max(float(direction.norm()), 1e-300)
    # without noise: what the attacker computes by itself
    quiet = once.changed(phases=tuple(Phase(p.steps, p.clip_norm, 0.0) for p in once.phases))
    base = float(subject.run(worlds[False], quiet, seed=7).releases[0] @ direction)
    plan = subject.of_phase(phase, trials, units=UNITS + 1)
    found = []
    for there in (False, True):
        trace = subject.run(worlds[there], plan, keep=lambda release: release @ direction)
        clips = torch.tensor(trace.clip_norms, dtype=torch.float64)
        along = torch.stack(trace.releases) - base
        found.append(along * (UNITS + 1) / clips[: len(along)])
    return found[0], found[1]


def strongest_bound(without: Tensor, with_it: Tensor, sigma: float, delta: float, level: float) -> float:
    """The best lower bound on ε over fixed lines and both directions, the level shared among them.

    >>> strongest_bound(torch.zeros(1000), torch.ones(1000), 1.0, 1e-5, 0.05) > 4
    True
    """
    best, trials = 0.0, len(without)
    for line in LINES:
        at = 0.5 + line * sigma
        above, below = int((with_it > at).sum()), int((without > at).sum())
        share = level / (2 * len(LINES))
        best = max(
            best,
            two_worlds_bound(above, below, trials, delta, share),
            two_worlds_bound(trials - below, trials - above, trials, delta, share),
        )
    return best


def two_worlds_check(subject: Subject, trials: int) -> tuple[Check, LowerBound]:
    """The bound for the phase with the least noise, and what is odd about the two worlds."""
    delta, faults = subject.plan.budget.delta, []
    if draws_by_itself(subject):
        subject = tied_subject(subject)  # the canary's direction would change from trial to trial
    phase = min(subject.plan.phases, key=lambda p: p.sigma)
    without, with_it = along_the_canary(subject, phase, trials)
    certified = gaussian_epsilon(phase.sigma, delta)
    lower = strongest_bound(without, with_it, phase.sigma, delta, 1 - CONFIDENCE)
    if strongest_bound(without, with_it, phase.sigma, delta, LEVEL) > certified:
        faults.append(f"the two worlds differ by ε >= {lower:.3g}, and {certified:.3g} is certified")
    shift = float(with_it.mean() - without.mean())
    if shift - 1 > 6 * phase.sigma * math.sqrt(2 / trials) + 1e-3:
        faults.append(f"the canary moves the release by {shift:.3f} clip norms instead of at most 1")
    for world, values in (("without", without), ("with", with_it)):
        squares = float(((values - values.mean()) / phase.sigma).square().sum())
        if improbable(squares, trials - 1, LEVEL / 2):
            found = math.sqrt(squares / trials)
            faults.append(
                f"{world} the canary, the noise along it has {found:.3f} times its declared deviation"
            )
    full = torch.ones(trials)
    ceiling = strongest_bound(full * -1e9, full * 1e9, phase.sigma, delta, 1 - CONFIDENCE)
    power = 8.5 / math.sqrt(2 * trials)  # 3 errors beyond the threshold: missed once in a thousand
    tried = f"{trials} releases a world along a canary of exactly the clip norm, with everyone in the batch"
    catch = (
        f"noise that is {power:.0%} too small or too large in this direction, a canary that counts for more"
    )
    bound = LowerBound(lower, certified, ceiling, 2 * trials, CONFIDENCE)
    return Check("two worlds", tried, catch, tuple(faults), bound.to_dict()), bound
