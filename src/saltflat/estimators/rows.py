"""The private rows of an estimator as a `Source`: surveyed if need be, scaled when they are fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from saltflat.errors import InputError
from saltflat.estimators.histograms import BUCKETS, Array, Place, histogram, places
from saltflat.estimators.scaling import Scaler

AT_ONCE = 512
MOST_BYTES = 64 * 2**20
Answer = Callable[[list[Place], Array | None], None]
"""Takes in what a survey found: the places of columns, and noised class counts."""


@dataclass(eq=False)
class Surveying:
    """The columns of a survey: numbers, whose place is asked for, and classes, whose counts are.

    Each column is a histogram in which a row stands once, or not at all; so the whole moves by at most √columns.
    """

    numbers: list[Array]
    classes: NDArray[np.int64] | None = None
    class_count: int = 0

    @property
    def columns(self) -> int:
        """How many histograms there are."""
        return len(self.numbers) + (self.classes is not None)

    def counts(self) -> Tensor:
        """All histograms, one behind the other: private."""
        parts = [histogram(column) for column in self.numbers]
        if self.classes is not None:
            parts.append(np.bincount(self.classes, minlength=self.class_count))
        return torch.from_numpy(np.concatenate(parts))

    def read(self, released: Tensor, deviation: float) -> tuple[list[Place], Array | None]:
        """Places and class counts, from the counts with their noise."""
        values = released.numpy()
        split = len(self.numbers) * BUCKETS
        found = places(values[:split].reshape(-1, BUCKETS), deviation) if self.numbers else []
        return found, None if self.classes is None else values[split:]


@dataclass(eq=False)
class TableRows:
    """Rows of a table. Dense ones are scaled once; sparse ones when they are fetched, and never are dense all at once.

    Before a survey is answered, what is fetched is zeros of the right form: the checks before the first release
    then see nothing of the rows.
    """

    rows: Any
    targets: Tensor
    shape: tuple[int, ...]
    scaler: Scaler | None
    surveying: Surveying | None = None
    deviation: float = 0.0
    answer: Answer = lambda places, counts: None
    transform: Callable[[Tensor], Tensor] | None = None
    ready: Tensor | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def rows_at_once(self) -> int:
        """How many rows training may fetch at once; dense ones are in memory in any case."""
        return rows_at_once(self.rows) if sparse.issparse(self.rows) else AT_ONCE

    @property
    def columns(self) -> int:
        """How many columns the survey has."""
        return 0 if self.surveying is None else self.surveying.columns

    def counts(self) -> Tensor:
        """What the survey counts; private."""
        if self.surveying is None:
            raise InputError("survey", None, "a survey in the plan of these rows", problem="is missing")
        return self.surveying.counts()

    def learn(self, released: Tensor) -> None:
        """Read bounds and class counts from what the survey released."""
        assert self.surveying is not None
        self.answer(*self.surveying.read(released, self.deviation))

    def fetch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at ``indices``, scaled."""
        if self.scaler is None:
            return torch.zeros(len(indices), *self.shape), torch.zeros_like(self.targets[indices])
        targets = self.targets.index_select(0, indices)
        if sparse.issparse(self.rows):
            return self.inputs(self.rows[indices.numpy()]), targets
        if self.ready is None:
            self.ready = self.inputs(self.rows)
        return self.ready.index_select(0, indices), targets

    def inputs(self, rows: Any) -> Tensor:
        """What the model gets of some rows."""
        assert self.scaler is not None
        return as_inputs(rows, self.scaler, self.shape, self.transform)


def rows_at_once(rows: Any) -> int:
    """How many rows are made dense at once: as many as fit into 64 MiB in float64, and at most 512.

    >>> rows_at_once(np.zeros((9, 100))), rows_at_once(sparse.csr_matrix((9, 2**20)))
    (512, 8)
    """
    return max(1, min(AT_ONCE, MOST_BYTES // (8 * rows.shape[1])))


def as_inputs(
    rows: Any,
    scaler: Scaler,
    shape: tuple[int, ...],
    transform: Callable[[Tensor], Tensor] | None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Rows as a model takes them: scaled, in the shape of one example, transformed."""
    scaled = torch.tensor(scaler(rows), dtype=dtype)  # a copy: rows may be read-only
    if transform is not None:
        return transform(scaled)
    return scaled.reshape(len(scaled), *shape)
