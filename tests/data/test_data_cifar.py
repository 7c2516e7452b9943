"""CIFAR-10 and CIFAR-100: binary records, pickles, archives of either, and image folders."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from data_writers import (
    cifar_pickle,
    cifar_pictures,
    image_bytes,
    pixels,
    write_cifar_binary,
    write_cifar_python,
    write_files,
    write_tar,
)  # fmt: skip

from saltflat import data
from saltflat.data import folders
from saltflat.errors import InputError

NAMES = [("cifar10", 10), ("cifar100", 100)]


def check(loaded: data.DataSet, number: int) -> None:
    """The pixels and fine labels that the writers wrote, in their order."""
    batches = 5 if number == 10 else 1
    expected = np.concatenate([pixels(6, 3072, seed=at) for at in range(batches)]).reshape(-1, 3, 32, 32)
    torch.testing.assert_close(loaded.train.inputs * 255, torch.from_numpy(expected).float())
    assert loaded.train.targets.tolist() == [at * 7 % number for at in range(6)] * batches
    assert loaded.test is not None
    assert len(loaded.test) == 6
    assert loaded.num_classes == number == len(set(loaded.classes))
    assert loaded.note == ""


@pytest.mark.parametrize(("name", "number"), NAMES)
@pytest.mark.parametrize("inner", ["", "{name}", "cifar-{number}-batches-bin"])
def test_binary_form(tmp_path: Path, name: str, number: int, inner: str) -> None:
    if inner.startswith("cifar-") and number == 100:
        inner = "cifar-100-binary"
    write_cifar_binary(tmp_path / inner.format(name=name, number=number), number)
    check(data.load(name, data_dir=tmp_path), number)


@pytest.mark.parametrize(("name", "number"), NAMES)
@pytest.mark.parametrize("python2", [True, False])
def test_python_form(tmp_path: Path, name: str, number: int, python2: bool) -> None:
    write_cifar_python(tmp_path / name, number, python2=python2)
    check(data.load(name, data_dir=tmp_path), number)


@pytest.mark.parametrize(("name", "number"), NAMES)
@pytest.mark.parametrize("form", ["binary", "python"])
def test_archives_are_read_without_unpacking(tmp_path: Path, name: str, number: int, form: str) -> None:
    writer = write_cifar_binary if form == "binary" else write_cifar_python
    files = writer(tmp_path / "source", number)
    members = {f"cifar/{file.name}": file.read_bytes() for file in reversed(files)}  # in any order
    members["cifar/readme.html"] = b"hello"
    place = tmp_path / "data"
    place.mkdir()
    write_tar(place / f"cifar-{number}-{form}.tar.gz", members)
    check(data.load(name, data_dir=place), number)
    assert len(list(place.iterdir())) == 1


def test_an_archive_without_a_batch_is_refused(tmp_path: Path) -> None:
    files = write_cifar_binary(tmp_path / "source")
    write_tar(tmp_path / "cifar-10-binary.tar.gz", {f.name: f.read_bytes() for f in files[:4]})
    with pytest.raises(InputError, match="lacks data_batch_5, test_batch"):
        data.load("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize("cut", [1, 3072, 3073])
def test_a_batch_that_was_cut_is_refused(tmp_path: Path, cut: int) -> None:
    """Even between two records: the training batches must be equally long."""
    files = write_cifar_binary(tmp_path)
    files[2].write_bytes(files[2].read_bytes()[:-cut])
    with pytest.raises(InputError, match=r"data_batch_3\.bin"):
        data.load("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize(("name", "number"), NAMES)
def test_labels_out_of_range_are_refused(tmp_path: Path, name: str, number: int) -> None:
    file = write_cifar_binary(tmp_path, number)[0]
    content = bytearray(file.read_bytes())
    content[0 if number == 10 else 1] = number
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"holds the label {number}"):
        data.load(name, data_dir=tmp_path)


class Runs:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_a_pickle_cannot_run_anything(tmp_path: Path) -> None:
    """Fails when the batches are read by pickle.loads (tried)."""
    marker = tmp_path / "ran"
    file = write_cifar_python(tmp_path)[0]
    file.write_bytes(pickle.dumps({"data": Runs(marker)}, protocol=2))
    with pytest.raises(InputError, match="system, which no batch needs"):
        data.load("cifar10", data_dir=tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "value", [eval, getattr, os.open, np.load, np.frombuffer, Path, bytearray(b"x"), {1, 2}]
)
def test_only_harmless_names_are_known(tmp_path: Path, value: object) -> None:
    file = write_cifar_python(tmp_path)[0]
    for protocol in range(2, 6):
        file.write_bytes(pickle.dumps({b"data": value, b"labels": [0]}, protocol=protocol))
        with pytest.raises(InputError):
            data.load("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {b"data": pixels(2, 3072)},
        {b"data": pixels(2, 3071), b"labels": [0, 1]},
        {b"data": pixels(2, 3072).astype(np.int32), b"labels": [0, 1]},
        {b"data": pixels(2, 3072), b"labels": [0]},
        {b"data": pixels(2, 3072), b"labels": [0, 10]},
        {b"data": pixels(2, 3072), b"labels": [0, -1]},
        {b"data": pixels(2, 3072), b"labels": [0, True]},
        {b"data": pixels(2, 3072), b"labels": "01"},
        {b"data": [1], b"labels": [0]},
        {b"data": np.asfortranarray(pixels(2, 3072)), b"labels": [0, 1]},
    ],
)
def test_batches_of_another_structure_are_refused(tmp_path: Path, content: object) -> None:
    file = write_cifar_python(tmp_path)[0]
    file.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(InputError, match="data_batch_1"):
        data.load("cifar10", data_dir=tmp_path)


def test_a_large_memo_number_does_not_ask_for_memory(tmp_path: Path) -> None:
    file = write_cifar_python(tmp_path)[0]
    batch = cifar_pickle(10, 6, 0)
    file.write_bytes(batch[:-1] + pickle.LONG_BINPUT + b"\xff\xff\xff\xff" + batch[-1:])
    assert len(data.load("cifar10", data_dir=tmp_path).train) == 30


@pytest.mark.parametrize(("kind", "title"), [("jpg", "CIFAR-10 (JPEG)"), ("png", "CIFAR-10, as image files")])
@pytest.mark.parametrize("archive", ["cifar10-jpeg.tar.xz", "cifar10-jpeg.tar.gz", ""])
def test_image_folders(tmp_path: Path, own_places: Path, kind: str, title: str, archive: str) -> None:
    """Decoded once: the second time the pixels come from the cache, and are the same."""
    if archive:
        write_tar(tmp_path / archive, cifar_pictures(kind))
    else:
        write_files(tmp_path / "cifar10", cifar_pictures(kind))
    first = data.load("cifar10", data_dir=tmp_path)
    assert first.note.startswith(title)
    assert first.train.inputs.shape == (20, 3, 32, 32)
    assert first.train.targets.tolist() == [label for label in range(10) for _ in range(2)]
    if kind == "png":
        expected = torch.from_numpy(pixels(32, 32, 3, seed=1)).permute(2, 0, 1).float()
        torch.testing.assert_close(first.train.inputs[1] * 255, expected)
    assert len(list((own_places / "decoded").iterdir())) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "_decode", None)  # nothing may be decoded any more
        again = data.load("cifar10", data_dir=tmp_path)
    assert again.note == first.note
    assert torch.equal(again.train.inputs, first.train.inputs)
    assert torch.equal(again.train.targets, first.train.targets)


def test_a_changed_archive_is_decoded_again(tmp_path: Path) -> None:
    """Fails when the cache is keyed by the archive's path."""
    write_tar(tmp_path / "cifar10-jpeg.tar.xz", cifar_pictures())
    assert len(data.load("cifar10", data_dir=tmp_path).train) == 20
    write_tar(tmp_path / "cifar10-jpeg.tar.xz", cifar_pictures(rows=3))
    assert len(data.load("cifar10", data_dir=tmp_path).train) == 30


