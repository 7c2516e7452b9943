"""Tables and arrays of the user's own: ``.npz``, ``.csv`` and ``.parquet``.

Features become float32 as they are: nothing is scaled, filled in or dropped, because a mean, a range or a
count taken from private rows is itself a release. Missing numbers stay NaN.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saltflat.data.files import bad_file, check_several
from saltflat.data.places import check_there
from saltflat.data.raw import CLASSES_FROM_DATA, Part, Raw
from saltflat.errors import InputError, MissingDependencyError

Classes = Sequence[str] | Sequence[int] | int

_KEYS = (("x_train", "y_train"), ("x", "y"), ("inputs", "targets"))


def class_names(classes: Classes) -> tuple[str, ...]:
    """The declared classes as text, in their order. A number k declares the classes 0 to k - 1.

    >>> class_names(3), class_names(["no", "yes"])
    (('0', '1', '2'), ('no', 'yes'))
    """
    listed = range(classes) if isinstance(classes, int) and not isinstance(classes, bool) else classes
    names = () if isinstance(listed, str | bool) else tuple(str(name) for name in listed)
    if len(names) < 2 or len(set(names)) != len(names):
        raise InputError(
            "classes", str(classes), "two or more different names, or how many there are",
            cure='For example classes=["no", "yes"], or classes=10 for the labels 0 to 9.',
        )  # fmt: skip
    return names


def classes_of(told: str | Sequence[str] | None) -> Classes | None:
    """The classes as a text declares them: names with commas between them, or how many there are.

    >>> classes_of("ill, well"), classes_of("10"), classes_of(None)
    (['ill', 'well'], 10, None)
    """
    if not isinstance(told, str):
        return told
    return int(told) if told.strip().isdecimal() else [name.strip() for name in told.split(",")]


def read_npz(path: Path, classes: Classes | None = None) -> Raw:
    """The arrays x_train, y_train, x_test, y_test; or X and y; or inputs and targets, from an ``.npz`` file.

    Images are arrays of uint8: N x H x W, N x C x H x W or N x H x W x C, where C is 1 or 3. They come out
    as N x C x H x W. Everything else is taken as features.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            held = {name.lower(): archive[name] for name in archive.files}
    except Exception as error:  # zip, zlib and header faults, and arrays of objects, each with its own kind
        raise bad_file(
            path, f"cannot be read as arrays ({error})", "a complete .npz file of plain arrays"
        ) from error
    keys = next((pair for pair in _KEYS if pair[0] in held and pair[1] in held), None)
    if keys is None:
        raise bad_file(
            path,
            f"holds the arrays {', '.join(held) or '(none)'}",
            "x_train, y_train, x_test, y_test; or X and y; or inputs and targets",
            cure="Save it with these names.",
        )
    pairs = [keys]
    if keys[0] == "x_train" and {"x_test", "y_test"} & set(held):
        pairs.append(("x_test", "y_test"))
    for pair in pairs:
        if any(key not in held for key in pair):
            raise bad_file(path, "holds test rows or test labels alone", "both x_test and y_test, or neither")
    inputs = [_inputs(path, x, held[x]) for x, _ in pairs]
    texts = [_texts(path, y, held[y], len(held[x]) if held[x].ndim else 0) for x, y in pairs]
    if len({array.shape[1:] for array in inputs}) > 1:
        raise bad_file(path, "holds training and test rows of different shapes", "rows of one shape")
    order, labels = _numbered(path, texts, classes)
    parts = [Part(array, numbers) for array, numbers in zip(inputs, labels)]
    return Raw(parts[0], parts[1] if len(parts) > 1 else None, order, classes is not None, _note(classes))


def is_table(path: str | Path) -> bool:
    """Whether a file is one of these by its name.

    >>> is_table("visits.csv"), is_table("visits.npz")
    (True, False)
    """
    return str(path).lower().endswith((".csv", ".csv.gz", ".parquet"))


