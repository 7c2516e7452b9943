"""Rows that can be fetched by index: the one form in which training sees data.

Whatever the user brings (tensors, arrays, a map-style ``Dataset``, a ``DataLoader``) becomes a
`Source`: a length, and ``fetch(indices) -> (inputs, targets)``. Batches are chosen elsewhere, by the
plan's sampling, because the privacy event depends on how they are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data._utils.collate import default_collate

from saltflat.errors import InputError, RefusedError

Provenance = Literal["private", "public", "synthetic"]


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets held in memory, with where they came from.

    ``inputs`` is a tensor, or a tuple or dict of tensors, with one row an example in the first
    dimension. ``provenance`` says whether rows cost budget: only ``"private"`` ones do; ``declared_by``, on
    whose word others do not. ``classes_declared`` is false where the set of classes was read from the rows.
    ``public_sha256`` names the public rows that `load` split off beside these, by
    `saltflat.data.shared_rows.rows_hash`.

    >>> rows = Examples(torch.zeros(5, 3), torch.zeros(5, dtype=torch.long))
    >>> len(rows), rows.provenance, rows.fetch(torch.tensor([0, 4]))[0].shape
    (5, 'private', torch.Size([2, 3]))
    """

    inputs: Any
    targets: Tensor
    provenance: Provenance = "private"
    name: str = ""
    num_classes: int | None = None
    groups: Tensor | None = field(default=None, repr=False)
    declared_by: str = ""
    public_sha256: str = field(default="", repr=False)
    classes_declared: bool = True

    def __post_init__(self) -> None:
        rows = {len(t) for t in tensors_in(self.inputs)} | {len(self.targets)}
        if len(rows) != 1:
            raise InputError(
                "inputs", sorted(rows), "as many rows in every input as in targets",
                problem="differ in length",
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return map_tensors(lambda t: t[index], self.inputs), self.targets[index]

    def fetch(self, indices: Tensor) -> tuple[Any, Tensor]:
        """The rows at ``indices``, in that order."""
        return map_tensors(lambda t: t.index_select(0, indices), self.inputs), self.targets.index_select(
            0, indices
        )

    def subset(self, indices: Tensor, provenance: Provenance | None = None) -> Examples:
        """A new data set of some of the rows."""
        inputs, targets = self.fetch(indices)
        groups = None if self.groups is None else self.groups.index_select(0, indices)
        kind = provenance or self.provenance
        return replace(self, inputs=inputs, targets=targets, provenance=kind, groups=groups)


@runtime_checkable
class Source(Protocol):
    """What training needs of data: how many rows, and any of them by index."""

    def __len__(self) -> int: ...
    def fetch(self, indices: Tensor) -> tuple[Any, Tensor]: ...


@runtime_checkable
class Surveyed(Source, Protocol):
    """A source that can be surveyed before training, and whose rows depend on what was released then.

    ``counts`` are whole numbers, to which each row adds at most one in each of ``columns`` columns. ``learn``
    gets them back with noise. What is fetched before that holds nothing of the rows.
    """

    columns: int

    def counts(self) -> Tensor: ...
    def learn(self, released: Tensor) -> None: ...


@dataclass(frozen=True, eq=False)
class DatasetSource:
    """Any map-style ``Dataset`` of ``(input, target)`` pairs, read row by row and collated.

    Rows may also be dicts with a column ``labels`` or ``label``, as tokenised texts usually are.
    """

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any] = default_collate

    def __len__(self) -> int:
        return len(cast("Sequence[Any]", self.dataset))

    def fetch(self, indices: Tensor) -> tuple[Any, Tensor]:
        """The rows at ``indices``. An empty request is answered from the shape of the first row."""
        rows = [self.dataset[int(i)] for i in indices] or [self.dataset[0]]
        if self.collate is default_collate and isinstance(rows[0], Mapping):
            batch: Any = _columns_of(rows)
        else:
            batch = self.collate(rows)
        if isinstance(batch, Mapping):
            batch = inputs_and_labels(batch)
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise InputError(
                "data", type(batch).__name__, "rows of the form (input, target)",
                problem="does not give pairs",
                cure="Wrap the data set so that each row is a pair; inputs may be tuples or dicts of tensors.",
            )  # fmt: skip
        inputs, targets = batch
        if isinstance(inputs, list):
            inputs = tuple(inputs)
        keep = len(indices)
        return map_tensors(lambda t: t[:keep], inputs), torch.as_tensor(targets)[:keep]


