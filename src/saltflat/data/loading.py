"""`load`: one function for every data set, by name or by path."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from saltflat.data.catalogue import CATALOGUE, known
from saltflat.data.dataset import DataSet, examples_of
from saltflat.data.entry import Entry
from saltflat.data.fetching import fetch
from saltflat.data.files import bad_file
from saltflat.data.folders import ARCHIVE_SUFFIXES, Size, read_class_archive, read_class_folders
from saltflat.data.idx import EMNIST_SPLITS
from saltflat.data.places import check_there, complete, find, not_found
from saltflat.data.raw import Raw
from saltflat.data.shared_rows import split_beside
from saltflat.data.source import Provenance
from saltflat.data.split import check_fraction, split_public, split_test
from saltflat.data.tables import Classes, class_names, is_table, read_npz, read_table
from saltflat.errors import InputError, check_count, check_known


def load(
    name: str | Path,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    public_fraction: float | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    provenance: Provenance = "private",
    download: bool = False,
    split: str | None = None,
    label: str | None = None,
    group: str | None = None,
    classes: Classes | None = None,
    columns: Sequence[str] | None = None,
    image_size: int | Size | None = None,
) -> DataSet:
    """Load a data set that is known by name, or a file or folder of your own.

    A path may be a folder of class folders of images, a tar archive of one, or an ``.npz``, ``.csv`` or
    ``.parquet`` file. Images become float32 in [0, 1], N x C x H x W; features become float32, unscaled;
    targets are int64.

    Guarantees: rows are private unless declared otherwise; a damaged file is refused by name and never read
    in part; nothing is downloaded unless ``download=True``.

    Args:
        name: One of `names`, or a path. A name wins over a file of the same name: write ``./digits``.
        data_dir: The first folder to look in; see `locate` for the others.
        public_fraction: Split this share off ``train``, the same number of rows of each class, as rows
            declared public. With ``group`` the public part is made of whole groups.
        test_fraction: Set this share aside as test rows, where the data have no test part of their own.
        seed: Decides both splits, and nothing else.
        provenance: Declare the rows ``"public"`` or ``"synthetic"``: then they cost no budget.
        download: Fetch a known data set that was not found.
        split: Which split of EMNIST; ``load("emnist", split="letters")`` is ``load("emnist-letters")``.
        label: The column of a table that holds the labels.
        group: The column of a table that names the person a row belongs to.
        classes: The classes of your own data, in order, or how many. Without it they are read from the data,
            and the note says so: they then count as public.
        columns: The columns of a table that are features, in order. All but label and group, if left out.
        image_size: Resize the images of a folder to this height and width.

    >>> digits = load("digits")
    >>> digits.train.inputs.shape, digits.test.targets.dtype, digits.num_classes, digits.provenance
    (torch.Size([1437, 1, 8, 8]), torch.int64, 10, 'private')
    """
    if not isinstance(name, str | Path) or name == "":
        raise InputError("name", name, "the name of a data set, or a path", problem="is neither")
    text = str(name)
    check_count("seed", seed, least=0)
    _check_provenance(provenance, public_fraction)
    for argument, fraction in (("public_fraction", public_fraction), ("test_fraction", test_fraction)):
        if fraction is not None:
            check_fraction(argument, fraction)
    wanted = _wanted(text, split)
    given: dict[str, object] = {
        "label": label, "group": group, "classes": classes, "columns": columns, "image_size": image_size,
    }  # fmt: skip
    if wanted is not None:
        _refuse(given, "for a file or folder of your own", f"{wanted.name} has its own.")
        raw, title = _read_known(wanted, data_dir, download), wanted.name
    else:
        path = Path(text).expanduser()
        raw, title = _read_path(path, label, group, classes, columns, image_size), path.name or text
    if test_fraction is not None:
        if raw.test is not None:
            raise InputError(
                "test_fraction", test_fraction, "data without a test part of their own",
                problem=f"is given, and {title} has a test part", cure="Leave test_fraction out.",
            )  # fmt: skip
        raw = split_test(raw, test_fraction, seed)
    return _data_set(raw, title, provenance, public_fraction, seed)


def _read_known(wanted: Entry, data_dir: str | os.PathLike[str] | None, download: bool) -> Raw:
    found = find(wanted, data_dir)
    if found is None and download:
        fetch(wanted.name, data_dir)
        found = find(wanted, data_dir)
    if found is None:
        raise not_found(wanted, data_dir)
    form, files = found
    return form.read(files)


def _read_path(
    path: Path, label: str | None, group: str | None, classes: Classes | None, columns: Sequence[str] | None,
    image_size: int | Size | None,
) -> Raw:  # fmt: skip
    """Read a file or folder of the user's own, by what it is."""
    check_there(path)
    ending = path.name.lower()
    if is_table(path):
        _refuse({"image_size": image_size}, "for folders of images", "Leave it out.")
        return read_table(path, label, classes, group, columns)
    _refuse(
        {"label": label, "group": group, "columns": columns}, "for tables (.csv, .parquet)", "Leave it out."
    )
    if ending.endswith(".npz"):
        _refuse({"image_size": image_size}, "for folders of images", "Leave it out.")
        return read_npz(path, classes)
    listed = None if classes is None else class_names(classes)
    if path.is_dir():
        _suggest_name(path)
        return read_class_folders(path, listed, _size(image_size))
    if ending.endswith(ARCHIVE_SUFFIXES):
        return read_class_archive(path, listed, _size(image_size))
    endings = (".npz", ".csv", ".parquet", *ARCHIVE_SUFFIXES)
    raise bad_file(
        path, "is of an unknown kind", f"a folder, or a file that ends in {', '.join(endings)}",
        cure="Convert it to one of these, or pass tensors to saltflat yourself.",
    )  # fmt: skip


