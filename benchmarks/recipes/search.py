"""The search's own loop: linear models on cached features, many settings in one pass over the rows.

It is DP-SGD with the sampling, clip, noise and divisor of the plan, written out for a linear layer, where the norm
of a gradient is a product of two norms. So settings that differ in rates, clips or schedules share the products
with the rows, and a search costs a tenth. Reported runs do not use it: they go through `saltflat train`.

Only training rows are loaded: 10,000 of them are held out and scored, and no test set is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from saltflat.plan import Plan
from saltflat.plans import Common, dp_sgd, dp_sgd_tapered

HELD_OUT = 10_000
CONSTANT = 0.1  # the input of the bias, beside features of length one


@dataclass(frozen=True)
class Setting:
    """What one linear model is trained with; features have length one, so rates and clips are relative to that.

    ``rate`` is learning rate times clip norm, what a release of clipped gradients of length one is multiplied by.
    ``mean`` is the length of the part of a gradient that estimates the features' mean, beside (p - y) for the rest;
    0 leaves features as they are. ``pace`` is how fast that estimate moves, as a share of the distance in a step.
    """

    rate: float
    clip: float = 0.3
    schedule: str = "linear"
    momentum: float = 0.9
    mean: float = 0.0
    pace: float = 0.5
    squared: bool = False
    decay: float = 0.0

    def __str__(self) -> str:
        plain = Setting(self.rate)
        changed = [f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)]
        return "-".join([f"rate{self.rate:g}", *(f"{name}{getattr(self, name)}" for name in changed)])


def halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to train on, and rows to score on: the same for every run."""
    order = torch.from_numpy(np.random.default_rng(5).permutation(len(rows)))
    return rows[order[HELD_OUT:]], rows[order[:HELD_OUT]]


def plan_for(population: int, batch_size: int, steps: int, epsilon: float, noise: str) -> Plan:
    """Whose noise a run has: ``even``, or ``6x0.5``, which grows in six stairs as the rate falls, to the power 0.5."""
    common: Common = {
        "epsilon": epsilon, "delta": 1e-5, "population": population, "batch_size": batch_size, "steps": steps,
    }  # fmt: skip
    if noise == "even":
        return dp_sgd(**common)
    stairs, _, taper = noise.partition("x")
    return dp_sgd_tapered(stairs=int(stairs), taper=float(taper), learning_rate=1.0, **common)


@torch.no_grad()
def accuracies(
    features: Tensor,
    labels: Tensor,
    settings: Sequence[Setting],
    *,
    plan: Plan,
    seed: int,
) -> list[float]:
    """Train one linear model a setting, all on the same batches, and score each on the rows that were held out."""
    steps, batch_size = plan.steps, int(plan.sampling.batch_size)
    (x, held), (y, right) = halves(features), halves(labels)
    count, width, classes, many = len(x), x.shape[1], int(labels.max()) + 1, len(settings)
    chance = torch.Generator().manual_seed(seed)
    squares, wanted = x.square().sum(1), F.one_hot(y, classes).float()
    weights, bias, means = (
        torch.zeros(width, many, classes),
        torch.zeros(many, classes),
        torch.zeros(width, many),
    )
    speeds = [torch.zeros_like(part) for part in (weights, bias, means)]
    rate, clip, momentum, mean, pace, decay = (
        torch.tensor([float(getattr(s, name)) for s in settings])
        for name in ("rate", "clip", "momentum", "mean", "pace", "decay")
    )
    squared = torch.tensor([s.squared for s in settings]).view(-1, 1)
    centred = bool((mean > 0).any())
    for step, phase in enumerate(plan.schedule()):
        rows = (torch.rand(count, generator=chance) < batch_size / count).nonzero().squeeze(1)
        batch = x if batch_size >= count else x[rows]
        target, square = (wanted, squares) if batch_size >= count else (wanted[rows], squares[rows])
        logits = _logits(batch, weights, bias, means, centred)
        errors = torch.where(
            squared, logits - target[:, None] + 1 / classes, logits.softmax(2) - target[:, None]
        )
        length = square[:, None].expand(-1, many)
        if centred:
            length = (length - 2 * batch @ means + means.square().sum(0)).clamp_min(0)
        norms = (errors.square().sum(2) * (length + CONSTANT**2) + mean.square() * length).sqrt()
        share = 1 / torch.maximum(norms, clip)  # a clipped gradient over the clip norm
        errors *= share[..., None]
        total = errors.sum(0)
        sums = [(batch.T @ errors.flatten(1)).view_as(weights), CONSTANT * total, torch.zeros_like(means)]
        if centred:
            pull = share * mean
            sums[0] -= means[..., None] * total
            sums[2] = means * pull.sum(0) - batch.T @ pull
        factor = rate * torch.tensor([_factor(s.schedule, step / steps) for s in settings])
        weights *= (1 - factor * decay).view(-1, 1)
        follow = pace * (1 - momentum) * torch.maximum(clip, mean) / mean.clamp_min(1e-9) * (mean > 0)
        for part, speed, one, by in zip(
            (weights, bias, means),
            speeds,
            sums,
            (factor.view(-1, 1), factor.view(-1, 1), follow * factor / rate),
        ):
            released = (one + phase.sigma * torch.randn(one.shape, generator=chance)) / batch_size
            speed.mul_(momentum if part is means else momentum.view(-1, 1)).add_(released)
            part -= by * speed
    found = _logits(held, weights, bias, means, centred).argmax(2) == right[:, None]
    return [round(float(share), 4) for share in found.float().mean(0)]


def _logits(rows: Tensor, weights: Tensor, bias: Tensor, means: Tensor, centred: bool) -> Tensor:
    logits = (rows @ weights.flatten(1)).view(len(rows), *bias.shape) + CONSTANT * bias
    return logits - torch.einsum("dk,dkc->kc", means, weights) if centred else logits


def _factor(schedule: str, done: float) -> float:
    if schedule.startswith("stairs"):
        stairs = int(schedule.removeprefix("stairs"))
        return 1 - (int(done * stairs) + 0.5) / stairs
    return {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[schedule]
