"""Public rows of the user's own, read for a model of private rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from saltflat.data import DataSet, Examples, load, names
from saltflat.errors import InputError


def read_public(
    name: str,
    private: DataSet,
    *,
    by: str | None = None,
    data_dir: str | Path | None = None,
    label: str | None = None,
) -> Examples:
    """The training rows of a data set, folder or file, declared public on the word of ``by``.

    Labels are the names of the classes of ``private``, or their numbers. Guarantee: rows of another shape, or of
    classes that ``private`` does not have, are refused.

    >>> from saltflat.data import load
    >>> rows = read_public("digits", load("digits"), by="those who published it")
    >>> rows.provenance, rows.declared_by
    ('public', 'those who published it')
    """
    rows = _loaded(name, private, {"data_dir": data_dir, "label": label})
    if rows.inputs.shape[1:] != private.train.inputs.shape[1:]:
        raise InputError(
            "public", name, f"rows of shape {tuple(private.train.inputs.shape[1:])}, as those of {private.name}",
            problem=f"holds rows of shape {tuple(rows.inputs.shape[1:])}",
        )  # fmt: skip
    if rows.num_classes != private.num_classes:
        raise InputError(
            "public", name, f"rows of {private.num_classes} classes, as those of {private.name}",
            problem=f"holds rows of {rows.num_classes} classes",
        )  # fmt: skip
    return replace(rows, declared_by=by or "whoever gave --public", groups=None)


def _loaded(name: str, private: DataSet, where: dict[str, Any]) -> Examples:
    if name in names():
        return load(name, data_dir=where["data_dir"], provenance="public").train
    wanted: dict[str, Any] = where | {"provenance": "public"}
    try:
        return load(name, classes=private.classes or private.num_classes, **wanted).train
    except InputError as error:
        if error.argument == "name":
            raise InputError(
                "public", name, error.expected, problem=error.problem, cure=error.cure
            ) from error
        try:  # a file may hold numbers where the private data has names
            return load(name, classes=private.num_classes, **wanted).train
        except InputError:
            raise error from None
