"""Small tables for the tests of the estimators, and their public bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer


def two_blobs(rows: int = 200, features: int = 3, seed: int = 0) -> tuple[Any, Any]:
    """Two classes, a few deviations apart."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 2
    return rng.normal(0, 1, (rows, features)) + 1.5 * (2 * y[:, None] - 1), y


def declared(rows: int = 200) -> dict[str, Any]:
    """What is declared of `two_blobs`."""
    return {"population": rows, "classes": [0, 1], "bounds": (-5.0, 5.0), "steps": 5}


def cancer() -> tuple[Any, Any, tuple[Any, Any]]:
    """The breast-cancer table with the bounds that its documentation prints, which are those of all its rows."""
    X, y = load_breast_cancer(return_X_y=True)
    return X, y, (X.min(0), X.max(0))