def test_a_changed_folder_is_decoded_again(tmp_path: Path) -> None:
    write_files(tmp_path, cifar_pictures())
    assert len(data.load("cifar10", data_dir=tmp_path).train) == 20
    write_files(tmp_path, {"train/cat/9999.jpg": image_bytes(pixels(32, 32, 3), "jpg")})
    assert len(data.load("cifar10", data_dir=tmp_path).train) == 21


def test_a_damaged_cache_is_made_again(tmp_path: Path, own_places: Path) -> None:
    write_tar(tmp_path / "cifar10-jpeg.tar.xz", cifar_pictures())
    first = data.load("cifar10", data_dir=tmp_path)
    (cached,) = (own_places / "decoded").iterdir()
    whole = cached.read_bytes()
    for damage in (b"", whole[:50], whole[:-1], whole[:8] + b"?" + whole[9:]):
        cached.write_bytes(damage)
        assert torch.equal(data.load("cifar10", data_dir=tmp_path).train.inputs, first.train.inputs)
        assert cached.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, own_places: Path) -> None:
    own_places.write_text("a file where the folder should be")
    write_tar(tmp_path / "cifar10-jpeg.tar.xz", cifar_pictures())
    assert len(data.load("cifar10", data_dir=tmp_path).train) == 20


def test_a_link_that_leads_nowhere_is_no_crash(tmp_path: Path) -> None:
    write_files(tmp_path, cifar_pictures())
    (tmp_path / "train" / "cat" / "gone.jpg").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match="cannot be read"):
        data.load("cifar10", data_dir=tmp_path)


def test_pictures_of_another_size_are_not_cifar(tmp_path: Path) -> None:
    small = {name: image_bytes(pixels(16, 16, 3)) for name in cifar_pictures("png")}
    write_files(tmp_path, small)
    with pytest.raises(InputError, match="is not CIFAR-10"):
        data.load("cifar10", data_dir=tmp_path)
