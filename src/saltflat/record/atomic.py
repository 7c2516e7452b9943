"""Writing to disk so that a crash leaves the old or the new, never half of either.

Everything that a run leaves goes through here. A whole file is written under another name, forced to the disk,
renamed, and the folder that holds the name is forced to the disk as well: only then does `write_whole` return.
What is appended is forced to the disk before `append` returns; a line that was cut short by a crash can only
be the last one, and its reader knows it by its missing end.
"""

from __future__ import annotations

import os
from pathlib import Path

PARTIAL = ".partial"


def write_whole(path: Path, content: bytes | bytearray) -> None:
    """Write a file atomically and durably: readers see the old one or the new one, also after a power cut."""
    scratch = path.with_name(f".{path.name}{PARTIAL}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(scratch, path)  # noqa: PTH105 - every write here is a call of os, where tests can cut it off
    sync_folder(path.parent)


def open_to_append(path: Path) -> int:
    """A descriptor that appends. The name of a new file is on the disk when this returns."""
    is_new = not path.exists()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    if is_new:
        sync_folder(path.parent)
    return handle


def append(handle: int, *contents: bytes | bytearray) -> None:
    """Append, and return when it is on the disk."""
    for content in contents:
        write_all(handle, content)
    os.fsync(handle)


def write_all(handle: int, content: bytes | bytearray) -> None:
    """All of it: the operating system may take a large write in parts."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def sync_folder(path: Path) -> None:
    """Force a folder's names to the disk, where the system knows how."""
    if os.name == "nt":
        return  # it has no such call; renames are written through
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_partials(folder: Path) -> None:
    """Remove what a crash left unfinished under other names."""
    for scratch in folder.glob(f".*{PARTIAL}"):
        scratch.unlink()
