"""Whole plans on cached features, by `saltflat.fit`: other heads, methods, optimizers and averages than the search's.

The search writes DP-SGD out for linear layers; what it cannot say is tried here, one run at a time. The rows are the
same: part of the training rows to train on, 10,000 others to score on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from families import features, scattering, training_rows
from search import halves
from torch import Tensor, nn

import saltflat as sf
from saltflat.models import build, centring_loss
from saltflat.recipes.known import RECIPES
from saltflat.recipes.rows import LENGTH

FAMILY = "scatter2-groups"


@dataclass(frozen=True)
class Attempt:
    """One run. ``rate`` and ``clip`` are the learning rate and the clip norm of the plan, as they are."""

    head: str
    method: str = "dp-sgd"
    rate: float = 1.0
    clip: float = 1.0
    batch: int = 2048
    epochs: float = 12.0
    schedule: str = "linear"
    rho: float | None = None
    mean: float = 0.03
    epsilon: float = 1.0

    def __str__(self) -> str:
        plain = Attempt(self.head)
        changed = [f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)]
        return "-".join([self.head, *(f"{name}{getattr(self, name)}" for name in changed)])

    def plan(self, population: int) -> sf.Plan:
        """Its plan for so many rows."""
        own: dict[str, Any] = {} if self.rho is None else {"rho": self.rho}
        if "adam" not in self.method:
            own["momentum"] = 0.9
        return sf.plans.by_name(
            self.method, epsilon=self.epsilon, delta=1e-5, population=population, batch_size=self.batch,
            epochs=self.epochs, clip_norm=self.clip, learning_rate=self.rate, **own,
        )  # fmt: skip

    def model(self, width: int) -> tuple[nn.Module, Callable[[Any, Tensor], Tensor] | None]:
        """Its model, and the loss that goes with it."""
        if self.head == "cnn":
            return build("scatter-cnn"), None
        if self.head == "linear":
            layer = nn.Linear(width, 10)
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
            return layer, None
        assert self.head == "centred", self.head
        rate, clip = self.rate * self.clip * LENGTH, self.clip / LENGTH  # for features of length one
        chosen = replace(RECIPES["mnist"], rate={1.0: rate}, clip=clip, mean=self.mean, width=width)
        return build("centred-linear", **chosen.overrides(1.0)), centring_loss


def attempt(one: Attempt, data: str, data_dir: str | None) -> dict[str, Any]:
    """Train on part of the training rows and score on the rest of them: what is worth keeping of it."""
    (x, held), (y, right) = _rows(data, one.head == "cnn", data_dir)
    plan, (model, loss_fn) = one.plan(len(x)), one.model(x[0].numel())
    run = sf.fit(
        model, (x, y), plan, loss_fn=loss_fn, schedule=one.schedule, evaluate=(held, right), progress=False
    )
    return {
        "accuracy": run.accuracy, "average_accuracy": run.average_accuracy, "population": len(x),
        "batch_size": one.batch, "steps": plan.steps, "epochs": one.epochs, "epsilon": plan.epsilon,
        "noise_multiplier": [phase.noise_multiplier for phase in plan.phases],
    }  # fmt: skip


@lru_cache(1)
def _rows(
    data: str, as_maps: bool, data_dir: str | None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    rows = scattering(data, data_dir, 2) if as_maps else features(data, FAMILY, data_dir).mul_(LENGTH)
    return halves(rows), halves(training_rows(data, data_dir)[1])
