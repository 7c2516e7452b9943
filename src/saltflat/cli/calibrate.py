"""``saltflat calibrate``: from a budget to the noise it asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from saltflat.accounting import least_scale, rounded_up
from saltflat.cli.accounting_options import (
    PhaseRequest,
    accounting_options,
    answer,
    draw,
    requested,
    show,
)
from saltflat.errors import InputError, check_positive
from saltflat.plan.sampling import Sampling


@click.command(
    epilog="""\b
Examples:
  saltflat calibrate --epsilon 1 --delta 1e-5 --population 60000 --batch-size 2048 --steps 1172 --json
  saltflat calibrate --epsilon 1 --population 50000 --batch-size 2048 \\
      --phase steps=244,noise-multiplier=2.931 --phase steps=488
  saltflat calibrate --epsilon 1 --population 50000 --batch-size 2048 \\
      --phase steps=244,noise-ratio=1 --phase steps=488,noise-ratio=10
  saltflat calibrate --epsilon 1 --population 60000 --batch-size 2048 --epochs 40 --quiet
"""
)
@click.option("--epsilon", type=float, required=True, help="The budget ε.")
@accounting_options
def command(
    epsilon: float, delta: float, as_json: bool, quiet: bool, plot: str | None, **options: Any
) -> None:
    """The least noise that keeps all phases within ε at δ.

    Phases without noise-multiplier are solved for; noise-ratio in every phase keeps the ratios.
    """
    sampling, phases = requested(options)
    solved = solve(phases, sampling, epsilon, delta)
    if quiet and not as_json:  # one line for each phase that was solved for
        click.echo("\n".join(f"{s.noise_multiplier:.4f}" for p, s in zip(phases, solved) if p != s))
    else:
        show(answer(solved, sampling, delta) | {"target_epsilon": epsilon}, as_json)
    if plot:
        draw(plot, sampling, delta, epsilon=epsilon, steps=sum(p.steps for p in solved))


def solve(phases: list[PhaseRequest], sampling: Sampling, epsilon: float, delta: float) -> list[PhaseRequest]:
    """The phases with their noise, never above the target when recomputed."""
    check_positive("epsilon", epsilon)
    unknown = [phase for phase in phases if phase.noise_multiplier is None]
    if not unknown:
        raise InputError(
            "phase", "every one has a noise-multiplier", "at least one phase without noise-multiplier",
            problem="leaves nothing to solve", cure="To compute epsilon from noise, use: saltflat account",
        )  # fmt: skip
    with_ratio = [phase for phase in phases if phase.noise_ratio is not None]
    if with_ratio and len(with_ratio) != len(phases):
        raise InputError("noise-ratio", "in some phases only", "noise-ratio in every phase, or in none")

    def at(scale: float) -> list[PhaseRequest]:
        return [
            phase
            if phase.noise_multiplier is not None
            else replace(phase, noise_multiplier=rounded_up(scale * (phase.noise_ratio or 1)))
            for phase in phases
        ]

    scale = least_scale(lambda s: [phase.event(sampling) for phase in at(s)], epsilon, delta)
    return at(scale)
