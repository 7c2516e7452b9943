"""What an ascent says, and the one that says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Vectors: TypeAlias = "Mapping[str, Tensor]"
"""One tensor for each weight, by its name. Plans are read without torch: operators and methods of tensors only."""

Memory: TypeAlias = "Mapping[str, Vectors]"
"""What ascents keep of releases from one step to the next, under names of their own; checkpoints hold it."""


class Ascent:
    """Where the gradient is taken: at w + ρ d/‖d‖, one norm over all weights.

    A kind is a frozen dataclass with a ``kind`` and a ``__str__``, and says what differs from no ascent at all.
    It sees releases and nothing else, so all of it is post-processing; what it asks of the data it pays for, by
    `query_noise`.
    """

    kind: ClassVar[str]
    automatic: bool = False
    """Whether it is switched off for good when sharpness stops falling."""

    def query_noise(self, sigma: float) -> float | None:
        """The noise multiplier of a query of its own on each batch, beside ``sigma`` of the descent; None: no query."""
        return None

    def direction(self, memory: Memory, answer: Vectors | None) -> tuple[Vectors, float] | None:
        """d and ρ, from what is remembered and the released ``answer`` to its query; None to stay."""
        return None

    def remembered(self, memory: Memory, release: Vectors) -> Memory:
        """What is kept after a release: copies, because an optimizer may change the release in place."""
        return memory


@dataclass(frozen=True)
class NoAscent(Ascent):
    """The gradient is taken at the weights themselves."""

    kind = "none"

    def __str__(self) -> str:
        return "none"
