"""`Tuning`: candidates, how often they are tried and how they are scored, as a pure value."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from saltflat.accounting import SampledGaussian, check_delta, rounded_up
from saltflat.accounting.selection import Repeated, Repetitions, least_repeated_scale, repeated_epsilon
from saltflat.errors import InputError, newer_format
from saltflat.plan.budget import Budget
from saltflat.plan.plan import Plan

FORMAT = 1

Point = Mapping[str, Any]
"""A setting of the grid: argument and value."""


@dataclass(frozen=True)
class Tuning:
    """A grid of plans, of which a random number of trials is run and the best is shown.

    The same fields make the mechanism (how many trials, which candidate, the noise on the score) and the cost,
    so the two cannot disagree. ``score_noise`` is the standard deviation of the noise on the count of right
    answers among held-out private rows; None where the score is taken on public data. Each unit is on the training
    side or on the held-out side, by a coin of its own.

    >>> from saltflat.plan import Phase, Poisson
    >>> plans = [Plan(Poisson(1000, 100), (Phase(50, clip, 6.0, 0.5),), Budget(9.0, 1e-5)) for clip in (0.1, 1.0)]
    >>> points = ({"clip_norm": 0.1}, {"clip_norm": 1.0})
    >>> tuning = Tuning(tuple(plans), points, Repetitions(4.0), Budget(3.0, 1e-5))
    >>> round(plans[0].epsilon, 2), round(tuning.epsilon, 2)
    (0.43, 0.77)
    """

    plans: tuple[Plan, ...]
    points: tuple[Point, ...]
    repetitions: Repetitions
    budget: Budget
    score_noise: float | None = None

    def __post_init__(self) -> None:
        if not self.plans or len(self.plans) != len(self.points):
            raise InputError("grid", len(self.points), "a plan for every point of the grid, and at least one")
        for plan in self.plans:
            told = (plan.budget.delta, plan.budget.relation, plan.budget.unit)
            if told != (self.budget.delta, self.budget.relation, self.budget.unit):
                raise InputError(
                    "grid", str(told), "one δ, relation and unit for all", problem="differs within the grid"
                )

    @property
    def repeated(self) -> Repeated:
        """What an accountant has to know."""
        return Repeated(tuple(plan.events() for plan in self.plans), self.repetitions, self.score_noise)

    @property
    def is_private(self) -> bool:
        """Whether every release of every candidate has noise and a finite sensitivity."""
        return all(plan.is_private for plan in self.plans)

    @cached_property
    def epsilon(self) -> float:
        """ε of all trials and the choice among them, by Rényi divergences."""
        return repeated_epsilon(self.repeated, self.budget.delta) if self.is_private else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """What is declared before the first trial, as plain data."""
        return {
            "saltflat_tuning": FORMAT,
            "law": self.repetitions.law,
            "repeats": self.repetitions.mean,
            "score_noise": self.score_noise,
            "delta": self.budget.delta,
            "candidates": [
                {"settings": dict(point), "plan_hash": plan.hash, "events": plain_events(plan)}
                for point, plan in zip(self.points, self.plans)
            ],
        }

    @property
    def hash(self) -> str:
        """A fingerprint of everything that is declared."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def solved_tuning(
    drafts: tuple[Plan, ...],
    points: tuple[Point, ...],
    repetitions: Repetitions,
    budget: Budget,
    score_noise: float | None = None,
) -> Tuning:
    """The drafts with the least common factor on their noise that keeps the whole tuning within ``budget``.

    The drafts' noise multipliers say the proportions. Guarantees: the result's ``epsilon`` never exceeds the
    budget's.
    """
    for draft in drafts:
        if not draft.is_private:
            raise InputError(
                "method", draft.method, "a private method", problem="has a release without noise",
                cure="Without privacy, any search will do.",
            )  # fmt: skip

    def at(scale: float) -> Repeated:
        events = tuple(_scaled(draft, scale).events() for draft in drafts)
        return Repeated(events, repetitions, score_noise)

    scale = least_repeated_scale(at, budget.epsilon, budget.delta)
    plans = []
    for draft in drafts:
        plan = _scaled(draft, scale)
        alone = max(plan.epsilon, sys.float_info.min)  # so much noise that ε is zero is still a budget
        plans.append(plan.changed(budget=replace(budget, epsilon=alone)))
    return Tuning(tuple(plans), points, repetitions, budget, score_noise)


def default_score_noise(repetitions: Repetitions, budget: Budget) -> float:
    """Noise on the score that leaves the budget to the training, from public numbers alone.

    Each unit is either trained on or counted, so a count that costs what the training costs is free: a tenth
    more noise than if the count were all.
    """
    alone = least_repeated_scale(
        lambda scale: Repeated(((SampledGaussian(scale, 1.0, 1),),), repetitions),
        budget.epsilon,
        budget.delta,
    )
    return rounded_up(1.1 * alone)


def _scaled(plan: Plan, scale: float) -> Plan:
    phases = (replace(phase, noise_multiplier=rounded_up(scale * phase.sigma)) for phase in plan.phases)
    return plan.changed(phases=tuple(phases))


def plain_events(plan: Plan) -> list[dict[str, Any]]:
    """The releases of a candidate, from which its cost can be computed again."""
    return [
        {"noise_multiplier": event.noise_multiplier, "rate": event.rate, "steps": event.steps}
        for event in plan.events()
    ]


def repeated_from_dict(data: Any) -> tuple[Repeated, float]:
    """What `Tuning.to_dict` declared, for an accountant, and its δ. Anything else is an `InputError`."""
    try:
        version = data["saltflat_tuning"]
        if not isinstance(version, int) or version > FORMAT:
            raise newer_format("tuning", str(version), FORMAT)
        candidates = tuple(
            tuple(SampledGaussian(e["noise_multiplier"], e["rate"], e["steps"]) for e in candidate["events"])
            for candidate in data["candidates"]
        )
        check_delta(data["delta"])
        repetitions = Repetitions(data["repeats"], data["law"])
        return Repeated(candidates, repetitions, data["score_noise"]), data["delta"]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "tuning", data, "what sf.tune declared", problem=f"cannot be read ({error})"
        ) from error
