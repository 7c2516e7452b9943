"""Rows as a model sees them: missing values filled, cut off at bounds, brought to a length of about one.

All of it is a function of one row and of public numbers: what the user declared, or what a survey released. So it
costs nothing, and treats a row at prediction as it treated rows in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse

from saltflat.errors import InputError
from saltflat.estimators.histograms import REACH, Array

Scaling = Literal["bounds", "rows", "none"]


@dataclass(frozen=True)
class Scaler:
    """How rows are scaled. ``low`` and ``high`` are one number, or one for each feature.

    ``bounds``: cut off at the bounds, the middle of which becomes zero; divided by the square root of the number of
    features, so that rows have a length of one, more or less. ``rows``: every row is brought to length one.
    ``unit`` brings bounds to 0 and 1 instead, which is what scattering expects of images.
    """

    kind: Scaling
    low: Any = None
    high: Any = None
    unit: bool = False

    def __call__(self, rows: Any) -> Array:
        """Rows, dense or sparse, as dense numbers for the model."""
        if sparse.issparse(rows):
            rows = rows.toarray()
        rows = np.asarray(rows, dtype=np.float64)
        if self.kind == "rows":
            with np.errstate(over="ignore", invalid="ignore"):
                largest = np.abs(rows).max(axis=1, keepdims=True)
                rows = rows / np.where(largest > 0, largest, 1.0)  # so that no square overflows
                length = np.linalg.norm(rows, axis=1, keepdims=True)
                return np.asarray(rows / np.where(length > 0, length, 1.0))
        if self.kind == "none":
            return rows
        low, high = np.asarray(self.low, dtype=np.float64), np.asarray(self.high, dtype=np.float64)
        inside = (np.clip(rows, low, high) - low) / (high - low)
        if self.unit:
            return np.asarray(inside)
        return np.asarray((2 * inside - 1) * (REACH / np.sqrt(rows.shape[1])))


def checked_bounds(
    argument: str, bounds: Any, features: int | None = None, names: Sequence[Any] | None = None
) -> tuple[Any, Any]:
    """A pair (low, high) of numbers, or of arrays with one for each feature; anything else is refused.

    A side may also be a Series or dict by column, and the whole a dict {column: (low, high)}: they are brought into
    the order of ``names``, those of the columns.
    """
    expected = "a pair (low, high) with low < high: two numbers" + (
        "" if features is None else f", or two arrays with one for each of {features} features"
    )
    if features is not None and isinstance(bounds, Mapping):
        pairs = in_order(argument, bounds, features, names)
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise InputError(argument, bounds, "{column: (low, high)}", problem="holds something else")
        bounds = [list(side) for side in zip(*pairs)]
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InputError(argument, bounds, expected, problem="is no pair")
    if features is not None:
        bounds = [in_order(argument, side, features, names) for side in bounds]
    try:
        low, high = (np.asarray(side, dtype=np.float64) for side in bounds)
    except (TypeError, ValueError) as error:
        raise InputError(argument, bounds, expected, problem="holds something else") from error
    shapes = {()} if features is None else {(), (features,)}
    if low.shape not in shapes or high.shape not in shapes:
        raise InputError(
            argument, f"shapes {low.shape} and {high.shape}", expected, problem="do not fit the features"
        )
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise InputError(argument, bounds, expected, problem="has a bound that is not finite, or low >= high")
    return low, high


def checked_fill(fill: Any, features: int, names: Sequence[Any] | None = None) -> Array | None:
    """The declared value for what is missing: one, or one for each feature, by column if it is a Series or dict."""
    if fill is None:
        return None
    fill = in_order("fill", fill, features, names)
    expected = f"a number, or one for each of {features} features"
    try:
        values = np.asarray(fill, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError("fill", fill, expected, problem="holds something else") from error
    if values.shape not in ((), (features,)) or not np.isfinite(values).all():
        raise InputError("fill", fill, expected, problem="does not fit, or is not finite")
    return np.broadcast_to(values, (features,))


def in_order(argument: str, values: Any, features: int, names: Sequence[Any] | None) -> Any:
    """What a Series or dict says of each column, in the order of the columns; anything else as it is.

    Rows without names have columns 0, 1, 2, … A Series that was never given an index has these too, and is taken in
    its own order.

    >>> in_order("fill", {"b": 1.0, "a": 2.0}, 2, ["a", "b"])
    [2.0, 1.0]
    """
    if isinstance(values, Mapping):
        keys, found = list(values), list(values.values())
    elif hasattr(values, "index") and hasattr(values, "to_numpy"):  # a Series; pandas need not be installed
        keys, found = list(values.index), list(values.to_numpy())
        if keys == list(range(features)):
            return found
    else:
        return values
    columns = list(range(features)) if names is None else list(names)
    by_column = dict(zip(keys, found))
    lacking = [column for column in columns if column not in by_column]
    unknown = [key for key in keys if key not in columns]
    problem = (
        f"names {unknown[0]!r}, which is no column" if unknown
        else f"lacks the column {lacking[0]!r}" if lacking
        else "names a column twice" if len(keys) > len(columns)
        else ""
    )  # fmt: skip
    if problem:
        raise InputError(
            argument, _listed(keys), f"one value for each of {_listed(columns)}", problem=problem,
            cure="" if names is not None else "X has no names of columns; pass a frame, or an array of values.",
        )  # fmt: skip
    return [by_column[column] for column in columns]


def _listed(keys: Sequence[Any]) -> str:
    shown = ", ".join(repr(key) for key in keys[:6])
    return f"[{shown}]" if len(keys) <= 6 else f"[{shown}, …]"
