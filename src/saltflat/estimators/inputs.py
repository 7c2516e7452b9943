"""What the user brings, checked by scikit-learn's own rules: tables, frames, images, sparse rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import validate_data

from saltflat.errors import InputError, check_count
from saltflat.estimators.scaling import checked_fill

Shape = tuple[int, int, int]
"""Colours, height and width of an image."""


def read_rows(
    estimator: Any, X: Any, y: Any = None, *, reset: bool, numeric_y: bool = False
) -> tuple[Any, Any, Shape | None]:
    """Rows as a matrix (dense or CSR, nothing missing), the targets, and the shape of images if they are some.

    Sets ``n_features_in_`` and ``feature_names_in_`` where ``reset``, and compares with them otherwise. Images of
    n × h × w or n × c × h × w are laid out flat.
    """
    X, shape = _flat(X)
    fill = estimator.fill
    settings: dict[str, Any] = {
        "accept_sparse": "csr",
        "dtype": np.float64,
        "ensure_all_finite": True if fill is None else "allow-nan",
    }
    try:
        if y is None and reset:
            validate_data(estimator, X, None, **settings)  # says what is missing in its own words
            raise InputError("y", None, "a target for every row", problem="is missing: y cannot be None")
        if y is None:
            rows, targets = validate_data(estimator, X, reset=False, **settings), None
        else:
            rows, targets = validate_data(
                estimator, X, y, reset=reset, y_numeric=numeric_y, multi_output=False, **settings
            )
    except ValueError as error:
        if fill is None and "NaN" in str(error) and "X" in str(error):
            raise InputError(
                "X", "NaN", "finite numbers, or a declared value for what is missing",
                problem="is among the rows",
                cure="Declare one: fill=0.0, or one for each feature. Learning it from the rows would cost budget.",
            ) from error  # fmt: skip
        if "could not convert string" in str(error):  # and goes on with a cell of the private rows
            raise InputError(
                "X", type(X).__name__, "numbers", problem="holds text",
                cure="Encode such columns as numbers, or leave them out.",
            ) from None  # fmt: skip
        raise
    fill = checked_fill(fill, rows.shape[1], getattr(estimator, "feature_names_in_", None))
    return _filled(rows, fill), targets, _shape(estimator, shape, rows.shape[1])


def _flat(X: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Images laid out flat, and their shape."""
    dimensions = getattr(X, "ndim", None)
    if dimensions not in (3, 4) or sparse.issparse(X):
        return X, None
    images = np.asarray(X)
    if images.size == 0:
        raise InputError("X", str(images.shape), "at least one image", problem="holds none")
    return images.reshape(len(images), -1), images.shape[1:]


def _shape(estimator: Any, found: tuple[int, ...] | None, features: int) -> Shape | None:
    """The shape of an image: that of the rows, or the declared one."""
    declared = estimator.image_shape
    shape = found if found is not None else declared
    if shape is None:
        return None
    if not isinstance(shape, tuple | list) or len(shape) not in (2, 3):
        raise InputError("image_shape", shape, "(height, width), or (colours, height, width)")
    for side in shape:
        check_count("image_shape", side)
    whole = (1, *shape) if len(shape) == 2 else tuple(shape)
    if math.prod(whole) != features:
        raise InputError(
            "image_shape", str(tuple(shape)), f"a shape of {features} numbers, as the rows have",
            problem=f"has {math.prod(whole)}",
        )  # fmt: skip
    if declared is not None and found is not None and tuple(declared) not in (whole, whole[1:]):
        raise InputError("image_shape", str(declared), f"{whole}, as the rows are, or None")
    return whole[0], whole[1], whole[2]


def _filled(rows: Any, fill: Any) -> Any:
    """The rows with the declared value where something is missing."""
    if fill is None:
        return rows
    if sparse.issparse(rows):
        missing = np.isnan(rows.data)
        if missing.any():
            rows = rows.copy()
            rows.data[missing] = fill[rows.indices[missing]]
        return rows
    missing = np.isnan(rows)
    return np.where(missing, fill, rows) if missing.any() else rows
