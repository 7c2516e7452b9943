"""Clients on one machine: the rows of a data set, dealt out. For simulations and tests.

The split follows from a seed and nothing else, so that everyone can repeat it: the command line, a server and every
node of a network make it from the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saltflat import plans
from saltflat.data import DataSet, load
from saltflat.data.people import Rows
from saltflat.data.source import Examples, Source, as_source
from saltflat.data.tables import classes_of
from saltflat.errors import InputError, check_count, check_known, check_positive

KINDS = ("iid", "dirichlet", "column")


@dataclass(frozen=True, eq=False)
class Clients:
    """Rows, and which of them each client has. ``kind`` says how they were dealt, for people."""

    source: Source
    rows_of: tuple[Tensor, ...]
    kind: str = ""

    def __post_init__(self) -> None:
        if not self.rows_of:
            raise InputError("clients", 0, "at least one client", problem="clients: nobody to ask")

    def __len__(self) -> int:
        return len(self.rows_of)

    def rows(self, client: int) -> Rows:
        """All rows of a client."""
        return Rows(*self.source.fetch(self.rows_of[client]))

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        """How many rows of each class each client has, clients x classes: exact numbers, not covered by ε."""
        everyone = self.source.fetch(torch.arange(len(self.source)))[1].numpy()
        counts = [np.bincount(everyone[rows.numpy()], minlength=classes)[:classes] for rows in self.rows_of]
        return np.stack(counts).astype(np.int64)


def partition(
    data: Any,
    clients: int | None = 500,
    *,
    by: str = "iid",
    alpha: float = 0.6,
    column: Any = None,
    seed: int = 0,
) -> Clients:
    """Deal the rows of ``data`` out to clients.

    ``by="iid"``: at random, sizes differ by at most one. ``by="dirichlet"``: each client has its own mix of classes,
    drawn from a symmetric Dirichlet law with concentration ``alpha`` (small: one class a client; large: like iid),
    and as many rows as any other. ``by="column"``: one client for each value of ``column``, or of the groups that
    the data brings; ``clients`` is then not asked.

    >>> rows = Examples(torch.zeros(10, 2), torch.arange(10) % 2)
    >>> [len(rows) for rows in partition(rows, 4).rows_of]
    [3, 3, 2, 2]
    >>> len(partition(rows, by="column", column=torch.tensor([7, 7, 7, 5, 5, 5, 5, 5, 5, 9])))
    3
    """
    check_known("partition", by, KINDS, "'iid', 'dirichlet' or 'column'")
    source = as_source(data)
    if by == "column":
        return Clients(source, _by_column(source, column), "by a column")
    if column is not None:
        raise InputError("column", "given", "partition='column' beside it", problem="is not used")
    if clients is None:
        raise InputError("clients", None, "how many clients there are", problem="is missing")
    check_count("clients", clients)
    check_count("seed", seed, least=0)
    if clients > len(source):
        raise InputError(
            "clients", clients, f"at most one client a row, clients <= {len(source)}",
            problem="is more than there are rows",
        )  # fmt: skip
    random = np.random.Generator(np.random.PCG64(seed))
    if by == "iid":
        order = torch.from_numpy(random.permutation(len(source)))
        return Clients(source, tuple(order.tensor_split(clients)), "at random")
    check_positive("alpha", alpha)
    targets = source.fetch(torch.arange(len(source)))[1]
    if targets.is_floating_point() or targets.dim() != 1:
        raise InputError("partition", by, "targets that are classes", problem="needs classes to mix")
    dealt = _dirichlet(targets.numpy(), clients, alpha, random)
    return Clients(source, tuple(torch.from_numpy(np.sort(rows)) for rows in dealt), f"Dirichlet({alpha:g})")


def _dirichlet(
    labels: NDArray[Any], clients: int, alpha: float, random: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Rows for each client, as nearly in its own mix as what is left of the classes allows; sizes as equal as can be.

    Clients take rows in turns, a share of what each still wants, so that the last one is not left with the scraps.
    """
    kinds, numbered = np.unique(labels, return_inverse=True)
    left = [list(random.permutation(np.flatnonzero(numbered == kind))) for kind in range(len(kinds))]
    mixes = random.dirichlet(np.full(len(kinds), alpha), size=clients)
    wanted = np.full(clients, len(labels) // clients) + (np.arange(clients) < len(labels) % clients)
    rows: list[list[int]] = [[] for _ in range(clients)]
    for turn in range(1, 11):
        for client in random.permutation(clients):
            goal = round(wanted[client] * turn / 10)
            while len(rows[client]) < goal:
                supply = np.array([len(one) for one in left])
                mix = mixes[client] * (supply > 0)
                mix = mix / mix.sum() if mix.sum() > 1e-12 else supply / supply.sum()
                taken = random.multinomial(goal - len(rows[client]), mix)
                for kind, count in enumerate(np.minimum(taken, supply)):
                    rows[client] += [left[kind].pop() for _ in range(count)]
    return [np.array(one, dtype=np.int64) for one in rows]


def _by_column(source: Source, column: Any) -> tuple[Tensor, ...]:
    ids = column if column is not None else (source.groups if isinstance(source, Examples) else None)
    if ids is None:
        raise InputError(
            "column", None, "an id for each row with partition='column'", problem="is missing",
            cure="Pass column=ids, or load the data with group=....",
        )  # fmt: skip
    values: Tensor | Sequence[Any] | NDArray[Any] = ids
    numbers = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    if numbers.ndim != 1 or len(numbers) != len(source):
        raise InputError(
            "column", str(numbers.shape), f"one id for each of the {len(source)} rows", problem="is its shape"
        )
    _, inverse = np.unique(numbers, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    return tuple(torch.from_numpy(part.astype(np.int64)) for part in parts)


def load_rows(words: Mapping[str, Any]) -> DataSet:
    """The data set, with public rows set aside if the words ask for them."""
    return load(
        words["data"],
        data_dir=words.get("data_dir"),
        label=words.get("label"),
        group=words.get("group"),
        image_size=words.get("image_size"),
        classes=classes_of(words.get("classes")),
        public_fraction=words.get("public_fraction"),
    )


def clients_for(data: DataSet, words: Mapping[str, Any]) -> Clients:
    """The rows dealt out as the words say. It follows from the words alone, so all machines deal alike."""
    by = words.get("partition") or ("column" if words.get("group") else "iid")
    seed = words.get("partition_seed")
    if by == "column":
        return partition(data.train, None, by=by)
    clients = words.get("clients")
    return partition(
        data.train, plans.DEFAULT_CLIENTS if clients is None else clients,
        by=by, alpha=0.6 if words.get("alpha") is None else words["alpha"], seed=0 if seed is None else seed,
    )  # fmt: skip
