"""Averages of released iterates: post-processing, so they change neither the trajectory nor the ledger."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from saltflat.plan import Averaging, Ema, Swa


class AverageState:
    """A running average of the weights over the steps that the plan's averaging counts."""

    def __init__(self, averaging: Averaging, steps: int) -> None:
        self.averaging, self.steps = averaging, steps
        self.count = 0
        self.average: dict[str, Tensor] | None = None

    @torch.no_grad()
    def observe(self, step: int, weights: Mapping[str, Tensor]) -> None:
        """Take the weights after a step (counted from one) into the average."""
        if not self._counts(step):
            return
        self.count += 1
        if self.average is None:
            self.average = {name: weight.detach().clone() for name, weight in weights.items()}
            return
        for name, weight in weights.items():
            self.average[name].lerp_(weight.detach(), self._share())

    def _counts(self, step: int) -> bool:
        if isinstance(self.averaging, Swa):
            first = int(self.averaging.start * self.steps)
            return step > first and (step - first) % self.averaging.every == 0
        return isinstance(self.averaging, Ema)

    def _share(self) -> float:
        """What part of the new average is the newest iterate."""
        if isinstance(self.averaging, Ema):
            return 1 - min(self.averaging.decay, (1 + self.count) / (10 + self.count))
        return 1 / self.count
