"""Where data sets are looked for, and what is said when they are not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from data_writers import write_cifar_binary, write_mnist, write_svhn

from saltflat import data
from saltflat.data import places
from saltflat.errors import InputError


def test_places_are_searched_in_order(
    tmp_path: Path, own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """data_dir, then SALTFLAT_DATA from left to right, then the cache, then the system."""
    folders = [tmp_path / name for name in ("argument", "left", "right")] + [own_places, tmp_path / "system"]
    monkeypatch.setattr(places, "SYSTEM_DIRS", (tmp_path / "system",))
    monkeypatch.setenv("SALTFLAT_DATA", os.pathsep.join([str(folders[1]), "", str(folders[2])]))
    assert data.locate("mnist", folders[0]) is None
    for folder in reversed(folders):
        files = write_mnist(folder / "mnist")
        assert data.locate("mnist", folders[0]) == files
        assert len(data.load("mnist", data_dir=folders[0]).train) == 20


@pytest.mark.parametrize("inner", ["", "fashion-mnist", "fashion-mnist/raw", "FashionMNIST/raw"])
def test_folders_are_searched_inside_too(tmp_path: Path, inner: str) -> None:
    files = write_mnist(tmp_path / inner)
    assert data.locate("fashion-mnist", tmp_path) == files


def test_where_debian_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert Path("/usr/share/datasets") in places.search_dirs()


def test_a_part_of_the_files_is_not_the_data_set(tmp_path: Path) -> None:
    files = write_mnist(tmp_path / "mnist")
    files[2].unlink()
    assert data.locate("mnist", tmp_path) is None


def test_every_form_is_found(tmp_path: Path) -> None:
    write_cifar_binary(tmp_path / "one" / "cifar-10-batches-bin")
    found = data.locate("cifar10", tmp_path / "one")
    assert found is not None
    assert [file.name for file in found][-1] == "test_batch.bin"
    assert data.locate("cifar100", tmp_path / "one") is None


def test_generic_names_alone_are_not_enough(tmp_path: Path) -> None:
    """Folders train/ and test/, or files train and test, may be anything's."""
    for name in ("train", "test"):
        (tmp_path / "folders" / name / "apples").mkdir(parents=True)
        (tmp_path / name).write_bytes(b"")
    assert data.locate("cifar10", tmp_path / "folders") is None
    assert data.locate("cifar100", tmp_path) is None


def test_what_is_missing_can_be_got(tmp_path: Path, own_places: Path) -> None:
    """The error names the command, the address, the files, the folder and the variable."""
    with pytest.raises(InputError) as caught:
        data.load("svhn")
    text = str(caught.value)
    for needed in (
        "saltflat data fetch svhn",
        "download=True",
        "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
        "train_32x32.mat, test_32x32.mat",
        str(own_places / "svhn"),
        "data_dir=",
        "SALTFLAT_DATA",
    ):
        assert needed in text
    with pytest.raises(InputError, match=f"--data-dir {tmp_path}"):
        data.load("svhn", data_dir=tmp_path)


def test_descriptions(tmp_path: Path) -> None:
    missing = data.describe("svhn")
    assert missing.found is None
    assert (missing.rows, missing.test_rows, missing.classes, missing.shape) == (
        73_257,
        26_032,
        10,
        (3, 32, 32),
    )
    assert "nowhere" in str(missing)
    assert "fetch svhn" in str(missing)
    files = write_svhn(tmp_path)
    found = data.describe("svhn", tmp_path)
    assert found.found == tuple(str(file) for file in files)
    assert str(files[0]) in str(found)
    assert found.as_dict()["licence"] == "non-commercial use only"
    assert "embedded" in str(data.describe("digits"))


def test_names_lists_what_load_knows() -> None:
    assert {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "emnist"} <= set(data.names())
