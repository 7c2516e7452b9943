"""What the catalogue says of a data set: its files and who reads them, published counts, licence, and source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from saltflat.data.raw import Reader


@dataclass(frozen=True)
class Form:
    """One way in which a data set is stored: the files it needs, and the function that reads them."""

    files: tuple[str, ...]
    read: Reader
    holds: Literal["files", "folders"] = "files"
    beside: tuple[str, ...] = ()  # what must also be there, where the names alone could be anything's


@dataclass(frozen=True)
class Download:
    """One file to fetch, from the first address that answers.

    ``sha256`` is of the decompressed bytes, because the same data are found in several compressions;
    ``md5`` is of the archive, as its authors publish it. A file with neither is checked by reading it.
    """

    file: str
    urls: tuple[str, ...]
    sha256: str = ""
    md5: str = ""


@dataclass(frozen=True)
class Entry:
    """A known data set. ``folder`` is where its files are put, ``folders`` are other places to look in."""

    name: str
    title: str
    rows: int
    test_rows: int
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    licence: str
    source: str
    forms: tuple[Form, ...]
    folder: str = ""
    folders: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()

    @property
    def embedded(self) -> bool:
        """Whether it comes with an installed package and needs no file."""
        return not self.forms[0].files
