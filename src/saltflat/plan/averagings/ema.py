"""An exponential moving average."""

from __future__ import annotations

from dataclasses import dataclass

from saltflat.errors import check_share
from saltflat.plan.averagings.averaging import Averaging


@dataclass(frozen=True)
class Ema(Averaging):
    """An exponential moving average with warm-up: decay_t = min(decay, (1 + t)/(10 + t))."""

    decay: float = 0.99

    kind = "ema"

    def __post_init__(self) -> None:
        check_share("decay", self.decay, zero=True)

    def __str__(self) -> str:
        return f"EMA, decay {self.decay:g}"

    def share(self, count: int) -> float:
        return 1 - min(self.decay, (1 + count) / (10 + count))
