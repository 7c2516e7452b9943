"""An exponential moving average."""

from __future__ import annotations

from dataclasses import dataclass

from saltflat.errors import InputError, is_number
from saltflat.plan.averagings.averaging import Averaging


@dataclass(frozen=True)
class Ema(Averaging):
    """An exponential moving average with warm-up: decay_t = min(decay, (1 + t)/(10 + t))."""

    decay: float = 0.99

    kind = "ema"

    def __post_init__(self) -> None:
        if not is_number(self.decay) or not 0 <= self.decay < 1:
            raise InputError("decay", self.decay, "0 <= decay < 1")

    def __str__(self) -> str:
        return f"EMA, decay {self.decay:g}"

    def share(self, count: int) -> float:
        return 1 - min(self.decay, (1 + count) / (10 + count))
