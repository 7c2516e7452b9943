"""The law of the batches: every unit on its own, at the declared rate, judged by the rows that reach the loss."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from scipy import stats
from torch import Tensor, nn

from saltflat.audit.bounds import improbable
from saltflat.audit.findings import Check
from saltflat.audit.worlds import Rows, Subject
from saltflat.plan import Sampling, TruncatedPoisson

LEVEL = 1e-8
STEPS = 200


def joins(subject: Subject, units: int, steps: int) -> tuple[Tensor, bool]:
    """Who joined which step, a row a step; and whether anyone joined a step twice."""
    each = 1 if subject.plan.federation is None else subject.rows_a_unit
    rows = units * each
    sample = Rows.of(torch.ones(rows, 1))
    small = subject.with_model(nn.Linear(1, 1, bias=False), sample, lambda outputs, _: outputs.sum(1))
    if small.plan.federation is None:
        small.plan = small.plan.changed(budget=replace(small.plan.budget, unit="example"))  # a row a unit
    phase = small.plan.phases[0]
    found = torch.zeros(steps, rows, dtype=torch.int16)
    passes = len(phase.query_noises) * small.plan.multiplicity.views
    trace = small.run(sample, small.of_phase(phase, steps))
    assert len(trace.releases) == steps
    joined, twice = _by_step(trace.rows, trace.marks, found, passes)
    return joined[:, ::each], twice


def _by_step(rows: list[Tensor], marks: list[int], found: Tensor, passes: int) -> tuple[Tensor, bool]:
    start = 0
    for step, stop in enumerate(marks):
        for part in rows[start:stop]:
            found[step].index_add_(0, part, torch.ones(len(part), dtype=torch.int16))
        start = stop
    return found > 0, bool((found > passes).any())


def sampler_faults(joined: Tensor, sampling: Sampling) -> list[str]:
    """What is wrong with batches, a row a step and a column a unit.

    >>> from saltflat.plan import Poisson
    >>> sampler_faults(torch.rand(200, 1000) < 0.1, Poisson(1000, 100))
    []
    """
    steps, units = joined.shape
    rate, faults = sampling.rate, []
    sizes = joined.sum(1)
    if isinstance(sampling, TruncatedPoisson) and int(sizes.max()) > sampling.cap:
        faults.append(f"a batch has {int(sizes.max())} units where {sampling.cap} are allowed")
    mean, variance = _moments(units, sampling)
    if rate == 1:
        return faults if bool(joined.all()) else [*faults, "units are left out at rate one"]
    error = math.sqrt(variance / steps)
    if abs(float(sizes.double().mean()) - mean) > 6.2 * error:
        faults.append(f"batches have {float(sizes.double().mean()):.1f} units where {mean:.1f} were declared")
    elif variance > 4 and improbable(float((sizes - mean).square().sum()) / variance, steps, LEVEL):
        faults.append("the sizes of batches do not vary as those of independent units do")
    rate = mean / units
    seen = joined.sum(0)
    low, high = stats.binom.ppf([LEVEL / 2 / units, 1 - LEVEL / 2 / units], steps, rate)
    unequal = int(((seen < low) | (seen > high)).sum())
    if unequal and not faults:
        faults.append(f"{unequal} units join more or less often than the others")
    # Overlaps of a batch with the next ones, and of units with their neighbours, are those of chance.
    for lag in (1, 2, max(1, round(1 / rate)), max(1, round(1 / rate) - 1)):
        if lag < steps:
            words = f"batches {lag} steps apart depend on one another"
            _judge(joined[lag:] & joined[:-lag], rate**2, faults, words)
    together = (variance + mean**2 - mean) / (units * (units - 1))
    for lag in (1, 2, units // 2):
        if 0 < lag < units:
            _judge(
                joined[:, lag:] & joined[:, :-lag], together, faults, "units that lie together join together"
            )
    window = max(1, round(1 / rate))
    if window > 1 and steps >= window:
        once = (joined[: steps // window * window].view(-1, window, units).sum(1) == 1).double()
        chance = window * rate * (1 - rate) ** (window - 1)
        if abs(float(once.mean()) - chance) > 6.5 * math.sqrt(chance * (1 - chance) / once.numel()) + 1e-3:
            share = float(once.mean())
            faults.append(
                f"{share:.1%} of the units are seen exactly once in 1/rate steps, {chance:.1%} are due"
            )
    return list(dict.fromkeys(faults))


def _judge(both: Tensor, chance: float, faults: list[str], words: str) -> None:
    """Whether pairs join together as often as by chance; neighbouring pairs share a unit, which widens the spread."""
    count = both.numel()
    spread = math.sqrt(count * chance * (1 - chance) * (1 + 4 * math.sqrt(chance)))
    if abs(int(both.sum()) - count * chance) > 8 * spread + 1 and not faults:
        faults.append(words)


def _moments(units: int, sampling: Sampling) -> tuple[float, float]:
    """Mean and variance of a batch's size, with the cap if there is one."""
    mean, variance = units * sampling.rate, units * sampling.rate * (1 - sampling.rate)
    if not isinstance(sampling, TruncatedPoisson):
        return mean, variance
    sizes = torch.arange(units + 1)
    chances = torch.tensor(stats.binom.pmf(sizes.numpy(), units, sampling.rate))
    capped = sizes.clamp(max=sampling.cap).double()
    mean = float((chances * capped).sum())
    return mean, float((chances * (capped - mean) ** 2).sum())


def sampler_check(subject: Subject, rows: int = 200_000) -> Check:
    """Real steps of a tiny model under the plan's own sampling."""
    sampling = subject.plan.sampling
    if subject.randomness == "exact":
        rows = min(rows, 3000)  # every unit has a pass of its own
    elif subject.plan.federation is not None:
        rows = min(rows, 20_000)
    steps = STEPS if rows >= 50_000 else 40
    units = max(2, min(sampling.population, math.ceil(rows / steps / sampling.rate)))
    joined, twice = joins(subject, units, steps)
    faults = sampler_faults(joined, sampling)
    if twice:
        faults.append("a unit joins one batch more than once")
    tried = (
        f"{steps} batches of {units:,} units at rate {sampling.rate:.4g}, by the rows that reached the loss"
    )
    catch = (
        "a shuffle, batches of fixed size, a wrong rate, units that are always or never taken, "
        "batches that are used again, units that join together"
    )
    return Check("sampler law", tried, catch, tuple(faults), {"steps": steps, "units": units})
