"""The mean of late iterates: DP-SWA."""

from __future__ import annotations

from dataclasses import dataclass

from saltflat.errors import check_count, check_share
from saltflat.plan.averagings.averaging import Averaging


@dataclass(frozen=True)
class Swa(Averaging):
    """The mean of every ``every``-th iterate from a fraction ``start`` of the plan on (DP-SWA)."""

    start: float = 0.7
    every: int = 1

    kind = "swa"

    def __post_init__(self) -> None:
        check_share("start", self.start, zero=True, what="a fraction of the plan's steps")
        check_count("every", self.every)

    def __str__(self) -> str:
        return f"SWA from {self.start:.0%} on, every {self.every}"

    def is_empty(self, steps: int) -> bool:
        return int(self.start * steps) + self.every > steps

    def counts(self, step: int, steps: int) -> bool:
        first = int(self.start * steps)
        return step > first and (step - first) % self.every == 0
