"""`run`: the whole suite on a model, the shape of its data, and a plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from saltflat.audit.findings import AuditReport, Check, LowerBound
from saltflat.audit.ledger_check import ledger_check
from saltflat.audit.noise_law import noise_check
from saltflat.audit.one_run import one_run_check
from saltflat.audit.replay import replay_check
from saltflat.audit.sampler_law import sampler_check
from saltflat.audit.two_worlds import two_worlds_check
from saltflat.audit.worlds import Subject, subject_of
from saltflat.engine.batch import LossFunction
from saltflat.errors import InputError
from saltflat.mechanism.randomness import check_tier
from saltflat.plan import Plan

Announce = Callable[[str], None]


def run(
    model: nn.Module,
    data: Any,
    plan: Plan,
    *,
    loss_fn: LossFunction | None = None,
    randomness: str = "fast",
    quick: bool = False,
    announce: Announce | None = None,
) -> AuditReport:
    """Attack the mechanism that ``fit`` would run, and say what was caught.

    ``data`` gives the shape of a row and the type of the targets; the rows themselves are made up, so an audit
    costs no budget and nothing private is in its report. ``model`` is copied. ``quick`` takes fewer trials.

    Guarantees: the lower bounds hold with their confidence. A sound mechanism is reported as caught less than
    once in 100,000 audits. Passing proves nothing; it says that these attacks failed.

    References: Jagielski, Ullman & Oprea 2020 (two worlds); Nasr et al. 2023 (tight audits); Steinke, Nasr &
    Jagielski 2023 (one run); Clopper & Pearson 1934.

    >>> import saltflat as sf
    >>> plan = sf.plans.dp_sgd(epsilon=3, delta=1e-4, population=400, batch_size=40, steps=20)
    >>> shape = (torch.zeros(9, 3), torch.zeros(9))
    >>> sf.audit.run(nn.Linear(3, 1), shape, plan, quick=True).passed
    True
    """
    if not isinstance(plan, Plan) or not plan.is_solved or not plan.is_private:
        raise InputError(
            "plan", "without noise" if isinstance(plan, Plan) else plan, "a plan whose releases all have noise",
            problem="makes no claim that could be audited", cure="Calibrate it, or give it a noise_multiplier.",
        )  # fmt: skip
    if plan.needs_public:
        raise InputError(
            "plan", plan.method, "a plan that looks at private rows only",
            problem="also looks at public data, which an audit does not make up",
            cure="Audit the same plan without it: sampling, clip and noise are the same.",
        )  # fmt: skip
    if plan.shared_noise is not None:
        raise InputError(
            "plan", plan.method, "a plan whose noise is added at the server",
            problem="has noise that clients add", cure="Audit the same plan without survivors.",
        )  # fmt: skip
    check_tier(randomness)
    started = time.perf_counter()
    say = announce or (lambda text: None)
    state = torch.get_rng_state()
    subject = subject_of(model, data, plan, loss_fn, randomness)
    checks: list[Check] = []
    bounds: dict[str, LowerBound] = {}
    try:
        for name, check in _suite(subject, quick):
            say(name)
            found = check()
            if isinstance(found, tuple):
                found, bounds[name] = found
            checks.append(found)
    finally:
        torch.set_rng_state(state)
    seconds = time.perf_counter() - started
    return AuditReport(
        plan.method, plan.epsilon, plan.budget.delta, randomness, tuple(checks), bounds, seconds
    )


def _suite(subject: Subject, quick: bool) -> list[tuple[str, Callable[[], Check | tuple[Check, LowerBound]]]]:
    slow = subject.randomness == "exact"  # a pass for each unit
    trials = _affordable(subject, 10.0 if quick else 60.0, 1000 if quick else 4000)
    canaries, seconds = (300 if slow else 1000), (8.0 if quick else 120.0)
    return [
        ("replay sensitivity", lambda: replay_check(subject)),
        ("noise law", lambda: noise_check(subject, 120_000 if quick else 1_000_000)),
        ("sampler law", lambda: sampler_check(subject, 60_000 if quick else 400_000)),
        ("two worlds", lambda: two_worlds_check(subject, trials)),
        ("one run", lambda: one_run_check(subject, canaries, 2000, seconds)),
        ("ledger", lambda: ledger_check(subject)),
    ]


def _affordable(subject: Subject, seconds: float, most: int) -> int:
    """How many steps a world fit into the time, judged by a few."""
    plan = subject.of_phase(subject.plan.phases[0], 5, units=4)
    subject.run(subject.units(4), plan)
    started = time.perf_counter()
    subject.run(subject.units(4), plan)
    pace = (time.perf_counter() - started) / 5
    return max(30, min(most, int(seconds / 2 / pace)))
