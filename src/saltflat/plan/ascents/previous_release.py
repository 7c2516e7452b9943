"""Along the previous release: DP-SAT, and the first phase of SAI."""

from __future__ import annotations

from dataclasses import dataclass

from saltflat.errors import check_share
from saltflat.plan.ascents.ascent import Ascent, Memory, Vectors
from saltflat.plan.parts import check_kind, check_rho


@dataclass(frozen=True)
class PreviousRelease(Ascent):
    """At w + ρ g/‖g‖ with g the previous release: post-processing, free (DP-SAT).

    With ``momentum`` > 0 the direction is v_t = momentum · v_{t−1} + g_t instead of g. With ``automatic`` the
    ascent switches itself off for good when sharpness, judged by releases or public data, stops falling;
    noise and steps stay as planned.
    """

    rho: float
    momentum: float = 0.0
    automatic: bool = False

    kind = "previous-release"

    def __post_init__(self) -> None:
        check_rho(self.rho)
        check_share("momentum", self.momentum, zero=True)
        check_kind("automatic", self.automatic, bool)

    def __str__(self) -> str:
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        return f"previous release, ρ {self.rho:g}{momentum}" + (", until flat" if self.automatic else "")

    def direction(self, memory: Memory, answer: Vectors | None) -> tuple[Vectors, float] | None:
        return (memory["direction"], self.rho) if "direction" in memory else None

    def remembered(self, memory: Memory, release: Vectors) -> Memory:
        if self.momentum and "direction" in memory:
            before = memory["direction"]
            kept = {name: before[name] * self.momentum + part for name, part in release.items()}
        else:
            kept = {name: part.clone() for name, part in release.items()}
        return {**memory, "direction": kept}
