"""Handwritten digits, 8 x 8 pixels: the data set that needs no file, embedded in scikit-learn."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from saltflat.data.raw import Part, Raw

TEST_ROWS = 360


def read_digits(paths: Sequence[Path] = ()) -> Raw:
    """1437 training and 360 test images of 1 x 8 x 8, from the 1797 of scikit-learn.

    The test rows are the last fifth of a fixed permutation (seed 0), the same for everyone: the original
    has no split of its own, and its rows are ordered by writer.

    >>> raw = read_digits()
    >>> raw.train.inputs.shape, len(raw.test), float(raw.train.inputs.max())
    ((1437, 1, 8, 8), 360, 1.0)
    """
    table = _table()
    images = (table[:, :-1].reshape(-1, 1, 8, 8) / 16.0).astype(np.float32)  # pixels count from 0 to 16
    whole = Part(images, table[:, -1].astype(np.int64))
    from saltflat.data.split import permutation  # which needs torch

    order = permutation(len(whole), seed=0)
    return Raw(
        whole.take(order[:-TEST_ROWS]),
        whole.take(order[-TEST_ROWS:]),
        tuple(str(digit) for digit in range(10)),
        note="The test part is the last fifth of a fixed permutation.",
    )


@functools.cache
def _table() -> NDArray[np.float64]:
    """64 pixels and the digit in every row: the file that `sklearn.datasets.load_digits` reads.

    It is read without scikit-learn, whose import takes more than a second of every command, and once a process.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        table = np.loadtxt(file, delimiter=",")
    else:  # it may lie elsewhere in other versions
        from sklearn.datasets import load_digits

        pixels, digits = load_digits(return_X_y=True)
        table = np.column_stack([pixels, digits])
    table.setflags(write=False)
    return table
