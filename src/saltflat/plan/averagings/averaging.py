"""What an averaging says, and the one that says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class Averaging:
    """Which iterates are averaged, and with what weights: over released iterates only, so it is post-processing.

    A kind is a frozen dataclass with a ``kind``, a ``__str__`` and defaults for all fields: its kind is also the
    suffix behind the name of a method. Unless it says otherwise it is the mean of all iterates.
    """

    kind: ClassVar[str]

    def counts(self, step: int, steps: int) -> bool:
        """Whether the iterate after a step, counted from one, of so many ``steps`` is taken in."""
        return True

    def is_empty(self, steps: int) -> bool:
        """Whether it was meant to take in iterates, and a plan of so many ``steps`` has none for it."""
        return False

    def share(self, count: int) -> float:
        """What part of the new average is the newest iterate, the ``count``-th that is taken in."""
        return 1 / count


@dataclass(frozen=True)
class NoAveraging(Averaging):
    """The last iterate is the result."""

    kind = "none"

    def __str__(self) -> str:
        return "none"

    def counts(self, step: int, steps: int) -> bool:
        return False
