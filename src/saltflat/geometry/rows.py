"""Which rows the geometry is measured on, and what may be said about the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from saltflat.data import DataSet
from saltflat.data.source import Examples, Source, as_source
from saltflat.errors import InputError
from saltflat.training.evaluate import coverage

Split = Literal["test", "public", "train"]

PUBLIC = "public rows: no ε is needed"
TEST = "test rows, not trained on: not covered by ε"
TRAIN = "PRIVATE TRAINING ROWS: NOT COVERED BY ε"
UNKNOWN = "not covered by ε"


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to measure on. ``covered`` is the label that every number and picture about them carries."""

    source: Source
    name: str
    split: str
    covered: str

    def __len__(self) -> int:
        return len(self.source)

    @property
    def is_private(self) -> bool:
        """Whether these are private training rows."""
        return self.covered == TRAIN

    def facts(self, count: int) -> dict[str, Any]:
        """What is stored beside numbers about so many of them."""
        return {"name": self.name, "split": self.split, "rows": count, "covered": self.covered}


def rows_of(data: DataSet, split: Split | None = None, *, private: bool = False) -> Rows:
    """A part of a data set to measure on: public rows if there are any, else test rows.

    Guarantee: private training rows are used only with ``split="train"`` *and* ``private=True``. Losses,
    curvature and gradient norms of private rows are exact numbers about them, and no ε covers these; the label
    says so.

    >>> from saltflat.data import load
    >>> rows_of(load("digits")).covered
    'test rows, not trained on: not covered by ε'
    >>> rows_of(load("digits"), "train")
    Traceback (most recent call last):
    saltflat.errors.InputError: split='train' asks for exact numbers about private training rows.
      Expected 'test' or 'public', or private=True beside it. The numbers will not be covered by ε.
    """
    if split is not None and split not in get_args(Split):
        raise InputError("split", split, f"one of {', '.join(get_args(Split))}")
    if split is None:
        split = "public" if data.public is not None else "test"
    part: Examples | None = {"test": data.test, "public": data.public, "train": data.train}[split]
    if part is None:
        raise InputError(
            "split", split, "rows that the data has", problem=f"is asked for, and {data.name} has no such rows",
            cure="Choose another split, or other data.",
        )  # fmt: skip
    if coverage(part) is None:
        return Rows(part, data.name, split, PUBLIC)
    if split == "train" and not private:
        raise InputError(
            "split", split, "'test' or 'public', or private=True beside it",
            problem="asks for exact numbers about private training rows",
            cure="The numbers will not be covered by ε.",
        )  # fmt: skip
    return Rows(part, data.name, split, TRAIN if split == "train" else TEST)


def as_rows(data: Any) -> Rows:
    """Rows from whatever `saltflat.fit` takes. Unless they are marked public, the label is "not covered by ε"."""
    if isinstance(data, Rows):
        return data
    if isinstance(data, DataSet):
        return rows_of(data)
    source = as_source(data)
    name = source.name if isinstance(source, Examples) else ""
    public = coverage(data) is None
    return Rows(source, name or "rows", "public" if public else "test", PUBLIC if public else UNKNOWN)
