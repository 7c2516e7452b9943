"""What a reader hands over: arrays as they lie in files. No torch, so that the catalogue can be read in an instant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES_FROM_DATA = "The classes were read from the data, so they count as public (the zero-out relation)."


@dataclass(frozen=True, eq=False)
class Part:
    """Rows as they lie in a file: uint8 images (N x C x H x W) or float32 features, with class numbers."""

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> Part:
        """Some of the rows, in the order asked for."""
        groups = None if self.groups is None else self.groups[rows]
        return Part(self.inputs[rows], self.labels[rows], groups)


@dataclass(frozen=True, eq=False)
class Raw:
    """One data set as a reader found it.

    ``declared`` is false where the data themselves named the classes; ``lossy`` is true for JPEG images; ``columns``
    are those of a table that became features, in their order.
    """

    train: Part
    test: Part | None
    classes: tuple[str, ...]
    declared: bool = True
    note: str = ""
    lossy: bool = False
    columns: tuple[str, ...] = ()


Reader = Callable[[Sequence[Path]], Raw]
