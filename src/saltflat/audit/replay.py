"""Replay: the same step with and without one unit, from the same weights and random numbers. No statistics.

Noise is the same in both worlds and cancels, so the difference of the releases is what the unit contributed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from saltflat.audit.findings import Check
from saltflat.audit.worlds import Rows, Subject
from saltflat.data.source import tensors_in
from saltflat.engine.calling import call_model
from saltflat.plan import PerLayerClipping, Phase

SEED = 20_231
COMPANY = 6  # units beside the one that is watched
HUGE = 1e6


class Tied(nn.Module):
    """A small model in which weights are tied, re-used and left alone: kinds of use that are easy to get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = nn.Linear(6, 6), nn.Parameter(torch.ones(6))
        self.body_again = nn.Linear(6, 6)
        self.body_again.weight = self.body.weight
        self.idle = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        once = torch.tanh(self.body(inputs)) * self.scale
        return self.body(torch.tanh(self.body_again(once)))


def strangers(subject: Subject) -> dict[str, Rows]:
    """Units of the kinds that have broken other libraries."""
    unit = subject.units(1)
    ones = {
        "an ordinary unit": unit,
        "a unit with a huge loss": unit.scaled(HUGE),
        "a unit that pulls hard against the others": unit.scaled(-HUGE),
        "a unit with a loss that is not a number": unit.scaled(math.nan),
        "a unit with an infinite loss": unit.scaled(math.inf),
        "a blank unit": unit.scaled(0.0),
    }
    if any(t.is_floating_point() for t in tensors_in(unit.inputs)):
        values = {"huge": 1e12, "zero": 0.0, "infinite": math.inf, "not-a-number": math.nan}
        ones |= {f"a unit with {name} inputs": unit.filled(value) for name, value in values.items()}
    return ones


class Replay:
    """One step of one phase with everyone in the batch, again and again."""

    def __init__(self, subject: Subject, phase: Phase) -> None:
        self.subject, self.phase = subject, phase
        self.plan = subject.of_phase(phase, 1, units=COMPANY + 2)
        self.divisor = self.plan.sampling.batch_size
        weight = next(iter(subject.parameters.values()))
        self.rounding = 2.0 ** (-22 if weight.dtype == torch.float32 else -50)

    def released(self, rows: Rows, micro_batch: int | None = None) -> Tensor:
        """The noised sum of these rows: the release times the divisor."""
        trace = self.subject.run(rows, self.plan, seed=SEED, micro_batch=micro_batch)
        return trace.releases[0] * self.divisor


def replay(subject: Subject, phase: Phase, where: str) -> list[str]:
    """The faults of one phase; empty if there are none."""
    world, faults = Replay(subject, phase), []
    clip = phase.clip_norm
    crowds = {
        "nobody": subject.units(1, 0.0),  # a blank: data must have at least one row
        "ordinary units": subject.units(COMPANY),
        "units that are all clipped": subject.units(COMPANY, HUGE),
    }
    released = {name: world.released(rows) for name, rows in crowds.items()}
    allowed = clip * (1 + 1e-5) + 4 * world.rounding * max(float(r.norm()) for r in released.values())
    alone: dict[str, Tensor] = {}
    for kind, unit in strangers(subject).items():
        for crowd, others in crowds.items():
            after = world.released(others.joined(unit))
            if not bool(after.isfinite().all()):
                faults.append(f"{kind} beside {crowd} makes the release infinite or NaN{where}")
                continue
            added = after - released[crowd]
            if float(added.norm()) > allowed:
                faults.append(
                    f"{kind} beside {crowd} moves the sum by {float(added.norm()) / clip:.4g} "
                    f"clip norms instead of at most 1{where}"
                )
            same = alone.setdefault(kind, added)
            if float((same - added).norm()) > 1e-3 * clip + allowed - clip:
                faults.append(f"{kind} adds something else beside {crowd} than alone{where}")
    if not isinstance(subject.plan.clipping, PerLayerClipping):  # idle layers leave their share unused
        faults += _longest(alone, clip, allowed, where)
    faults += _indifferent(world, crowds["ordinary units"], released["ordinary units"], allowed - clip, where)
    return faults


def _longest(alone: dict[str, Tensor], clip: float, allowed: float, where: str) -> list[str]:
    """The check bites only if a unit that should be clipped does reach the clip norm."""
    reached = float(alone["a unit with a huge loss"].norm()) if "a unit with a huge loss" in alone else 0.0
    if reached < 0.9 * clip - (allowed - clip):
        return [f"a unit with a huge loss reaches {reached / clip:.3g} clip norms only{where}"]
    return []


def _indifferent(world: Replay, rows: Rows, before: Tensor, rounding: float, where: str) -> list[str]:
    """Micro-batches and rows that contribute nothing must change nothing."""
    clip, faults = world.phase.clip_norm, []
    tolerance = 1e-4 * clip + rounding
    parted = [world.released(rows, micro_batch=size) for size in (1, 4)]
    if max(float((other - before).norm()) for other in parted) > tolerance:
        faults.append(f"the release depends on the size of micro-batches{where}")
    many = rows.joined(world.subject.units(40, 0.0))
    if float((world.released(many) - before).norm()) > tolerance:
        faults.append(f"rows that contribute nothing change the release: it depends on their number{where}")
    sampled = world.subject.of_phase(world.phase, 1)
    for seed in range(3):
        one, two = (world.subject.run(r, sampled, seed=seed).releases[0] for r in (rows, many))
        if float((one - two).norm()) * sampled.sampling.batch_size > tolerance * max(
            1.0, sampled.sampling.batch_size
        ):
            faults.append(f"who joins a batch depends on the number of rows{where}")
            break
    return faults


def draws_by_itself(subject: Subject) -> bool:
    """Whether the model draws random numbers (dropout): then rows cannot be replayed in company."""
    before = torch.get_rng_state()
    with torch.no_grad():
        call_model(subject.model.train(), subject.sample.take(slice(0, 2)).inputs)
    return not torch.equal(before, torch.get_rng_state())


def tied_subject(subject: Subject) -> Subject:
    """The small model with tied weights, under the same plan."""
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Tied()
    inputs = torch.randn(64, 6, generator=generator)
    sample = Rows.of(inputs, torch.randint(0, 6, (64,), generator=generator))
    loss = nn.CrossEntropyLoss(reduction="none")
    return subject.with_model(model, sample, loss)


def replay_check(subject: Subject) -> Check:
    """Replay every phase on the model under audit, and the first one on a model with tied weights."""
    faults: list[str] = []
    several = len(subject.plan.phases) > 1
    random = draws_by_itself(subject)
    for number, phase in enumerate(subject.plan.phases, start=1):
        if not random:
            faults += replay(subject, phase, f" (phase {number})" if several else "")
    faults += replay(tied_subject(subject), subject.plan.phases[0], " (tied weights)")
    kinds = len(strangers(subject))
    tried = (
        f"one step with and without one unit of {kinds} kinds (huge, infinite, NaN, blank, …), alone and beside "
        "others, with the same noise, in micro-batches of three sizes"
    )
    if random:
        tried = "the model draws random numbers, so it was tried with a small model in its place: " + tried
    catch = (
        "a clip that is missing, too long, per tensor or after the sum; a divisor or rate that follows the data; "
        "NaN that spreads; noise per micro-batch; tied weights counted twice"
    )
    return Check("replay sensitivity", tried, catch, tuple(dict.fromkeys(faults)), {"kinds": kinds})