def _data_set(
    raw: Raw, name: str, provenance: Provenance, public_fraction: float | None, seed: int
) -> DataSet:
    train, public, notes = raw.train, None, [raw.note] if raw.note else []
    if public_fraction is not None:
        by = "by whole groups" if train.groups is not None else "the same number of rows of each class"
        train, public = split_public(train, len(raw.classes), public_fraction, seed)
        notes.append(
            f"A share of {public_fraction:g} of the training rows is declared public: {by}, seed {seed}."
        )
    count = len(raw.classes)
    private = examples_of(train, provenance, name, count, classes_declared=raw.declared)
    split_off = None
    if public is not None:
        word = f"whoever split it off: a share of {public_fraction:g} of the training rows, seed {seed}"
        split_off = examples_of(public, "public", name, count, declared_by=word)
        private = split_beside(private, split_off)
    return DataSet(
        private,
        None if raw.test is None else examples_of(raw.test, provenance, name, count),
        split_off,
        count,
        name,
        provenance,
        " ".join(notes),
        raw.classes,
        raw.declared,
        raw.columns,
    )


def _wanted(text: str, split: str | None) -> Entry | None:
    """The catalogue entry that is asked for, if it is one."""
    wanted = known(text)
    if split is None:
        return wanted
    if wanted is None or wanted.name not in ("emnist", f"emnist-{split}"):
        raise InputError(
            "split", split, "the data set emnist", problem=f"is not for {text}", cure="Leave it out."
        )
    check_known("split", split, EMNIST_SPLITS, "a split of EMNIST")
    return known(f"emnist-{split}")


def _check_provenance(provenance: Provenance, public_fraction: float | None) -> None:
    if provenance not in get_args(Provenance):
        raise InputError("provenance", provenance, f"one of {', '.join(get_args(Provenance))}")
    if public_fraction is not None and provenance != "private":
        raise InputError(
            "public_fraction", public_fraction, 'provenance="private"',
            problem=f"is given for {provenance} rows", cure="Rows that are not private need no public part.",
        )  # fmt: skip


def _refuse(given: Mapping[str, object], expected: str, cure: str) -> None:
    """Refuse an argument that would otherwise be ignored without a word."""
    for argument, value in given.items():
        if value is not None:
            raise InputError(
                argument, value, f"{argument} only {expected}", problem="does not apply here", cure=cure
            )


def _size(image_size: int | Size | None) -> Size | None:
    if image_size is None:
        return None
    pair: Sequence[object] = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(pair) == 2:
        height, width = pair
        if type(height) is int and type(width) is int and 1 <= height <= 4096 and 1 <= width <= 4096:
            return height, width
    raise InputError(
        "image_size", str(image_size), "a height and a width from 1 to 4096", cure="For example 32."
    )


def _suggest_name(path: Path) -> None:
    """A folder with the files of a known data set is better read by name: its classes and shape are known."""
    for wanted in CATALOGUE.values():
        if any(form.holds == "files" and form.files and complete(form, path) for form in wanted.forms):
            raise bad_file(
                path, f"holds the files of {wanted.name}", "a folder of class folders",
                cure=f'Read them with load("{wanted.name}", data_dir="{path}").',
            )  # fmt: skip
