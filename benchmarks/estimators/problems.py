"""The tables of the comparison, their public bounds and their splits: the same in both environments.

Imports numpy and scikit-learn alone, so that diffprivlib's own environment can read it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.model_selection import train_test_split

PROBLEMS = ("breast-cancer", "digits", "wine", "synthetic")
EPSILONS = (0.5, 1.0, 3.0)


def problem(name: str) -> tuple[Any, Any, Any, Any]:
    """Rows, labels, and public bounds, low and high, one a feature.

    The bounds of breast-cancer and wine are the least and greatest values that their own documentation prints
    (scikit-learn's DESCR); pixels of digits are 0 to 16; those of the synthetic table are chosen, and wide.
    """
    if name in ("breast-cancer", "wine"):
        X, y = (load_wine if name == "wine" else load_breast_cancer)(return_X_y=True)
        return X, y, X.min(0), X.max(0)
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return X, y, np.zeros(64), np.full(64, 16.0)
    X, y = make_classification(
        n_samples=2000, n_features=20, n_informative=8, n_redundant=4, n_classes=3, random_state=7
    )
    return X, y, np.full(20, -8.0), np.full(20, 8.0)


def split(X: Any, y: Any, seed: int) -> tuple[Any, Any, Any, Any]:
    """Seven tenths for training, three for testing."""
    return tuple(train_test_split(X, y, test_size=0.3, random_state=seed, stratify=y))
