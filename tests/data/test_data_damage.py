"""Whatever happens to a file, the reader answers with its rows or with an `InputError`, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from data_writers import (
    cifar_pictures,
    image_bytes,
    pixels,
    write_cifar_binary,
    write_cifar_python,
    write_emnist_zip,
    write_files,
    write_mnist,
    write_svhn,
    write_tar,
)  # fmt: skip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saltflat import data
from saltflat.errors import InputError

often = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])

Case = tuple[Path, Callable[[], data.DataSet]]  # the file to damage, and how to read it


def idx_plain(folder: Path) -> Case:
    return write_mnist(folder, packed=False)[0], lambda: data.load("mnist", data_dir=folder)


def idx_labels(folder: Path) -> Case:
    return write_mnist(folder, packed=False)[1], lambda: data.load("mnist", data_dir=folder)


def idx_packed(folder: Path) -> Case:
    return write_mnist(folder)[0], lambda: data.load("mnist", data_dir=folder)


def emnist_zip(folder: Path) -> Case:
    write_emnist_zip(folder / "gzip.zip", "digits")
    return folder / "gzip.zip", lambda: data.load("emnist-digits", data_dir=folder)


def cifar_binary(folder: Path) -> Case:
    return write_cifar_binary(folder, rows=2)[0], lambda: data.load("cifar10", data_dir=folder)


def cifar_python(folder: Path) -> Case:
    return write_cifar_python(folder, rows=2)[0], lambda: data.load("cifar10", data_dir=folder)


def cifar_archive(folder: Path) -> Case:
    files = write_cifar_binary(folder / "source", rows=1)
    file = folder / "cifar-10-binary.tar.gz"
    write_tar(file, {f.name: f.read_bytes() for f in files})
    return file, lambda: data.load("cifar10", data_dir=folder)


def cifar_jpeg(folder: Path) -> Case:
    file = folder / "cifar10-jpeg.tar.xz"
    write_tar(file, cifar_pictures(rows=1))
    return file, lambda: data.load("cifar10", data_dir=folder)


def svhn_packed(folder: Path) -> Case:
    return write_svhn(folder, rows=2)[0], lambda: data.load("svhn", data_dir=folder)


def svhn_plain(folder: Path) -> Case:
    return write_svhn(folder, rows=2, packed=False)[0], lambda: data.load("svhn", data_dir=folder)


def image(folder: Path) -> Case:
    write_files(folder / "images", {f"{label}/1.png": image_bytes(pixels(8, 8, 3)) for label in "ab"})
    return folder / "images" / "a" / "1.png", lambda: data.load(folder / "images")


def tar_plain(folder: Path) -> Case:
    write_tar(folder / "i.tar", {f"{label}/1.png": image_bytes(pixels(8, 8, 3)) for label in "ab"})
    return folder / "i.tar", lambda: data.load(folder / "i.tar")


def npz(folder: Path) -> Case:
    np.savez(folder / "a.npz", x=pixels(6, 4), y=np.arange(6) % 2)
    return folder / "a.npz", lambda: data.load(folder / "a.npz", classes=2)


def npz_packed(folder: Path) -> Case:
    np.savez_compressed(folder / "a.npz", x=pixels(6, 4), y=np.arange(6) % 2)
    return folder / "a.npz", lambda: data.load(folder / "a.npz", classes=2)


def csv(folder: Path) -> Case:
    pd.DataFrame({"x": [1.5, 2.5, 3.5], "y": ["a", "b", "a"]}).to_csv(folder / "t.csv", index=False)
    return folder / "t.csv", lambda: data.load(folder / "t.csv", label="y", classes=["a", "b"])


def parquet(folder: Path) -> Case:
    pd.DataFrame({"x": [1.5, 2.5, 3.5], "y": ["a", "b", "a"]}).to_parquet(folder / "t.parquet")
    return folder / "t.parquet", lambda: data.load(folder / "t.parquet", label="y", classes=["a", "b"])


FORMATS = [
    idx_plain, idx_labels, idx_packed, emnist_zip, cifar_binary, cifar_python, cifar_archive, cifar_jpeg,
    svhn_packed, svhn_plain, image, tar_plain, npz, npz_packed, parquet, csv,
]  # fmt: skip


@pytest.fixture(params=FORMATS, ids=lambda case: case.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    made: Case = request.param(tmp_path)
    made[1]()  # whole, it is read
    return made


@pytest.fixture(params=[f for f in FORMATS if f is not csv], ids=lambda case: case.__name__)
def cut_case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """A table of text may be cut after any row and still be one, so csv is left out."""
    made: Case = request.param(tmp_path)
    return made


def undamaged(file: Path) -> bytes:
    """The content before any damage, kept beside the file."""
    whole = file.with_name(file.name + ".whole")
    if not whole.exists():
        whole.write_bytes(file.read_bytes())
    return whole.read_bytes()


def read_or_refused(file: Path, read: Callable[[], object]) -> None:
    """A reader takes the file, or says in a sentence that names it why not."""
    try:
        read()
    except InputError as error:
        assert file.name in str(error)  # noqa: PT017


@often
@given(where=st.floats(0, 1, exclude_max=True))
def test_a_file_that_was_cut_is_refused(cut_case: Case, where: float) -> None:
    """Fails for tar when the archive is not read past its last member, for CIFAR when batches may differ."""
    file, read = cut_case
    content = undamaged(file)
    kept = content[: int(where * len(content))]
    if file.suffix == ".tar" and not any(content[len(kept) - 1024 :]) and len(kept) >= 1024:
        return  # only padding was cut
    file.write_bytes(kept)
    with pytest.raises(InputError) as caught:
        read()
    assert file.name in str(caught.value)


@often
@given(
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4
    )
)
def test_flipped_bytes_never_crash_a_reader(case: Case, changes: list[tuple[float, int]]) -> None:
    file, read = case
    content = bytearray(undamaged(file))
    for where, mask in changes:
        content[int(where * len(content))] ^= mask
    file.write_bytes(content)
    read_or_refused(file, read)


@often
@given(at=st.integers(0, 200), mask=st.integers(1, 255))
def test_flipped_headers_never_crash_a_reader(case: Case, at: int, mask: int) -> None:
    """The first and the last bytes are where formats keep what a reader trusts."""
    file, read = case
    for side in (1, -1):
        content = bytearray(undamaged(file))
        content[(at if side == 1 else -1 - at) % len(content)] ^= mask
        file.write_bytes(content)
        read_or_refused(file, read)


@often
@given(at=st.integers(0, 15), mask=st.integers(1, 255))
def test_every_byte_of_an_idx_header_counts(tmp_path: Path, at: int, mask: int) -> None:
    """No header but the right one fits the length. Fails when trailing bytes are ignored (tried)."""
    file, read = idx_plain(tmp_path)
    content = bytearray(file.read_bytes())
    content[at] ^= mask
    file.write_bytes(content)
    with pytest.raises(InputError, match="train-images"):
        read()


@often
@given(noise=st.binary(max_size=300))
def test_noise_is_not_data(cut_case: Case, noise: bytes) -> None:
    file, read = cut_case
    file.write_bytes(noise)
    with pytest.raises(InputError) as caught:
        read()
    assert file.name in str(caught.value)