def as_source(data: Any) -> Source:
    """Make a `Source` of what the user brought, or say why it cannot be one.

    >>> len(as_source((np.zeros((4, 2), dtype="float32"), np.zeros(4, dtype="int64"))))
    4
    >>> len(as_source({"input_ids": torch.zeros(3, 5, dtype=torch.long), "labels": torch.zeros(3, dtype=torch.long)}))
    3
    """
    if isinstance(data, DataLoader):
        return _from_loader(data)
    if isinstance(data, Mapping) and any(name in data for name in LABELS):
        data = inputs_and_labels(data)
    if isinstance(data, Examples) or (isinstance(data, Source) and not isinstance(data, Dataset)):
        source: Source = data
    elif isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], Dataset):
        source = Examples(
            map_tensors(torch.as_tensor, _to_tensors(data[0])), torch.as_tensor(_of_frame(data[1]))
        )
    elif isinstance(data, IterableDataset):
        raise RefusedError(
            "An IterableDataset",
            "Poisson sampling must be able to take any row with a fixed probability, and a stream cannot.",
            "Bring a map-style data set, with __len__ and __getitem__.",
        )
    elif (
        hasattr(data, "__len__")
        and hasattr(data, "__getitem__")
        and not isinstance(data, Tensor | np.ndarray | dict)
    ):
        tensors = getattr(data, "tensors", None)  # a TensorDataset: index whole tensors, not rows
        if isinstance(data, Dataset) and isinstance(tensors, tuple) and len(tensors) == 2:
            source = Examples(tensors[0], tensors[1])
        else:
            source = DatasetSource(cast("Dataset[Any]", data))
    else:
        raise InputError(
            "data", data,
            "a pair (inputs, targets) of tensors or arrays, columns with labels, a map-style Dataset, or a DataLoader",
            problem="is not a data set",
        )  # fmt: skip
    if len(source) == 0:
        raise InputError("data", 0, "at least one row", problem="rows: the data set is empty")
    return source


def _from_loader(loader: DataLoader[Any]) -> Source:
    """Take the rows of a loader, whose own batches cannot be accounted; the sampling is the plan's."""
    if isinstance(loader.dataset, IterableDataset):
        return as_source(loader.dataset)
    sampler = loader.sampler
    plain = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(cast("Sequence[Any]", loader.dataset))
    )
    batches: Any = loader.batch_sampler
    whole = batches is None or type(batches) is torch.utils.data.BatchSampler
    if not (plain and whole):
        name = type(sampler).__name__ if not plain else type(batches).__name__
        raise RefusedError(
            f"A DataLoader with {name}",
            "the plan draws its own Poisson batches, and replacing a sampler that weights, repeats or "
            "groups rows would silently change what you asked for.",
            "Pass the data set itself, or a loader with shuffle=True or shuffle=False.",
        )
    if batches is None or loader.collate_fn is default_collate:
        return as_source(loader.dataset)
    return DatasetSource(loader.dataset, loader.collate_fn)


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor of a tensor, tuple or dict of tensors, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_in(v)]
    if isinstance(value, tuple | list):
        return [t for v in value for t in tensors_in(v)]
    raise InputError(
        "inputs", value, "a tensor, or a tuple or dict of tensors", problem="holds something else"
    )


def map_tensors(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``function`` to every leaf of a tensor, tuple or dict of tensors."""
    if isinstance(value, dict):
        return {key: map_tensors(function, v) for key, v in value.items()}
    if isinstance(value, tuple | list):
        return tuple(map_tensors(function, v) for v in value)
    return function(value)


def join_tensors(function: Callable[[list[Any]], Any], values: Sequence[Any]) -> Any:
    """Apply ``function`` to each leaf of several inputs of one form, taken together.

    >>> join_tensors(torch.cat, [{"a": torch.zeros(1)}, {"a": torch.ones(1)}])
    {'a': tensor([0., 1.])}
    """
    first = values[0]
    if isinstance(first, dict):
        return {key: join_tensors(function, [value[key] for value in values]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(join_tensors(function, parts) for parts in zip(*values))
    return function(list(values))


LABELS = ("labels", "label")
"""Columns that hold the targets of tokenised texts, as Hugging Face names them."""


def inputs_and_labels(columns: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Columns that are named inputs of a model, and the one that holds the labels.

    >>> inputs_and_labels({"input_ids": [[1, 2]], "attention_mask": [[1, 1]], "label": [0]})
    ({'input_ids': [[1, 2]], 'attention_mask': [[1, 1]]}, [0])
    """
    found = [name for name in LABELS if name in columns]
    if len(found) != 1:
        raise InputError(
            "data", ", ".join(map(str, columns)), "one column 'labels' or 'label' beside the model's inputs",
            problem="are its columns",
        )  # fmt: skip
    return {name: value for name, value in columns.items() if name != found[0]}, columns[found[0]]


def _columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Rows that are dicts, as one dict of tensors. Lists of numbers are rows too, which torch would turn around."""
    columns = {}
    for name in rows[0]:
        try:
            columns[name] = torch.stack([torch.as_tensor(row[name]) for row in rows])
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            raise InputError(
                "data", str(name), "columns of numbers, of one shape in all rows",
                problem=f"is a column that cannot be a tensor ({error})",
                cure="Leave it out (dataset.remove_columns), and pad texts to one length.",
            ) from error  # fmt: skip
    return columns


def _of_frame(value: Any) -> Any:
    """A frame or a series as an array of numbers; anything else as it is."""
    if not hasattr(value, "to_numpy"):
        return value
    array = value.to_numpy(copy=True)  # a frame's own numbers may not be written
    if array.dtype.kind not in "fiub":
        raise InputError(
            "data", str(array.dtype), "columns of numbers", problem="is the type of a frame's columns together",
            cure="Encode text as numbers; sf.PrivateClassifier takes labels of any kind.",
        )  # fmt: skip
    return array


def _to_tensors(value: Any) -> Any:
    value = _of_frame(value)
    if isinstance(value, Mapping):  # also what a tokenizer returns, which is no dict
        return {
            name: torch.as_tensor(column) if isinstance(column, list) else _to_tensors(column)
            for name, column in value.items()
        }
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return torch.as_tensor(value, dtype=torch.get_default_dtype())  # what a torch model expects
    return map_tensors(_to_tensors, value) if isinstance(value, tuple) else value
