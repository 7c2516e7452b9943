"""What a plan over clients says beside its phases: how a client trains, which coordinates of its update are
released, and where the noise is added. Values only; what they do lives in `saltflat.federated`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from saltflat.errors import check_count, check_not_negative, check_positive, check_share
from saltflat.plan.parts import check_kind

# --- how a client trains ----------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalTraining:
    """SGD inside a client: ``epochs`` passes over its rows in batches of ``batch_size``.

    The rate of round t is ``learning_rate · (1 − decay)^(t−1)``. With ``penalty`` > 0 the loss has the term
    (penalty/2) · max(0, ‖w − w_t‖² − radius²), which keeps the update short (BLUR, Cheng et al. 2022).

    None of it touches the guarantee: whatever a client does, its whole update is clipped afterwards.

    >>> LocalTraining(learning_rate=0.1, decay=0.5).rate_in(3)
    0.025
    """

    epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 0.1
    momentum: float = 0.5
    weight_decay: float = 0.0
    decay: float = 0.0005
    penalty: float = 0.0
    radius: float = 0.0

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size)
        check_positive("learning_rate", self.learning_rate)
        for argument in ("momentum", "decay"):
            check_share(argument, getattr(self, argument), zero=True)
        for argument in ("weight_decay", "penalty", "radius"):
            check_not_negative(argument, getattr(self, argument))

    def rate_in(self, number: int) -> float:
        """The learning rate in a round, counted from one."""
        return self.learning_rate * (1 - self.decay) ** (number - 1)

    def __str__(self) -> str:
        parts = [
            f"{self.epochs} epoch{'s'[: self.epochs - 1]} of {self.batch_size}",
            f"rate {self.learning_rate:g}",
        ]
        parts += [f"momentum {self.momentum:g}"] if self.momentum else []
        parts += [f"weight decay {self.weight_decay:g}"] if self.weight_decay else []
        parts += [f"penalty {self.penalty:g} beyond {self.radius:g}"] if self.penalty else []
        return ", ".join(parts)


# --- which coordinates are released -----------------------------------------------------------------


def _check_ratio(ratio: float) -> None:
    check_share("ratio", ratio, one=True, what="a share of the coordinates", cure="0.4 is usual.")


@dataclass(frozen=True)
class NoMask:
    """All coordinates are released."""

    kind = "none"

    def __str__(self) -> str:
        return "all coordinates"


@dataclass(frozen=True)
class RandomMask:
    """A share of the coordinates, drawn anew each round from public randomness (rand_k).

    With ``scaled`` a client multiplies what is left by 1/ratio, before the clip.
    """

    ratio: float = 0.4
    scaled: bool = True

    kind = "random"

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)
        check_kind("scaled", self.scaled, bool)

    def __str__(self) -> str:
        return f"a random {self.ratio:.0%}" + (", scaled" if self.scaled else "")


@dataclass(frozen=True)
class ReleaseMask:
    """The coordinates that earlier releases moved most clearly (top_k): fixed before the round, free.

    A coordinate's mark is |Σ g|/√n over the n releases that it was part of. A share ``explore`` of the mask is
    drawn at random from the others, so that a coordinate can come back. The first ``dense`` rounds release all.
    """

    ratio: float = 0.4
    explore: float = 0.1
    dense: int = 1

    kind = "releases"

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)
        check_count("dense", self.dense, least=0)
        check_share("explore", self.explore, zero=True, one=True, what="a share of the mask")

    def __str__(self) -> str:
        return f"the top {self.ratio:.0%} of earlier releases"


@dataclass(frozen=True)
class PublicMask:
    """The largest coordinates of an update that was trained on public data (top_k)."""

    ratio: float = 0.4

    kind = "public"

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)

    def __str__(self) -> str:
        return f"the top {self.ratio:.0%} on public data"


@dataclass(frozen=True)
class OwnMask:
    """Each client drops the small entries of its own update before the clip (LUS); noise on *all* coordinates.

    Which entries a client keeps follows from its data, so they may not decide where noise is added.
    """

    ratio: float = 0.4

    kind = "own"

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)

    def __str__(self) -> str:
        return f"each client's own top {self.ratio:.0%}, noise on all"


Mask = NoMask | RandomMask | ReleaseMask | PublicMask | OwnMask


# --- where the noise is added -----------------------------------------------------------------------


@dataclass(frozen=True)
class CentralNoise:
    """The server adds the noise. It sees every update, and is trusted."""

    kind = "central"

    def __str__(self) -> str:
        return "at the server, which is trusted"


@dataclass(frozen=True)
class SharedNoise:
    """Each client adds N(0, σ²C²/survivors) to its clipped update, under secure aggregation.

    The sum of at least ``survivors`` answers has the planned noise; with fewer the round is aborted, and nothing
    is released. The server knows who took part, so sampling hides nobody: every round is accounted as if all
    clients were in it. In exchange the guarantee holds against the server too.
    """

    survivors: int

    kind = "shared"

    def __post_init__(self) -> None:
        check_count("survivors", self.survivors)

    def __str__(self) -> str:
        return f"shared by the clients, for at least {self.survivors} answers"


Placement = CentralNoise | SharedNoise


@dataclass(frozen=True)
class Federation:
    """The part of a plan that only clients need: local training, mask, and placement of the noise.

    >>> print(Federation(mask=RandomMask(0.4)))
    clients train 5 epochs of 32, rate 0.1, momentum 0.5; released: a random 40%, scaled; noise at the server,
    which is trusted
    """

    local: LocalTraining = field(default_factory=LocalTraining)
    mask: Mask = field(default_factory=NoMask)
    placement: Placement = field(default_factory=CentralNoise)

    def __post_init__(self) -> None:
        check_kind("local", self.local, LocalTraining)
        check_kind("mask", self.mask, Mask)
        check_kind("placement", self.placement, Placement)

    def __str__(self) -> str:
        return f"clients train {self.local}; released: {self.mask}; noise {self.placement}"
