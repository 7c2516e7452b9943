"""Public rows of the user's own, and samples made from public rows: read for a model of private rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from saltflat.data import DataSet, Examples, load, names
from saltflat.data.shared_rows import rows_hash
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


MOST_TEXT = 1_000_000


def read_samples(path: str | Path, private: Examples, public: Examples | None = None) -> Examples:
    """Samples from an ``.npz`` file, for a model of ``private`` rows.

    A file of ``saltflat synthesize sample`` says which rows it was made from. Guarantee: if these were split off
    the data set that ``private`` comes from, they must be the rows that are public here. Samples of another split
    were made from rows that are private now, and are refused. A file that says nothing is taken on the word of
    whoever gave it, and the certificate says so.
    """
    if private.num_classes is None:
        raise InputError("data", private.name, "private data with a known number of classes")
    samples = load(path, provenance="synthetic", classes=private.num_classes).train
    if samples.inputs.shape[1:] != private.inputs.shape[1:]:
        raise InputError(
            "synthetic", str(path), f"samples of shape {tuple(private.inputs.shape[1:])}",
            problem=f"holds samples of shape {tuple(samples.inputs.shape[1:])}",
        )  # fmt: skip
    origin = _origin(Path(path))
    if origin is None:
        return replace(
            samples, declared_by=f"whoever gave {Path(path).name}, which does not say what it was made from"
        )
    name, digest = str(origin.get("name")), str(origin.get("sha256"))
    known = None if public is None else rows_hash(public.inputs, public.targets)
    if name == private.name and digest != known:
        raise InputError(
            "synthetic", str(path), "samples made from the rows that are public here",
            problem=f"was made from other rows of {name}, which are private now",
            cure="Give the public fraction and seed that the samples were made with, or sample anew.",
        )  # fmt: skip
    return replace(
        samples, name=f"samples from {name}", declared_by=f"their file: made from public rows {digest[:16]}…"
    )


def _origin(path: Path) -> dict[str, Any] | None:
    """What the file says about the public rows behind it, if it says anything."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if "made_from" not in archive.files:
            return None
        text = str(archive["made_from"])
    try:
        told = json.loads(text[:MOST_TEXT])["public"]
        return {"name": told["name"], "sha256": told["sha256"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            "synthetic", str(path), "a file of samples that says what it was made from",
            problem=f"says so in a way that cannot be read ({type(error).__name__})",
        ) from error  # fmt: skip
