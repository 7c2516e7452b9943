"""The sections `step` and `methods`: whole private steps, as training takes them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import torch

from saltflat import plans
from saltflat.bench.taking_turns import Pairs, in_turns
from saltflat.bench.timing import Step, beside, median_interval, one_round, paired
from saltflat.bench.workload import RepeatedRows, Workload
from saltflat.engine import clipped_sum
from saltflat.engine.batch import LossFunction
from saltflat.mechanism.sampling import draw
from saltflat.plan import Plan
from saltflat.record.ledger import Ledger
from saltflat.training.build import build_mechanism
from saltflat.training.step import Loop, build_optimizer

# A plan needs an end, and a noise: neither has anything to do with the time of a step. At a rate of 1 the
# account of little noise over many steps is long, so the noise is large and the steps are few.
STEPS, NOISE = 1000, 10.0
HELD_ROWS = 4096
NARROW = 0.03  # of an interval that is to tell whether a method costs 2 %
EMPTY_ROUNDS = 15  # of steps on no rows, which take milliseconds


def plan_of(method: str, population: int, batch_size: int) -> Plan:
    """A plan that stays in its first phase. SWA averages from the first step on."""
    sizes = {"noise_multiplier": NOISE, "population": population, "batch_size": batch_size, "steps": STEPS}
    if method == "dp-sgd+swa":
        return plans.by_name("dp-sgd", averaging=plans.Swa(start=0.0), **sizes)
    return plans.by_name(method, **sizes)


def loop_of(
    method: str,
    model: str,
    population: int,
    batch_size: int,
    held: int = HELD_ROWS,
    rows: int | None = None,
    loss: LossFunction | None = None,
) -> Loop:
    """A training loop over random rows, of which only ``held`` are held in memory.

    There are as many as the plan declares, unless ``rows`` says how many. The loss is the workload's own, or ``loss``.
    """
    work = Workload(model, min(population, held))
    source = RepeatedRows(work.inputs, work.targets, population if rows is None else rows)
    plan = plan_of(method, population, batch_size)
    mechanism = build_mechanism(plan, source, Ledger(), torch.device("cpu"), seed=0)
    built = work.fresh_model()
    return Loop(built, source, plan, mechanism, loss or work.loss, build_optimizer(plan, built, None))


def steps_of(loop: Loop) -> Step:
    """One private step after another, all of the first phase, from the first again when the plan has ended."""
    phase = loop.plan.phase_at(0)
    number = 0

    def step() -> None:
        nonlocal number
        loop.private_step(number % STEPS + 1, phase)
        number += 1

    return step


def whole_step(model: str, batch_size: int, population: int, rounds: int) -> dict[str, Any]:
    """A DP-SGD step with sampling, noise and optimizer, against the clipped gradient of the same rows alone.

    The rows of a step are known beforehand, from a copy of its source of chance, and are fetched before the
    clock starts for the clipped gradient; fetching them is part of the whole step.
    """
    loop = loop_of("dp-sgd", model, population, batch_size)
    step = steps_of(loop)
    copied = torch.Generator()
    rows: list[Any] = []

    def look_ahead() -> None:
        copied.set_state(loop.mechanism.randomness.sampling.get_state())
        assert loop.source is not None
        rows[:] = loop.source.fetch(draw(loop.plan.sampling, population, copied))

    def alone() -> None:
        clipped_sum(loop.model, loop.loss_fn, rows[0], rows[1], 1.0)

    look_ahead()
    alone()
    step()
    whole: list[float] = []
    gradient: list[float] = []
    for number in range(rounds):
        look_ahead()  # the rows change from round to round
        own, other = one_round(step, alone, number)
        whole.append(own)
        gradient.append(other)
    return {
        "model": model,
        "batch_size": batch_size,
        "population": population,
        "rounds": rounds,
        "seconds": statistics.median(whole),
        "gradient_seconds": statistics.median(gradient),
        "ratio": asdict(paired(whole, gradient)),
    }


def against_dp_sgd(
    method: str,
    model: str,
    batch_size: int,
    rounds: int,
    most: int = 0,
    side_by_side: Callable[[str, str, str, int], AbstractContextManager[Pairs]] = in_turns,
) -> dict[str, Any]:
    """A step of a method and a step of DP-SGD, taking turns at every micro-batch, with an interval for the ratio.

    On a restless machine more pairs follow, up to ``most``, until the interval is narrow enough for what it is to
    decide. Its width says when to stop, never the ratio itself.
    """
    own: list[float] = []
    reference: list[float] = []
    with side_by_side(method, "dp-sgd", model, batch_size) as pairs:
        while True:
            for seconds, more in zip((own, reference), pairs(rounds)):
                seconds += more
            low, high, confidence = median_interval([a / b for a, b in zip(own, reference)])
            if high - low <= NARROW * low or len(own) + rounds > most:
                break
    return {
        "method": method,
        "model": model,
        "batch_size": batch_size,
        "rounds": len(own),
        "seconds": statistics.median(own),
        "dp_sgd_seconds": statistics.median(reference),
        "times": {"own": own, "dp-sgd": reference},
        "ratio": asdict(paired(own, reference)),
        "interval": [low, high],
        "confidence": confidence,
    }


def added_work(method: str, model: str, batch_size: int) -> dict[str, Any] | None:
    """Seconds that a method adds to each step of DP-SGD, whatever the batch: the difference on a batch of no rows.

    A displacement, an average: a thousandth of a step, which no pair of whole steps could show on a machine with
    other tenants. What rows cost more, such as caches that have to be filled again, is in the pairs alone. None for
    a method with several queries a step: those cost by the row.
    """
    plan = plan_of(method, batch_size, batch_size)
    if len(plan.query_noises(plan.phase_at(0))) > 1:
        return None
    own, reference = (
        steps_of(loop_of(name, model, batch_size, batch_size, rows=0)) for name in (method, "dp-sgd")
    )
    for step in (own, own, reference, reference):
        step()  # an ascent along the previous release needs one
    differences = [a - b for a, b in zip(*beside(own, reference, EMPTY_ROUNDS))]
    low, high, confidence = median_interval(differences)
    return {"seconds": statistics.median(differences), "interval": [low, high], "confidence": confidence}


def method_beside_dp_sgd(
    method: str, model: str, batch_size: int, rounds: int, most: int = 0
) -> dict[str, Any]:
    """Whole steps in pairs, and beside them what the method adds to a step by itself."""
    pairs = against_dp_sgd(method, model, batch_size, rounds, most)
    return pairs | {"added": added_work(method, model, batch_size)}
