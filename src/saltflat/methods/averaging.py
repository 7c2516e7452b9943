"""Averages of released iterates: post-processing, so they change neither the trajectory nor the ledger."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from saltflat.plan import Averaging


class AverageState:
    """A running average of the weights over the steps that the plan's averaging counts."""

    def __init__(self, averaging: Averaging, steps: int) -> None:
        self.averaging, self.steps = averaging, steps
        self.count = 0
        self.average: dict[str, Tensor] | None = None

    @torch.no_grad()
    def observe(self, step: int, weights: Mapping[str, Tensor]) -> None:
        """Take the weights after a step (counted from one) into the average."""
        if not self.averaging.counts(step, self.steps):
            return
        self.count += 1
        if self.average is None:
            self.average = {name: weight.detach().clone() for name, weight in weights.items()}
            return
        share = self.averaging.share(self.count)
        for name, weight in weights.items():
            self.average[name].lerp_(weight.detach(), share)
