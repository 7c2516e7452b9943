"""What `load` makes of the arrays that a reader found: tensors, and a `DataSet` of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from saltflat.data.files import by
from saltflat.data.raw import Part
from saltflat.data.source import Examples, Provenance


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
    columns: tuple[str, ...] = ()

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


def examples_of(
    part: Part, provenance: Provenance, name: str, num_classes: int, declared_by: str = "",
    classes_declared: bool = True,
) -> Examples:  # fmt: skip
    """The rows as tensors: images as float32 in [0, 1], features as they are, targets as int64."""
    inputs = _tensor(part.inputs)
    if inputs.dtype == torch.uint8:
        inputs = inputs.to(torch.float32).div_(255.0)
    groups = None if part.groups is None else _tensor(part.groups)
    return Examples(
        inputs, _tensor(part.labels), provenance, name, num_classes, groups, declared_by,
        classes_declared=classes_declared,
    )  # fmt: skip


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """A tensor over the array's own memory, copied only where that memory cannot be written or is strided."""
    whole = np.ascontiguousarray(array)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy())
