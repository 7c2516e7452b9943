"""Where data sets lie on this machine, and what to do when they do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from saltflat.data.catalogue import entry, known, names
from saltflat.data.entry import Entry, Form
from saltflat.data.files import by, cache_dir
from saltflat.errors import InputError, nearest

SYSTEM_DIRS = (Path("/usr/share/datasets"), Path("/usr/local/share/datasets"))  # as Debian's packages install


@dataclass(frozen=True)
class Description:
    """The published facts about a data set, and where it was found. Printing it gives a short page.

    ``rows`` and ``test_rows`` are the published counts, not those of the files found.
    """

    name: str
    title: str
    rows: int
    test_rows: int
    classes: int
    shape: tuple[int, ...]
    licence: str
    source: str
    found: tuple[str, ...] | None
    to_get_it: str

    def as_dict(self) -> dict[str, Any]:
        """The same facts, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        found = "\n           ".join(self.found) if self.found is not None else "nowhere"
        lines = [
            f"{self.title} ({self.name})",
            f"  rows     {self.rows:,} to train on, {self.test_rows:,} to test on",
            f"  classes  {self.classes}",
            f"  shape    {by(self.shape)}",
            f"  licence  {self.licence}",
            f"  source   {self.source}",
            f"  found    {found or 'embedded, no file needed'}",
        ]
        if self.found is None:
            lines.append("  " + self.to_get_it.replace("\n", "\n  "))
        return "\n".join(lines)


def describe(name: str, data_dir: str | os.PathLike[str] | None = None) -> Description:
    """What is known about a data set, and where it lies on this machine.

    >>> digits = describe("digits")
    >>> digits.rows, digits.classes, digits.shape, digits.found
    (1437, 10, (1, 8, 8), ())
    """
    wanted = entry(name)
    files = locate(name, data_dir)
    return Description(
        wanted.name,
        wanted.title,
        wanted.rows,
        wanted.test_rows,
        len(wanted.classes),
        wanted.shape,
        wanted.licence,
        wanted.source,
        None if files is None else tuple(str(file) for file in files),
        how_to_get(wanted, data_dir),
    )


def locate(name: str, data_dir: str | os.PathLike[str] | None = None) -> list[Path] | None:
    """The files of a known data set, or None. An embedded one needs none, and gives an empty list.

    Looked in, in this order: ``data_dir``, the folders in the environment variable ``SALTFLAT_DATA``, the
    cache, and where distributions install data sets; in each both ``<folder>/<name>`` and the folder itself.

    >>> locate("digits")
    []
    """
    found = find(entry(name), data_dir)
    return None if found is None else found[1]


def find(wanted: Entry, data_dir: str | os.PathLike[str] | None = None) -> tuple[Form, list[Path]] | None:
    """The first form of the data set that is complete in one folder, with its files."""
    if wanted.embedded:
        return wanted.forms[0], []
    for folder in _folders(wanted, data_dir):
        for form in wanted.forms:
            files = complete(form, folder)
            if files is not None:
                return form, files
    return None


def complete(form: Form, folder: Path) -> list[Path] | None:
    """All files of one form in one folder, or None if any is missing."""
    if not all(exists(folder / other) for other in form.beside):
        return None
    files: list[Path] = []
    for name in form.files:
        spellings = [name] if form.holds == "folders" else _spellings(name)
        test = Path.is_dir if form.holds == "folders" else Path.is_file
        match = next((folder / spelling for spelling in spellings if exists(folder / spelling, test)), None)
        if match is None:
            return None
        files.append(match)
    return files


def search_dirs(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders that are looked in, in order."""
    listed = [Path(data_dir).expanduser()] if data_dir is not None else []
    listed += [Path(p).expanduser() for p in os.environ.get("SALTFLAT_DATA", "").split(os.pathsep) if p]
    return [*listed, cache_dir(), *SYSTEM_DIRS]


def target_dir(wanted: Entry, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder into which a data set is fetched."""
    return (Path(data_dir).expanduser() if data_dir is not None else cache_dir()) / wanted.folder


def how_to_get(wanted: Entry, data_dir: str | os.PathLike[str] | None = None) -> str:
    """Everything one needs to know to get a data set: the command, the addresses, the files, the folder."""
    if wanted.embedded:
        return "It comes with scikit-learn."
    option = "" if data_dir is None else f" --data-dir {data_dir}"
    addresses = "\n".join(f"  {download.urls[0]}" for download in wanted.downloads)
    return (
        f"Get it with: saltflat data fetch {wanted.name}{option}\n"
        f"or with load({wanted.name!r}, download=True), or by hand from\n{addresses}\n"
        f"into {target_dir(wanted, data_dir)}.\n"
        "If it lies elsewhere, name that folder with data_dir= or in the variable SALTFLAT_DATA."
    )


def not_found(wanted: Entry, data_dir: str | os.PathLike[str] | None = None) -> InputError:
    """The error for a data set that is nowhere: which files, looked for where, and how to get them."""
    forms = "; or ".join(
        ", ".join(f + "/" * (form.holds == "folders") for f in form.files) for form in wanted.forms
    )
    places = ", ".join(str(folder) for folder in search_dirs(data_dir))
    return InputError(
        "name", wanted.name, f"{forms} (.gz or not) in a folder {wanted.folder}/ of one of {places}",
        problem="was not found on this machine",
        cure="\n  " + how_to_get(wanted, data_dir).replace("\n", "\n  "),
    )  # fmt: skip


def _folders(wanted: Entry, data_dir: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Every folder that may hold the files, skipping those named after another data set.

    MNIST and Fashion-MNIST have the same file names: in a folder ``mnist`` they are MNIST's.
    """
    for folder in search_dirs(data_dir):
        for base in (folder / wanted.name, folder / wanted.folder, folder):
            other = known(base.name)
            if base == folder and other is not None and other.folder != wanted.folder:
                continue
            yield base
            for inner in wanted.folders:
                yield base / inner


def _spellings(name: str) -> list[str]:
    """A file's name with and without ``.gz``, and with the dot that some copies of MNIST carry."""
    dotted = name.replace("-idx", ".idx") if name.endswith("-ubyte") else name
    return list(dict.fromkeys([name, f"{name}.gz", dotted, f"{dotted}.gz"]))


def exists(path: Path, test: Callable[[Path], bool] = Path.exists) -> bool:
    """Whether there is such a path that may be looked at."""
    try:
        return test(path)
    except OSError:  # a folder that may not be entered holds nothing for us
        return False


def check_there(path: Path) -> None:
    """Refuse what is neither a name that is known nor a path."""
    if not exists(path):
        raise InputError(
            "name", str(path), "the name of a data set, or a path that exists",
            problem="is neither known nor there", cure=nearest(str(path), names()),
        )  # fmt: skip
