"""Bytes from files: compressed or not, alone or in an archive, and complete or refused.

Every function here either returns all the bytes or raises an `InputError` that names the file. Nothing is
unpacked to disk, and compression is recognised by its first bytes, never by the file's name.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from saltflat.errors import InputError

DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    MemoryError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)
_AGAIN = "The file is damaged or incomplete: get it again."


def bad_file(path: Path | str, problem: str, expected: str, cure: str = _AGAIN) -> InputError:
    """The error for a file that is not what it should be. A long path keeps its end, where the name is.

    >>> print(bad_file("train.bin", "ends in the middle of a record", "whole records of 3073 bytes"))
    file='train.bin' ends in the middle of a record.
      Expected whole records of 3073 bytes. The file is damaged or incomplete: get it again.
    """
    text = str(path)
    shown = text if len(text) <= 110 else "..." + text[-107:]
    return InputError("file", shown, expected, problem=problem, cure=cure)


def check_several(path: Path | str, classes: Sequence[str]) -> None:
    """Refuse data of a single class: there is nothing to tell apart, and a budget would be spent on it."""
    if len(classes) == 1:
        raise bad_file(
            path, f"holds a single class, {classes[0]!r}", "two classes or more",
            cure="Bring rows of the others too, or declare all that there can be: classes=.",
        )  # fmt: skip


def by(shape: Iterable[int]) -> str:
    """A shape in words.

    >>> by((3, 32, 32))
    '3x32x32'
    """
    return "x".join(str(size) for size in shape)


def cache_dir() -> Path:
    """Where saltflat keeps downloads and decoded images: in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "saltflat"


def open_plain(path: Path) -> IO[bytes]:
    """The file's content as a stream, with gzip, xz or bzip2 taken off."""
    with path.open("rb") as stream:
        head = stream.read(6)
    if head.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.open(path))
    if head.startswith(b"\xfd7zXZ\x00"):
        return cast("IO[bytes]", lzma.open(path))
    if head.startswith(b"BZh"):
        return cast("IO[bytes]", bz2.open(path))
    return path.open("rb")


def read_all(path: Path) -> bytes:
    """Everything in the file, decompressed and, where the compression carries a checksum, checked."""
    try:
        with open_plain(path) as stream:
            return stream.read()
    except DAMAGE as error:
        raise bad_file(path, f"cannot be read to its end ({error})", "a complete file") from error


def tar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every regular file of a tar archive, in its order.

    The archive is read past its last member to the very end, so that a cut or a flipped bit that the
    compression can see is seen, and an archive without its closing zeros is refused.
    """
    try:
        with open_plain(path) as plain:
            stream = _RemembersTail(plain)
            with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isfile() else None
                    if content is None:
                        continue
                    data = content.read()
                    if len(data) != member.size:
                        raise EOFError(f"{member.name} is cut short")
                    yield member.name.removeprefix("./"), data
            while stream.read(1 << 20):
                pass
            if len(stream.tail) < 1024 or any(stream.tail):
                raise EOFError("the end of the archive is missing")
    except InputError:
        raise
    except DAMAGE as error:
        raise bad_file(path, f"cannot be read to its end ({error})", "a complete tar archive") from error


def zip_members(path: Path, wanted: list[str]) -> list[bytes]:
    """The content of the wanted members of a zip archive, found by the end of their names, gzip taken off."""
    found: list[bytes] = []
    try:
        with zipfile.ZipFile(path) as archive:
            for name in wanted:
                matches = [m for m in archive.namelist() if Path(m).name in (name, name + ".gz")]
                if not matches:
                    raise bad_file(
                        path, f"holds no {name}", f"an archive with {', '.join(wanted)}",
                        "Check that it is the right one.",
                    )  # fmt: skip
                data = archive.read(matches[0])
                found.append(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    except InputError:
        raise
    except DAMAGE as error:
        raise bad_file(path, f"cannot be read to its end ({error})", "a complete zip archive") from error
    return found


class _RemembersTail(io.RawIOBase):
    """A stream that keeps the last 1024 bytes that went through it: a tar archive must end in zeros."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self.tail = b""

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._stream.read(-1 if size is None else size)
        self.tail = (self.tail + data[-1024:])[-1024:]
        return data
