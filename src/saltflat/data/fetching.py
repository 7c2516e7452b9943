"""Downloads: from the hosts in the catalogue or from a mirror, checked before they get their name."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from saltflat.data.catalogue import entry
from saltflat.data.entry import Download, Entry
from saltflat.data.files import DAMAGE, open_plain
from saltflat.data.places import complete, target_dir
from saltflat.errors import InputError

Progress = Callable[[str, int, int | None], None]

TIMEOUT = 60.0  # seconds without a byte; not for the whole file
_AGENT = "Mozilla/5.0 (compatible; saltflat)"  # some hosts turn Python's own name away


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    mirror: str | None = None,
) -> list[Path]:
    """Download a known data set into ``data_dir`` or the cache, and give back its files.

    Guarantee: a file keeps its name only if it is whole and its checksum is right; where none is known,
    the data set is read as soon as it is complete. Files that are there and right are not fetched again.

    Args:
        name: One of `names`.
        data_dir: The folder under which a folder of the data set's name is made; the cache by default.
        progress: Called as ``progress(file, bytes_so_far, bytes_in_all_or_None)``.
        mirror: An address or ``file://`` folder that holds the same file names, used instead of the hosts
            in the catalogue.

    >>> fetch("digits")
    []
    """
    wanted = entry(name)
    folder = target_dir(wanted, data_dir)
    if wanted.embedded:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            "data_dir", str(folder), "a folder that can be written to", problem=f"cannot be made ({error})"
        ) from error
    return [_fetch_one(wanted, download, folder, progress, mirror) for download in wanted.downloads]


def _fetch_one(
    wanted: Entry, download: Download, folder: Path, progress: Progress | None, mirror: str | None
) -> Path:
    file = folder / download.file
    if file.is_file() and (download.sha256 or download.md5) and not _fault(download, file):
        return file
    partial = folder / f"{download.file}.{os.getpid()}.part"
    urls = (f"{mirror.rstrip('/')}/{download.file}",) if mirror else download.urls
    failures: list[str] = []
    try:
        for url in urls:
            try:
                _copy(url, partial, download.file, progress)
            except (OSError, ValueError, http.client.HTTPException) as error:
                failures.append(f"{url}: {error}")
                continue
            fault = _fault(download, partial)
            if fault:
                failures.append(f"{url}: {fault}")
                continue
            partial.replace(file)
            _check_structure(wanted, download, file)
            return file
    finally:
        partial.unlink(missing_ok=True)
    raise InputError(
        "name", wanted.name, f"{download.file} from one of its addresses", problem="could not be downloaded",
        cure="\n  ".join(["", *failures, f"Get it by other means and put it into {folder}."]),
    )  # fmt: skip


def _copy(url: str, target: Path, name: str, progress: Progress | None) -> None:
    """Copy what the address gives into the target, and refuse less than was announced."""
    request = urllib.request.Request(url, headers={"User-Agent": _AGENT})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, target.open("wb") as out:
        announced = answer.headers.get("Content-Length")
        total = int(announced) if announced is not None and announced.isdecimal() else None
        done = 0
        while block := answer.read(1 << 18):
            out.write(block)
            done += len(block)
            if progress is not None:
                progress(name, done, total)
    if total is not None and done != total:
        raise OSError(f"{done} of {total} bytes arrived")


def _fault(download: Download, file: Path) -> str:
    """What is wrong with the file's checksum, or nothing."""
    try:
        if download.md5:
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
            if found.hexdigest() != download.md5:
                return "the checksum (md5) is not the published one"
        if download.sha256:
            with open_plain(file) as stream:
                found = hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]
            if found.hexdigest() != download.sha256:
                return "the checksum (sha256 of the decompressed bytes) is not the published one"
    except DAMAGE as error:
        return f"it cannot be read to its end ({error})"
    return ""


def _check_structure(wanted: Entry, download: Download, file: Path) -> None:
    """Where no checksum is known: read the data set once all its files are there, and drop a bad last one."""
    if download.sha256 or download.md5:
        return
    for form in wanted.forms:
        files = complete(form, file.parent)
        if files is not None and file in files:
            try:
                form.read(files)
            except InputError:
                file.unlink(missing_ok=True)
                raise
