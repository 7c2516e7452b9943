"""``saltflat account``: from noise to the budget it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from saltflat.cli.accounting_options import accounting_options, answer, draw, requested, show
from saltflat.errors import check_positive


@click.command(
    epilog="""\b
Examples:
  saltflat account --noise-multiplier 4.4627 --population 60000 --batch-size 2048 --steps 1172 --delta 1e-5
  saltflat account --population 50000 --batch-size 2048 \\
      --phase steps=244,noise-multiplier=2.931 --phase steps=488,noise-multiplier=29.485 --json
"""
)
@click.option("--noise-multiplier", type=float, help="Noise of the phases that do not name their own.")
@accounting_options
def command(
    noise_multiplier: float | None, delta: float, as_json: bool, quiet: bool, plot: str | None, **options: Any
) -> None:
    """The ε at δ of all phases, composed jointly."""
    sampling, phases = requested(options)
    if noise_multiplier is not None:
        check_positive("noise_multiplier", noise_multiplier)
    filled = [
        phase if phase.noise_multiplier is not None else replace(phase, noise_multiplier=noise_multiplier)
        for phase in phases
    ]
    result = answer(filled, sampling, delta)
    if quiet and not as_json:
        click.echo(f"{result['epsilon']:.4f}")
    else:
        show(result, as_json)
    if plot:
        draw(plot, sampling, delta, epsilon=result["epsilon"], steps=result["steps"])
