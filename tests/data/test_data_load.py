"""What `load` promises whatever the data: shapes, provenance, options, errors, and no heavy imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_writers import write_mnist
from sklearn.datasets import load_digits

from saltflat import data
from saltflat.data import digits as embedded
from saltflat.data.catalogue import CATALOGUE
from saltflat.errors import InputError


def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from its file, and through its function where there is no such file."""
    pixels, labels = load_digits(return_X_y=True)
    expected = np.column_stack([pixels, labels])
    assert np.array_equal(embedded._table.__wrapped__(), expected)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert np.array_equal(embedded._table.__wrapped__(), expected)


def test_digits_are_always_the_same_split() -> None:
    """These numbers are a promise: the quickstart's figures rest on this split."""
    digits = data.load("digits")
    assert digits.test is not None
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert digits.train.inputs.shape[1:] == (1, 8, 8)
    assert (digits.train.inputs.min(), digits.train.inputs.max()) == (0, 1)
    assert digits.test.targets[:12].tolist() == [6, 2, 4, 2, 4, 1, 9, 3, 0, 5, 7, 4]
    other = data.load("digits", seed=7)
    assert torch.equal(other.train.inputs, digits.train.inputs)


def test_provenance_is_private_unless_declared() -> None:
    digits = data.load("digits", public_fraction=0.04)
    assert digits.public is not None
    assert digits.test is not None
    assert (digits.train.provenance, digits.test.provenance, digits.public.provenance) == ("private",) * 2 + (
        "public",
    )
    assert len(digits.train) + len(digits.public) == 1437
    assert len(digits.public) == 60
    assert torch.bincount(digits.public.targets).tolist() == [6] * 10
    assert "declared public" in digits.note
    declared = data.load("digits", provenance="public")
    assert declared.provenance == declared.train.provenance == "public"
    assert declared.public is None


def test_rows_that_are_public_need_no_public_part() -> None:
    with pytest.raises(InputError, match="public_fraction"):
        data.load("digits", provenance="public", public_fraction=0.1)
    with pytest.raises(InputError, match="provenance"):
        data.load("digits", provenance="secret")  # type: ignore[arg-type]


def test_the_note_never_counts_rows(tmp_path: Path) -> None:
    """The number of private rows may be secret, and notes end up in run folders."""
    write_mnist(tmp_path, rows=60)
    note = data.load("mnist", data_dir=tmp_path, public_fraction=0.5).note
    assert "60" not in note
    assert "30" not in note


def test_no_heavy_package_is_imported_before_it_is_needed() -> None:
    """The chapter by itself, under a bare package: what the other chapters import is their affair."""
    heavy = ("PIL", "pandas", "pyarrow", "scipy", "sklearn", "safetensors")
    package = str(Path(data.__file__).parents[1])
    code = (
        "import sys, types; bare = sys.modules['saltflat'] = types.ModuleType('saltflat')\n"
        f"bare.__path__ = [{package!r}]\n"
        f"import saltflat.data; saltflat.data.load('digits'); print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("digits", {"label": "y"}, "label"),
        ("digits", {"classes": 10}, "classes"),
        ("digits", {"image_size": 8}, "image_size"),
        ("digits", {"split": "letters"}, "split"),
        ("digits", {"test_fraction": 0.2}, "has a test part"),
        ("emnist", {"split": "leters"}, "Did you mean 'letters'"),
        ("emnist-letters", {"split": "digits"}, "split"),
        ("a.npz", {"label": "y"}, "label"),
        ("a.npz", {"group": "y"}, "group"),
        ("a.npz", {"image_size": 8}, "image_size"),
        ("a.npz", {"split": "letters"}, "split"),
        ("t.csv", {"label": "y", "image_size": 8}, "image_size"),
        (".", {"image_size": (8, 0)}, "image_size"),
        (".", {"image_size": (8, 8, 8)}, "image_size"),
        (".", {"image_size": 0}, "image_size"),
        (".", {"image_size": True}, "image_size"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat").mkdir()
    np.savez("a.npz", x=np.zeros((2, 2)), y=[0, 1])
    Path("t.csv").write_text("x,y\n1,a\n2,b\n")
    with pytest.raises(InputError, match=complaint):
        data.load(name, **options)


def test_names_are_forgiving_and_errors_suggest() -> None:
    assert data.describe("Fashion_MNIST").name == data.describe("fmnist").name == "fashion-mnist"
    assert data.describe("CIFAR-10").name == "cifar10"
    with pytest.raises(InputError, match="Did you mean 'fashion-mnist'"):
        data.load("fashion-minst")
    with pytest.raises(InputError, match="Did you mean 'cifar10'"):
        data.describe("cifar1")
    for nothing in ("/no/such/file.csv", "x" * 5000, "a\0b"):
        with pytest.raises(InputError, match="neither known nor there"):
            data.load(nothing)
    for no_name in (3, "", None):
        with pytest.raises(InputError, match="is neither"):
            data.load(no_name)  # type: ignore[arg-type]


def test_a_name_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits").mkdir()
    assert data.load("digits").name == "digits"
    with pytest.raises(InputError, match="class folders"):
        data.load("./digits")


def test_a_folder_of_a_known_data_set_is_recognised(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    with pytest.raises(InputError, match=r'load\("mnist", data_dir='):
        data.load(tmp_path)


def test_a_file_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"x")
    with pytest.raises(InputError, match=r"\.npz, \.csv, \.parquet"):
        data.load(tmp_path / "a.xlsx")


def test_what_is_loaded_trains(tmp_path: Path) -> None:
    """A `DataSet`'s parts are sources: rows by index, with the shapes a model expects."""
    write_mnist(tmp_path)
    train = data.load("mnist", data_dir=tmp_path).train
    inputs, targets = data.as_source(train).fetch(torch.tensor([3, 1]))
    assert inputs.shape == (2, 1, 28, 28)
    assert targets.tolist() == [3, 1]


def test_printing_is_short() -> None:
    digits = data.load("digits")
    assert str(digits) == "digits: 1437 train (private) + 360 test rows of 1x8x8, 10 classes"
    assert len(repr(digits)) < 100


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_every_entry_is_complete(name: str) -> None:
    entry = CATALOGUE[name]
    assert entry.name == name
    assert len(set(entry.classes)) == len(entry.classes) >= 2
    assert entry.rows > entry.test_rows > 0
    assert entry.licence
    assert entry.source.startswith("http")
    for download in entry.downloads:
        assert download.sha256 or download.md5
        assert any(
            download.file.removesuffix(".gz") in (f.removesuffix(".gz") for f in form.files)
            for form in entry.forms
        )
        assert all(url.endswith(download.file) for url in download.urls)
