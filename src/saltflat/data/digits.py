"""Handwritten digits, 8 x 8 pixels: the data set that needs no file, embedded in scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from saltflat.data.dataset import Part, Raw
from saltflat.data.split import permutation

TEST_ROWS = 360


def read_digits(paths: Sequence[Path] = ()) -> Raw:
    """1437 training and 360 test images of 1 x 8 x 8, from the 1797 of scikit-learn.

    The test rows are the last fifth of a fixed permutation (seed 0), the same for everyone: the original
    has no split of its own, and its rows are ordered by writer.

    >>> raw = read_digits()
    >>> raw.train.inputs.shape, len(raw.test), float(raw.train.inputs.max())
    ((1437, 1, 8, 8), 360, 1.0)
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = (bunch.images / 16.0).astype(np.float32)[:, None]  # pixels count from 0 to 16
    whole = Part(images, bunch.target.astype(np.int64))
    order = permutation(len(whole), seed=0)
    return Raw(
        whole.take(order[:-TEST_ROWS]),
        whole.take(order[-TEST_ROWS:]),
        tuple(str(digit) for digit in range(10)),
        note="The test part is the last fifth of a fixed permutation.",
    )
