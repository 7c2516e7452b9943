"""MNIST, Fashion-MNIST and EMNIST, from files in the IDX format."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from data_writers import idx_bytes, pixels, write_emnist_zip, write_mnist

from saltflat import data
from saltflat.data.catalogue import CATALOGUE
from saltflat.data.idx import EMNIST_SPLITS, FASHION_CLASSES, read_mnist
from saltflat.errors import InputError


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_pixels_and_labels_are_those_of_the_file(tmp_path: Path, name: str, packed: bool) -> None:
    """Fails when images are scaled by 256, or train and test are exchanged."""
    write_mnist(tmp_path / name, packed=packed)
    loaded = data.load(name, data_dir=tmp_path)
    expected = torch.from_numpy(pixels(20, 28, 28, seed=20))[:, None]
    torch.testing.assert_close(loaded.train.inputs * 255, expected.float())
    assert loaded.train.inputs.dtype == torch.float32
    assert 0 <= loaded.train.inputs.min() <= loaded.train.inputs.max() <= 1
    assert loaded.train.targets.tolist() == [*range(10)] * 2
    assert loaded.train.targets.dtype == torch.int64
    assert loaded.test is not None
    assert loaded.test.inputs.shape == (10, 1, 28, 28)
    assert (loaded.num_classes, loaded.provenance, loaded.public) == (10, "private", None)
    assert loaded.train.num_classes == 10


def test_file_names_with_a_dot_are_found_too(tmp_path: Path) -> None:
    for file in write_mnist(tmp_path, packed=False):
        file.rename(tmp_path / file.name.replace("-idx", ".idx"))
    assert len(data.load("mnist", data_dir=tmp_path).train) == 20


def test_fashion_classes_have_their_names(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    assert data.load("fashion_mnist", data_dir=tmp_path).classes == FASHION_CLASSES


@pytest.mark.parametrize("split", list(EMNIST_SPLITS))
def test_emnist_is_turned_the_right_way(tmp_path: Path, split: str) -> None:
    """Fails when rows and columns of EMNIST's images are left exchanged, or its letters counted from 1."""
    first = 1 if split == "letters" else 0
    write_mnist(tmp_path / "emnist", prefix=f"emnist-{split}-", first=first)
    loaded = data.load("emnist", split=split, data_dir=tmp_path)
    stored = torch.from_numpy(pixels(20, 28, 28, seed=20))
    torch.testing.assert_close(loaded.train.inputs[:, 0] * 255, stored.transpose(1, 2).float())
    assert loaded.train.targets.tolist() == [*range(10)] * 2
    assert loaded.num_classes == len(EMNIST_SPLITS[split].classes)
    assert split in loaded.note


def test_emnist_is_read_from_the_archive_of_all_splits(tmp_path: Path) -> None:
    write_emnist_zip(tmp_path / "gzip.zip", "letters", first=1)
    loaded = data.load("emnist-letters", data_dir=tmp_path)
    assert (len(loaded.train), loaded.num_classes) == (20, 26)
    with pytest.raises(InputError, match="emnist-digits-train-images"):
        data.load("emnist-digits", data_dir=tmp_path)


def test_published_numbers_of_classes() -> None:
    sizes = {name: len(split.classes) for name, split in EMNIST_SPLITS.items()}
    assert sizes == {"balanced": 47, "letters": 26, "digits": 10, "mnist": 10, "byclass": 62, "bymerge": 47}


def _rewrite(file: Path, array: np.ndarray) -> None:
    file.write_bytes(gzip.compress(idx_bytes(array)))


@pytest.mark.parametrize(
    ("at", "array", "complaint"),
    [
        (0, pixels(20, 27, 28), "27x28"),
        (0, pixels(19, 28, 28), "20 labels for the 19 images"),
        (0, pixels(20, 28), "3-dimensional"),
        (0, pixels(0, 28, 28), "at least one"),
        (1, np.full(20, 10, np.uint8), "holds the label 10"),
        (3, np.zeros(11, np.uint8), "11 labels for the 10 images"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path: Path, at: int, array: np.ndarray, complaint: str) -> None:
    files = write_mnist(tmp_path)
    _rewrite(files[at], array)
    with pytest.raises(InputError, match=complaint) as caught:
        data.load("mnist", data_dir=tmp_path)
    assert "ubyte.gz" in str(caught.value)


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    files = write_mnist(tmp_path, packed=False)
    files[0].write_bytes(files[0].read_bytes() + b"\0")
    with pytest.raises(InputError, match="its header says 20x28x28"):
        data.load("mnist", data_dir=tmp_path)


def test_the_files_of_another_data_set_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST and Fashion-MNIST differ in nothing but their pixels; the labels' checksum gives them away."""
    files = write_mnist(tmp_path, packed=False)
    others = {hashlib.sha256(files[1].read_bytes()).hexdigest(): "mnist"}
    fashion = CATALOGUE["fashion-mnist"]
    form = replace(fashion.forms[0], read=partial(read_mnist, classes=fashion.classes, others=others))
    monkeypatch.setitem(CATALOGUE, "fashion-mnist", replace(fashion, forms=(form,)))
    with pytest.raises(InputError, match="belongs to mnist"):
        data.load("fashion-mnist", data_dir=tmp_path)


def test_a_folder_named_after_another_data_set_is_not_looked_in(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    assert data.locate("mnist", tmp_path / "mnist") is not None
    assert data.locate("fashion-mnist", tmp_path / "mnist") is None
