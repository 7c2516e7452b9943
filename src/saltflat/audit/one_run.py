"""One run with many canaries (Steinke, Nasr & Jagielski 2023): a lower bound on ε from a single training.

Each canary is in or out by a fair coin. It pulls at a weight of its own, added to the model for the purpose,
much harder than at anything else, so that the clip leaves it the clip norm in that one coordinate. The
attacker sees the model before and after, and guesses for the weights that moved most and least.
"""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.accounting import epsilon
from saltflat.audit.bounds import one_run_bound
from saltflat.audit.findings import Check, LowerBound
from saltflat.audit.worlds import Rows, Subject
from saltflat.engine.batch import LossFunction
from saltflat.engine.calling import call_model
from saltflat.plan import Plan

CONFIDENCE = 0.95
LEVEL = 1e-7
PULL = 1e4


class WithCanaries(nn.Module):
    """A model, and one more weight for each canary."""

    def __init__(self, model: nn.Module, canaries: int, like: Tensor) -> None:
        super().__init__()
        self.model = model
        self.canaries = nn.Embedding(canaries, 1, dtype=like.dtype)
        nn.init.zeros_(self.canaries.weight)

    def forward(self, inputs: Any, which: Tensor) -> tuple[Any, Tensor]:
        return call_model(self.model, inputs), self.canaries(which).flatten()


def _pulling(loss_fn: LossFunction) -> LossFunction:
    def loss(outputs: tuple[Any, Tensor], targets: Tensor) -> Tensor:
        return loss_fn(outputs[0], targets) - PULL * outputs[1]

    return loss


def guesses_of(subject: Subject, plan: Plan, canaries: int) -> tuple[Tensor, Tensor]:
    """How far each canary's weight moved, and whether the canary was in."""
    like = next(iter(subject.parameters.values()))
    model = WithCanaries(copy.deepcopy(subject.model), canaries, like)
    each = subject.rows_a_unit
    numbers = torch.arange(canaries).repeat_interleave(each)
    rows = subject.units(canaries)
    there = torch.rand(canaries, generator=_fresh()) < 0.5
    inputs = (rows.inputs, numbers)
    world = Rows(inputs, rows.targets, rows.factors).take(there.repeat_interleave(each))
    larger = Subject(model, world, subject.plan, _pulling(subject.loss_fn), subject.randomness)
    sizes, place = list(larger.sizes.values()), list(larger.sizes).index("canaries.weight")
    trace = larger.run(world, plan, keep=lambda release: release.split(sizes)[place].clone())
    return -torch.stack(trace.releases).sum(0), there


def best_number(most: int, delta: float) -> int:
    """How many canaries can show the largest ε: with a large δ, more of them show less.

    >>> best_number(1000, 1e-5), best_number(1000, 1e-3)
    (1000, 300)
    """
    numbers = [n for n in (50, 100, 200, 300, 500, 1000) if n <= most]
    return max(numbers, key=lambda n: one_run_bound(n, n, n, delta, 1 - CONFIDENCE))


def _fresh() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator


def one_run_check(subject: Subject, canaries: int, steps: int, seconds: float) -> tuple[Check, LowerBound]:
    """Train once on canaries; the bound beside what is certified for as many steps."""
    plan, canaries = subject.plan, best_number(canaries, subject.plan.budget.delta)
    short = _shortened(subject, plan, 3)
    started = time.perf_counter()
    guesses_of(subject, short, canaries)
    pace = (time.perf_counter() - started) / 3
    steps = max(3, min(plan.steps, steps, int(seconds / pace)))
    moved, there = guesses_of(subject, _shortened(subject, plan, steps), canaries)
    certified, delta = epsilon(plan.events(steps), plan.budget.delta), plan.budget.delta
    # How many to guess for is fixed in advance: the few clearest, and all.
    order = moved.argsort()
    best, surely, right_of_all = 0.0, 0.0, 0
    choices = [canaries // 10, canaries // 2, canaries]
    for count in choices:
        half = count // 2
        right = int((~there[order[:half]]).sum() + there[order[len(order) - half :]].sum())
        best = max(best, one_run_bound(canaries, 2 * half, right, delta, (1 - CONFIDENCE) / len(choices)))
        surely = max(surely, one_run_bound(canaries, 2 * half, right, delta, LEVEL / len(choices)))
        right_of_all = right
    ceiling = one_run_bound(canaries, canaries, canaries, delta, (1 - CONFIDENCE) / len(choices))
    faults = []
    if surely > certified:
        faults.append(
            f"{right_of_all} of {canaries} guesses were right: ε >= {surely:.3g}, and {certified:.3g} is certified"
        )
    if not math.isfinite(float(moved.sum())):
        faults.append("a canary made the release infinite or NaN")
    tried = f"one training of {steps} steps with {canaries} canaries, each in or out by a fair coin"
    catch = "whatever lets a training tell who was in it, as far as the ceiling reaches"
    bound = LowerBound(best, certified, ceiling, canaries, CONFIDENCE)
    numbers = bound.to_dict() | {"right": right_of_all, "steps": steps}
    return Check("one run", tried, catch, tuple(faults), numbers), bound


def _shortened(subject: Subject, plan: Plan, steps: int) -> Plan:
    """The first steps of the plan, without what is post-processing."""
    phases, left = [], steps
    for phase in plan.phases:
        count = min(phase.steps, left)
        left -= count
        if count:
            phases.append(subject.of_phase(phase, count).phases[0])
    return subject.of_phase(plan.phases[0], 1).changed(phases=tuple(phases))
