"""The noise of queries that are not released themselves: the ascent of DP-SAM, and the count behind a quantile.

Both leave traces that can be seen from outside: the weights at which the next gradient is taken, and the clip
norms that the ledger records.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from saltflat.audit.bounds import improbable
from saltflat.audit.worlds import Rows, Subject
from saltflat.plan import Phase, QuantileClipping

LEVEL = 1e-8
WIDTH = 2000
STEPS = 8
COUNTS = 120


class Pulled(nn.Module):
    """One tensor, which every unit pulls in the same direction."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs * self.weight).sum(1)


def ascent_faults(subject: Subject, phase: Phase) -> list[str]:
    """Whether the ascent query has the declared noise, by where the next gradient is taken.

    k units pull with length C in one direction. The displacement then has k in that coordinate and noise of
    deviation σ_a in all others, up to a common factor: their ratio is known.
    """
    sigma, ascent = phase.ascent_noise, cast("Any", phase.ascent)
    if sigma is None or ascent.rho == 0:
        return []
    units = 40 if subject.randomness == "exact" else max(200, math.ceil(20 * sigma))
    pull = torch.zeros(1, WIDTH, dtype=torch.float64)
    pull[0, 0] = -1e3
    model, seen = Pulled(), []

    def loss(outputs: Any, _: Tensor) -> Tensor:
        seen.append(model.weight.detach().clone())
        return outputs

    sample = Rows.of(pull.expand(units, -1))
    small = subject.with_model(model, sample, loss)
    small.run(small.units(units), small.of_phase(phase, STEPS, units=units, still=False))
    moved = [weight for weight in seen if float(weight.norm()) > 0.5 * ascent.rho]
    if len(moved) < STEPS:
        return ["the ascent query leaves no displacement"]
    ratios = torch.stack([m[1:].square().mean().sqrt() / m[0].abs().clamp(min=1e-300) for m in moved])
    found = float(ratios.mean()) * units / sigma
    allowed = 8 * sigma / units / math.sqrt(STEPS) + 8 / math.sqrt(2 * WIDTH * STEPS)
    if abs(found - 1) > allowed + (sigma / units) ** 2:
        return [f"the ascent query has {found:.3f} times the declared noise"]
    return []


def count_faults(subject: Subject, phase: Phase) -> list[str]:
    """Whether the count behind a quantile has the declared noise, by the clip norms in the ledger."""
    clipping = subject.plan.clipping
    if not isinstance(clipping, QuantileClipping):
        return []
    # So many units that a step of the clip norm is not cut off.
    units = max(8, math.ceil(clipping.count_noise * clipping.learning_rate / 0.1))
    sample = Rows.of(torch.ones(units, 1, dtype=torch.float64))
    small = subject.with_model(nn.Linear(1, 1).double(), sample, lambda outputs, _: outputs.sum(1))
    plan = small.of_phase(phase, COUNTS, units=units, still=False)
    clips = small.run(small.units(units, 0.0), plan).clip_norms
    # All units are blank, hence short: the true share is one.
    shares = [
        clipping.quantile - math.log(after / before) / clipping.learning_rate
        for before, after in itertools.pairwise(clips)
    ]
    noise = torch.tensor(shares, dtype=torch.float64).sub_(1).mul_(units / clipping.count_noise)
    if improbable(float(noise.square().sum()), len(noise), LEVEL):
        return [f"the count has {float(noise.square().mean().sqrt()):.3f} times the declared noise"]
    return []
