"""What a reader hands over, and what `load` makes of it: arrays from files, then a `DataSet`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from saltflat.data.files import by
from saltflat.data.source import Examples, Provenance

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

    def examples(
        self, provenance: Provenance, name: str, num_classes: int, declared_by: str = ""
    ) -> Examples:
        """The rows as tensors: images as float32 in [0, 1], features as they are, targets as int64."""
        inputs = _tensor(self.inputs)
        if inputs.dtype == torch.uint8:
            inputs = inputs.to(torch.float32).div_(255.0)
        groups = None if self.groups is None else _tensor(self.groups)
        return Examples(inputs, _tensor(self.labels), provenance, name, num_classes, groups, declared_by)


@dataclass(frozen=True, eq=False)
class Raw:
    """One data set as a reader found it.

    ``declared`` is false where the data themselves named the classes; ``lossy`` is true for JPEG images.
    """

    train: Part
    test: Part | None
    classes: tuple[str, ...]
    declared: bool = True
    note: str = ""
    lossy: bool = False


Reader = Callable[[Sequence[Path]], Raw]


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training rows, test rows and public rows, with what is known about them.

    Guarantee: ``train`` and ``public`` share no row, and every part carries its own provenance, so that
    only rows marked ``"private"`` ever cost budget. ``note`` says what a reader of the results must know.
    It never holds a count of rows, which may be secret.

    >>> from saltflat.data import load
    >>> digits = load("digits", public_fraction=0.1)
    >>> print(digits)
    digits: 1297 train (private) + 140 public + 360 test rows of 1x8x8, 10 classes
    >>> digits.train.provenance, digits.public.provenance, digits.classes[:3]
    ('private', 'public', ('0', '1', '2'))
    """

    train: Examples
    test: Examples | None
    public: Examples | None
    num_classes: int
    name: str
    provenance: Provenance = "private"
    note: str = ""
    classes: tuple[str, ...] = ()
    classes_declared: bool = True

    def __str__(self) -> str:
        parts = [f"{len(self.train)} train ({self.provenance})"]
        if self.public is not None:
            parts.append(f"{len(self.public)} public")
        if self.test is not None:
            parts.append(f"{len(self.test)} test")
        shape = by(self.train.inputs.shape[1:])
        return f"{self.name}: {' + '.join(parts)} rows of {shape}, {self.num_classes} classes"

    def __repr__(self) -> str:
        return f"<DataSet {self}>"


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """A tensor over the array's own memory, copied only where that memory cannot be written or is strided."""
    whole = np.ascontiguousarray(array)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy())