def read_features(
    path: Path, columns: Sequence[str] | None = None, leave_out: Sequence[str | None] = ()
) -> NDArray[np.float32]:
    """The features of a table that may have no labels: these ``columns``, or all but those to leave out."""
    check_there(path)
    table = _arrow_table(path, [])
    there: list[str] = table.column_names
    for column in columns or ():
        if there.count(column) != 1:
            raise _no_column(path, "columns", column, there)
    features = list(columns or (name for name in there if name not in leave_out))
    if not features or table.num_rows == 0:
        raise bad_file(path, "holds no rows of features", "a table with at least one of each")
    return np.column_stack([_feature(path, name, table.column(name)) for name in features])


def read_table(
    path: Path, label: str | None, classes: Classes | None = None, group: str | None = None,
    columns: Sequence[str] | None = None,
) -> Raw:  # fmt: skip
    """A ``.csv`` or ``.parquet`` file: one column of labels, perhaps one of persons, the rest numbers.

    With ``columns`` these are the features, in this order, and others are left out.
    """
    table = _arrow_table(path, [column for column in (label, group) if column])
    there: list[str] = table.column_names
    asked = [("label", label), ("group", group), *(("columns", column) for column in columns or ())]
    for argument, column in asked:
        if (column is not None and there.count(column) != 1) or (column is None and argument == "label"):
            raise _no_column(path, argument, column, there)
    if table.num_rows == 0:
        raise bad_file(
            path, "holds no rows", "a table with at least one row", cure="Bring a table with rows."
        )
    features = [name for name in columns or there if name not in (label, group)]
    if not features:
        raise bad_file(
            path, "holds no column of features", "numbers beside the label", cure="Add the features."
        )
    matrix = np.column_stack([_feature(path, name, table.column(name)) for name in features])
    texts = _text_column(path, str(label), table.column(label))
    order, (labels,) = _numbered(path, [texts], classes)
    groups = None
    if group is not None:
        groups = np.unique(_text_column(path, group, table.column(group)), return_inverse=True)[1].astype(
            np.int64
        )
    return Raw(
        Part(matrix, labels, groups),
        None,
        order,
        classes is not None,
        _note(classes),
        columns=tuple(features),
    )


def _no_column(path: Path, argument: str, column: str | None, there: list[str]) -> InputError:
    return InputError(
        argument, column, f"one column of {path.name}: {', '.join(there)}",
        problem="is missing" if column is None else "is not a column", cure=_which_column(argument, column, there),
    )  # fmt: skip


