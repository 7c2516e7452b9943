"""Arrays and tables that belong to the user: .npz, .csv and .parquet."""

from __future__ import annotations

import gzip
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from data_writers import pixels

from saltflat import data
from saltflat.errors import InputError, MissingDependencyError

FRAME = pd.DataFrame(
    {
        "age": [30, 40, 50, 60],
        "height": [1.5, 1.6, np.nan, 1.8],
        "member": [True, False, True, False],
        "person": ["ann", "bob", "ann", "eve"],
        "risk": ["low", "high", "low", "mid"],
    }
)


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_a_table_becomes_features_and_classes(tmp_path: Path, name: str) -> None:
    path = write(FRAME, tmp_path / name)
    loaded = data.load(path, label="risk", group="person")
    assert loaded.train.inputs.dtype == torch.float32
    expected = torch.tensor([[30, 1.5, 1], [40, 1.6, 0], [50, torch.nan, 1], [60, 1.8, 0]])
    torch.testing.assert_close(loaded.train.inputs, expected, equal_nan=True)
    assert loaded.classes == ("high", "low", "mid")
    assert loaded.train.targets.tolist() == [1, 0, 1, 2]
    assert loaded.train.groups is not None
    assert loaded.train.groups.tolist() == [0, 1, 0, 2]
    assert (loaded.test, loaded.num_classes) == (None, 3)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_classes_read_from_the_data_are_noted(tmp_path: Path, name: str) -> None:
    path = write(FRAME.drop(columns="person"), tmp_path / name)
    found = data.load(path, label="risk")
    assert not found.classes_declared
    assert "zero-out" in found.note
    declared = data.load(path, label="risk", classes=["low", "mid", "high", "top"])
    assert declared.classes_declared
    assert declared.note == ""
    assert declared.num_classes == 4
    assert declared.train.targets.tolist() == [0, 2, 0, 1]
    with pytest.raises(InputError, match="holds the label 'mid'"):
        data.load(path, label="risk", classes=["low", "high"])


def test_labels_stay_text_in_a_csv_file(tmp_path: Path) -> None:
    """ "01" is a name. Fails when the column is left to type inference."""
    (tmp_path / "t.csv").write_text("x,y\n1,01\n2,10\n3,9\n")
    assert data.load(tmp_path / "t.csv", label="y").classes == ("01", "9", "10")


@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_whole_numbers_sort_as_numbers(tmp_path: Path, kind: str) -> None:
    frame = pd.DataFrame({"x": [1.0, 2, 3], "y": np.array([10, 9, -1]).astype(kind)})
    loaded = data.load(write(frame, tmp_path / "t.parquet"), label="y")
    assert loaded.classes == ("-1", "9", "10")
    assert data.load(tmp_path / "t.parquet", label="y", classes=[9, 10, -1]).train.targets.tolist() == [
        1,
        0,
        2,
    ]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize(
    ("frame", "label", "complaint"),
    [
        (FRAME, None, "label is missing"),
        (FRAME, "risc", "age, height, member, person, risk"),
        (FRAME, "risk", "the column 'person'"),
        (FRAME[["age", "risk"]][:0], "risk", "holds no rows"),
        (FRAME[["risk"]], "risk", "no column of features"),
    ],
)
def test_tables_that_cannot_be_used(
    tmp_path: Path, name: str, frame: pd.DataFrame, label: str | None, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        data.load(write(frame, tmp_path / name), label=label)


def test_missing_and_fractional_labels_are_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2], "none": [None, "a"], "half": [0.5, 1.0], "inf": [np.inf, 1.0]})
    path = write(frame, tmp_path / "t.parquet")
    with pytest.raises(InputError, match="lacks a value"):
        data.load(path, label="none")
    path = write(frame[["x", "half"]], tmp_path / "t.parquet")
    with pytest.raises(InputError, match="text or whole numbers"):
        data.load(path, label="half")
    path = write(frame[["x", "inf"]], tmp_path / "t.parquet")
    with pytest.raises(InputError, match="text or whole numbers"):
        data.load(path, label="inf")


@pytest.mark.parametrize("column", ["y", "person"])
def test_an_empty_cell_is_neither_a_class_nor_a_person(tmp_path: Path, column: str) -> None:
    """Fails when Arrow's nulls alone are looked for: in a CSV file an empty cell of text is a text (tried)."""
    cells = {"y": "no", "person": "ann"} | {column: ""}
    (tmp_path / "t.csv").write_text(f"x,y,person\n1,yes,bob\n2,{cells['y']},{cells['person']}\n")
    with pytest.raises(InputError, match=f"lacks a value in the column '{column}'"):
        data.load(tmp_path / "t.csv", label="y", group="person")


@pytest.mark.parametrize(
    ("head", "label", "cure"),
    [
        ("age,dose,outcome,patient", "outcom", "Did you mean 'outcome'?"),
        ("age;dose;outcome", "outcome", "separated by ';': save it with commas"),
        ("age,y,y", "y", "rename all but one"),
        ("age,dose", None, "--label in a command"),
    ],
)
def test_a_column_that_is_not_there_is_told_what_to_do(
    tmp_path: Path, head: str, label: str | None, cure: str
) -> None:
    (tmp_path / "t.csv").write_text(f"{head}\n")
    with pytest.raises(InputError) as found:
        data.load(tmp_path / "t.csv", label=label)
    assert cure in str(found.value)


