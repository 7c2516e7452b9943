"""Rows as a model sees them: missing values filled, cut off at bounds, brought to a length of about one.

All of it is a function of one row and of public numbers: what the user declared, or what a survey released. So it
costs nothing, and treats a row at prediction as it treated rows in training.
"""

from __future__ import annotations

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


def checked_bounds(argument: str, bounds: Any, features: int | None = None) -> tuple[Any, Any]:
    """A pair (low, high) of numbers, or of arrays with one for each feature; anything else is refused."""
    expected = "a pair (low, high) with low < high: two numbers" + (
        "" if features is None else f", or two arrays with one for each of {features} features"
    )
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InputError(argument, bounds, expected, problem="is no pair")
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


def checked_fill(fill: Any, features: int) -> Array | None:
    """The declared value for what is missing: one, or one for each feature."""
    if fill is None:
        return None
    expected = f"a number, or one for each of {features} features"
    try:
        values = np.asarray(fill, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError("fill", fill, expected, problem="holds something else") from error
    if values.shape not in ((), (features,)) or not np.isfinite(values).all():
        raise InputError("fill", fill, expected, problem="does not fit, or is not finite")
    return np.broadcast_to(values, (features,))