def _which_column(argument: str, asked: str | None, columns: list[str]) -> str:
    """What to do about a column that is not there."""
    if argument == "columns" and asked not in columns:
        return "The model was trained on a column of that name: bring it."
    if columns.count(asked or "") > 1:
        return "Several columns have that name: rename all but one."
    if len(columns) == 1 and (marks := [mark for mark in ";\t|" if mark in columns[0]]):
        return f"The file is separated by {marks[0]!r}: save it with commas."
    near = difflib.get_close_matches(asked or "", columns, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Name it with {argument}=, or --{argument} in a command."


def _arrow_table(path: Path, as_text: list[str]) -> Any:
    """The file as an Arrow table. Arrow refuses a CSV row that has too few or too many fields."""
    parquet = path.name.lower().endswith(".parquet")
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        kind = "Parquet" if parquet else "CSV"
        raise MissingDependencyError("pyarrow", f"reading {kind} files", "tables") from error
    try:
        if parquet:
            table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
        else:
            kinds = {column: pyarrow.string() for column in as_text}  # "01" is a name, not the number 1
            options = pyarrow.csv.ConvertOptions(column_types=kinds)
            table = pyarrow.csv.read_csv(path, convert_options=options)
        table.validate(full=True)  # text that is no text, and offsets that point nowhere
        str(table.column_names)
        return table
    except Exception as error:  # Arrow has a dozen kinds of its own, and a damaged file may meet any of them
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = re.sub(r"(got \d+): .*", r"\1", reason)  # what follows is the row itself
        raise bad_file(
            path, f"cannot be read as a table ({reason})", "a complete table with a header",
            cure="Every row has as many fields as the header; a comma inside a field needs quotes. "
            "If it was so once, the file is damaged: get it again.",
        ) from None  # fmt: skip


def _feature(path: Path, name: str, column: Any) -> NDArray[np.float32]:
    import pyarrow
    from pyarrow import types

    kind = column.type
    if not (
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_null(kind)
    ):
        raise bad_file(
            path, f"holds the column {name!r} of {kind}", "features that are numbers",
            cure="Encode the column as numbers, or leave it out of the file.",
        )  # fmt: skip
    if types.is_boolean(kind):
        column = column.cast(pyarrow.int8())
    values = column.cast(pyarrow.float64(), safe=False).to_numpy()
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, which training can bear
        return np.asarray(values, dtype=np.float32)


def _text_column(path: Path, name: str, column: Any) -> NDArray[Any]:
    values = column.to_pylist()
    # in a CSV file a cell of text that was left empty is no null but a text: it would become a class, or a person
    if any(value is None or value == "" for value in values):
        raise bad_file(
            path, f"lacks a value in the column {name!r}", "a label and a group in every row",
            cure="Fill it in, or leave such rows out of the file.",
        )  # fmt: skip
    return _as_text(path, name, np.asarray(values))


def _inputs(path: Path, name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "fiub" or array.ndim < 2 or array.size == 0:
        raise bad_file(
            path, f"holds {name} of {array.dtype} with shape {array.shape}",
            "rows of numbers, one row an example", cure="Images are uint8, features any numbers.",
        )  # fmt: skip
    if array.dtype != np.uint8 or array.ndim == 2:
        with np.errstate(over="ignore"):
            return array.astype(np.float32)
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        return array.transpose(0, 3, 1, 2)
    return array


def _texts(path: Path, name: str, array: NDArray[Any], rows: int) -> NDArray[Any]:
    flat = array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array
    if flat.ndim != 1 or len(flat) != rows:
        raise bad_file(path, f"holds {name} of shape {array.shape} for {rows} rows", "one label a row")
    return _as_text(path, name, flat)


def _as_text(path: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Labels as text, whole numbers without a decimal point; fractions are no classes."""
    kind = values.dtype.kind
    if kind == "f" and np.all(np.isfinite(values)) and np.all(values == np.round(values)):
        values, kind = values.astype(np.int64), "i"
    if kind not in "iubU":
        raise bad_file(
            path, f"holds labels of {values.dtype} in {name!r}", "labels that are text or whole numbers",
            cure="saltflat trains classifiers: map the labels to classes first.",
        )  # fmt: skip
    return values.astype(np.str_)


def _numbered(
    path: Path, texts: list[NDArray[Any]], classes: Classes | None
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """The classes in order, and every label as its place in that order."""
    if classes is None:
        found = sorted({str(text) for part in texts for text in np.unique(part)})
        numeric = all(text.lstrip("-").isdecimal() for text in found)
        order = tuple(sorted(found, key=int) if numeric else found)
        check_several(path, order)
    else:
        order = class_names(classes)
    place = {name: at for at, name in enumerate(order)}
    numbers: list[NDArray[np.int64]] = []
    for part in texts:
        values, inverse = np.unique(part, return_inverse=True)
        unknown = [str(value) for value in values if str(value) not in place]
        if unknown:
            raise bad_file(
                path, f"holds the label {unknown[0]!r}", f"the declared classes {', '.join(order[:12])}",
                cure="Declare every class in classes=.",
            )  # fmt: skip
        numbers.append(np.array([place[str(value)] for value in values], dtype=np.int64)[inverse.reshape(-1)])
    return order, numbers


def _note(classes: Classes | None) -> str:
    return CLASSES_FROM_DATA if classes is None else ""
