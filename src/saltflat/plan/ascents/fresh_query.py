"""Along a query of its own: DP-SAM."""

from __future__ import annotations

from dataclasses import dataclass

from saltflat.errors import check_positive
from saltflat.plan.ascents.ascent import Ascent, Memory, Vectors
from saltflat.plan.parts import check_rho


@dataclass(frozen=True)
class FreshQuery(Ascent):
    """At w + ρ g_a/‖g_a‖ with g_a a second noised query on the same batch (DP-SAM).

    The ascent query has noise multiplier ``noise_ratio`` times that of the descent; the pair is accounted
    as one release with σ = (σ_a⁻² + σ_d⁻²)^(−1/2).
    """

    rho: float
    noise_ratio: float = 1.0

    kind = "fresh-query"

    def __post_init__(self) -> None:
        check_rho(self.rho)
        check_positive("noise_ratio", self.noise_ratio)

    def __str__(self) -> str:
        return f"fresh query, ρ {self.rho:g}, σ ratio {self.noise_ratio:g}"

    def query_noise(self, sigma: float) -> float:
        return sigma * self.noise_ratio

    def direction(self, memory: Memory, answer: Vectors | None) -> tuple[Vectors, float] | None:
        return None if answer is None else (answer, self.rho)
