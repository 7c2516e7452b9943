"""People with several rows: the unit that is sampled and protected is the person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saltflat.data.source import Source, map_tensors
from saltflat.errors import InputError


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of some units, ``each`` of them a unit, with the weight of each row in its unit's gradient."""

    inputs: Any
    targets: Tensor
    each: int = 1
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device | None) -> Rows:
        """The same rows on the device."""
        inputs = map_tensors(lambda t: t.to(device), self.inputs)
        weights = None if self.weights is None else self.weights.to(device)
        return Rows(inputs, self.targets.to(device), self.each, weights)


class People:
    """A source of rows, grouped by who they belong to.

    Fetching people gives every person the same number of rows: shorter ones are padded with rows of weight
    zero. A person's gradient is the mean over their rows, at most ``most_rows`` of them.

    >>> from saltflat.data.source import Examples
    >>> rows = Examples(torch.arange(5.0)[:, None], torch.zeros(5, dtype=torch.long))
    >>> people = People(rows, torch.tensor([7, 7, 3, 7, 3]))
    >>> len(people), people.fetch_units(torch.tensor([0, 1])).weights
    (2, tensor([0.5000, 0.5000, 0.0000, 0.3333, 0.3333, 0.3333], dtype=torch.float64))
    """

    def __init__(self, source: Source, groups: Any, most_rows: int = 64) -> None:
        ids = torch.as_tensor(groups)
        if ids.dim() != 1 or len(ids) != len(source):
            raise InputError(
                "groups", str(tuple(ids.shape)), f"one id for each of the {len(source)} rows",
                problem="is the shape of the group ids",
            )  # fmt: skip
        self.source = source
        _, inverse = ids.unique(return_inverse=True)
        order = inverse.argsort(stable=True)
        counts = inverse.bincount()
        self.rows_of = [rows[:most_rows] for rows in order.split(counts.tolist())]

    def __len__(self) -> int:
        return len(self.rows_of)

    def fetch(self, indices: Tensor) -> tuple[Any, Tensor]:
        """The first row of each of these people, for a look at the shapes."""
        return self.source.fetch(torch.stack([self.rows_of[int(i)][0] for i in indices]))

    def fetch_units(self, indices: Tensor) -> Rows:
        """All rows of these people, padded to the longest."""
        chosen = [self.rows_of[int(i)] for i in indices]
        each = max(len(rows) for rows in chosen)
        padded = torch.stack([torch.cat([rows, rows[:1].expand(each - len(rows))]) for rows in chosen])
        lengths = torch.tensor([len(rows) for rows in chosen])
        weights = (torch.arange(each)[None] < lengths[:, None]).double() / lengths[:, None]
        inputs, targets = self.source.fetch(padded.flatten())
        return Rows(inputs, targets, each, weights.flatten())


def units_of(source: Source, indices: Tensor, device: torch.device | None) -> Rows:
    """The rows of some units of any source, on the device: one a unit, unless the units are people."""
    rows = source.fetch_units(indices) if isinstance(source, People) else Rows(*source.fetch(indices))
    return rows.to(device)