def test_a_single_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,a\nno,2\nno,4\n")
    with pytest.raises(InputError, match="holds a single class, 'no'"):
        data.load(tmp_path / "t.csv", label="y")
    assert data.load(tmp_path / "t.csv", label="y", classes=["no", "yes"]).train.num_classes == 2


def test_a_broken_row_is_not_quoted(tmp_path: Path) -> None:
    """Fails when Arrow's whole message is passed on: it ends with the row (tried)."""
    (tmp_path / "t.csv").write_text("y,a,b\n1,2,3\n0,4,5,77123\n")
    with pytest.raises(InputError, match="got 4") as found:
        data.load(tmp_path / "t.csv", label="y")
    assert "77123" not in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize("row", ["1,6", "1,6,7,8", '"1,6,7'])
def test_a_row_with_another_number_of_fields_is_refused(tmp_path: Path, row: str) -> None:
    """Fails when missing fields are filled in, as pandas does (tried)."""
    (tmp_path / "t.csv").write_text(f"y,a,b\n1,2,3\n0,4,5\n{row}")
    with pytest.raises(InputError, match=r"t\.csv"):
        data.load(tmp_path / "t.csv", label="y")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y,y\n1,2,3\n")
    with pytest.raises(InputError, match="is not a column"):
        data.load(tmp_path / "t.csv", label="y")


def test_test_and_public_parts_are_made_of_whole_groups(tmp_path: Path) -> None:
    """Fails when rows are split without regard to the person they belong to."""
    people = np.repeat(np.arange(30), 4)
    frame = pd.DataFrame({"x": people * 1.0, "y": np.arange(120) % 2, "person": people})
    path = write(frame, tmp_path / "t.parquet")
    loaded = data.load(path, label="y", group="person", test_fraction=0.2, public_fraction=0.25, classes=2)
    assert loaded.test is not None
    assert loaded.public is not None
    parts = [set(part.inputs[:, 0].tolist()) for part in (loaded.train, loaded.test, loaded.public)]
    assert [len(part) * 4 for part in parts] == [len(loaded.train), len(loaded.test), len(loaded.public)]
    assert len(set.union(*parts)) == 30
    assert len(loaded.test) == 24
    assert "whole groups" in loaded.note


@pytest.mark.parametrize("keys", [("x_train", "y_train"), ("X", "y"), ("inputs", "targets")])
def test_arrays_by_their_names(tmp_path: Path, keys: tuple[str, str]) -> None:
    x, y = np.linspace(0, 1, 12).reshape(4, 3), np.array([[0], [2], [1], [0]])
    np.savez(tmp_path / "a.npz", **{keys[0]: x, keys[1]: y})
    loaded = data.load(tmp_path / "a.npz", classes=5)
    torch.testing.assert_close(loaded.train.inputs, torch.from_numpy(x).float())
    assert loaded.train.targets.tolist() == [0, 2, 1, 0]
    assert (loaded.num_classes, loaded.test, loaded.note) == (5, None, "")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4, 5, 6), (1, 5, 6)), ((4, 5, 6, 3), (3, 5, 6)), ((4, 3, 5, 6), (3, 5, 6)), ((4, 5, 6, 1), (1, 5, 6))],
)
def test_bytes_are_images(tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    images, labels = pixels(*shape), np.array(["b", "a", "b", "c"])
    np.savez_compressed(
        tmp_path / "a.npz", x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2]
    )
    loaded = data.load(tmp_path / "a.npz")
    assert loaded.train.inputs.shape[1:] == expected
    assert loaded.train.inputs.max() <= 1
    assert loaded.classes == ("a", "b", "c")
    assert loaded.test is not None
    assert loaded.test.targets.tolist() == [1, 0]
    assert "zero-out" in loaded.note


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"x": pixels(4, 3)},
        {"x": pixels(4, 3), "y": np.arange(3)},
        {"x": pixels(4, 3), "y": np.zeros((4, 2), int)},
        {"x": np.float64(1), "y": np.zeros(1, int)},
        {"x": np.zeros((0, 3)), "y": np.zeros(0, int)},
        {"x": np.array([["a"]]), "y": np.zeros(1, int)},
        {"x": np.zeros((2, 2)), "y": np.array([0.5, 1])},
        {"x": np.zeros((2, 2)), "y": np.array([None, 1], object)},
        {"x_train": np.zeros((2, 2)), "y_train": np.zeros(2, int), "x_test": np.zeros((2, 2))},
        {"x_train": np.zeros((2, 2)), "y_train": [0, 1], "x_test": np.zeros((2, 3)), "y_test": [0, 1]},
    ],
)
def test_arrays_that_cannot_be_used(tmp_path: Path, arrays: dict[str, Any]) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=r"a\.npz"):
        data.load(tmp_path / "a.npz")


@pytest.mark.parametrize("classes", [1, 0, True, ["a"], ["a", "a"], "ab", []])
def test_declared_classes_are_checked(tmp_path: Path, classes: Any) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2)), y=[0, 1])
    with pytest.raises(InputError, match="classes="):
        data.load(tmp_path / "a.npz", classes=classes)


@pytest.mark.parametrize(("name", "kind"), [("t.csv", "CSV"), ("t.parquet", "Parquet")])
def test_pyarrow_is_asked_for_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    path = write(FRAME, tmp_path / name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=rf"(?s){kind}.*saltflat\[tables\]"):
        data.load(path, label="risk")
