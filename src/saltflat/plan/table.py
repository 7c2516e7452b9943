"""A plan as a table for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from saltflat.plan.parts import NoPublicGradient
from saltflat.plan.plan import Plan


def plan_table(plan: Plan, rules: Mapping[str, str]) -> str:
    """Phases with steps, noise, clip, ascent and cost; then the total and what it means; then the layers."""
    budget = plan.budget
    steps = "steps" if plan.federation is None else "rounds"
    lines = [f"{plan.method}: {plan.steps} {steps} over {plan.sampling}"]
    header = ["phase", steps, "noise σ", "clip", "learning rate", "ascent", "ε alone"]
    rows = []
    for number, phase in enumerate(plan.phases, start=1):
        solved = phase.noise_multiplier is not None
        rows.append(
            [
                phase.name or str(number),
                str(phase.steps),
                f"{phase.sigma:.4f}" if solved else f"to solve (× {phase.noise_ratio:g})",
                f"{phase.clip_norm:g}",
                "optimizer's own" if phase.learning_rate is None else f"{phase.learning_rate:g}",
                str(phase.ascent),
                _number(plan.phase_epsilon(phase)) if solved else "–",
            ]
        )
    lines += [f"  {line}" for line in aligned([header, *rows])]
    optimizer = "given to fit, or sgd (momentum 0.9)" if plan.optimizer is None else str(plan.optimizer)
    lines.append(
        f"  optimizer {optimizer}; clipping {plan.clipping}; averaging {plan.averaging}; {plan.multiplicity}"
    )
    if not isinstance(plan.public_gradient, NoPublicGradient):
        lines.append(f"  public gradients: {plan.public_gradient}")
    if plan.federation is not None:
        lines.append(f"  {plan.federation}")
    if plan.survey is not None:
        alone = _number(plan.survey_epsilon)
        lines.append(f"  before the first step: {plan.survey} (ε {alone} alone)")
    if plan.is_solved:
        lines += _totals(plan)
    else:
        lines.append(f"  noise not solved yet; budget ε = {_number(budget.epsilon)}, δ = {budget.delta:g}")
    lines += [f"  note: {note}" for note in plan.notes]
    if rules:
        lines += ["  layers:", *[f"    {line}" for line in aligned(_by_layer(rules))]]
    return "\n".join(lines)


def _by_layer(rules: Mapping[str, str]) -> list[list[str]]:
    layers: dict[str, list[str]] = {}
    for name, rule in rules.items():
        layers.setdefault(name.rpartition(".")[0] or name, []).append(rule)
    return [[layer, ", ".join(dict.fromkeys(used))] for layer, used in layers.items()]


def _totals(plan: Plan) -> list[str]:
    budget = plan.budget
    if not plan.is_private:
        return ["  total: not private (a release without noise has ε = inf)"]
    relation = "add or remove" if budget.relation == "add-remove" else "zero out"
    replaced = plan.epsilon_replace_one
    second = plan.epsilon_rdp
    beside = [
        f"replace one: {_number(replaced)}" if replaced is not None else "replace one: not supported here",
        f"RDP bound: {_number(second)}" if second is not None else "RDP: not supported here",
    ]
    return [
        f"  total: ε = {_number(plan.epsilon)} at δ = {budget.delta:g}, "
        f"{relation} one {budget.unit} (PLD, jointly)",
        f"         {'; '.join(beside)}",
    ]


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.4g}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with the columns of ``rows`` set flush left.

    >>> aligned([["a", "bb"], ["ccc", "d"]])
    ['a    bb', 'ccc  d']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
