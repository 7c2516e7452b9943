"""Inside a client: DP-FedSAM."""

from __future__ import annotations

from dataclasses import dataclass

from saltflat.plan.ascents.ascent import Ascent
from saltflat.plan.parts import check_kind, check_rho


@dataclass(frozen=True)
class OwnGradient(Ascent):
    """At w + ρ g/‖g‖ with g a client's own gradient on its own batch: SAM inside the client (DP-FedSAM).

    ``adaptive`` scales by the weights: w + ρ T²g/‖Tg‖ with T = |w| + 0.01 (ASAM). Free, because the client's
    whole update is clipped afterwards. For plans over clients only, whose local training takes it.
    """

    rho: float
    adaptive: bool = False

    kind = "own-gradient"

    def __post_init__(self) -> None:
        check_rho(self.rho)
        check_kind("adaptive", self.adaptive, bool)

    def __str__(self) -> str:
        return f"own gradient, ρ {self.rho:g}" + (", adaptive" if self.adaptive else "")
