"""SVHN, from MATLAB files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_writers import pixels, write_svhn
from scipy.io import savemat

from saltflat import data
from saltflat.errors import InputError


@pytest.mark.parametrize("packed", [True, False])
def test_pixels_and_labels(tmp_path: Path, packed: bool) -> None:
    """Fails when the label 10 is not read as the digit 0, or the axes are exchanged."""
    write_svhn(tmp_path / "svhn", rows=12, packed=packed)
    loaded = data.load("svhn", data_dir=tmp_path)
    stored = torch.from_numpy(pixels(32, 32, 3, 12)).permute(3, 2, 0, 1)
    torch.testing.assert_close(loaded.train.inputs * 255, stored.float())
    assert loaded.train.targets.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert loaded.test is not None
    assert loaded.num_classes == 10


def test_a_gzipped_file_is_read_too(tmp_path: Path) -> None:
    for file in write_svhn(tmp_path):
        (tmp_path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert len(data.load("svhn", data_dir=tmp_path).train) == 6


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"X": pixels(32, 32, 3, 4)}, "lacks the variables"),
        ({"X": pixels(32, 32, 4), "y": np.ones((4, 1), np.uint8)}, "32x32x4"),
        ({"X": pixels(32, 32, 3, 4), "y": np.ones((3, 1), np.uint8)}, "4 images"),
        ({"X": pixels(32, 32, 3, 4), "y": np.zeros((4, 1), np.uint8)}, "holds the label 0"),
        ({"X": pixels(32, 32, 3, 4), "y": np.full((4, 1), 11, np.uint8)}, "holds the label 11"),
        ({"X": pixels(32, 32, 3, 4) / 255, "y": np.ones((4, 1), np.uint8)}, "float64"),
        ({"X": pixels(32, 32, 3, 4), "y": np.ones((2, 2), np.uint8)}, "2x2"),
        ({"X": "text", "y": "text"}, "plain numeric array"),
    ],
)
def test_files_of_another_structure_are_refused(
    tmp_path: Path, content: dict[str, Any], complaint: str
) -> None:
    write_svhn(tmp_path)
    savemat(tmp_path / "train_32x32.mat", content)
    with pytest.raises(InputError, match=complaint) as caught:
        data.load("svhn", data_dir=tmp_path)
    assert "train_32x32.mat" in str(caught.value)
