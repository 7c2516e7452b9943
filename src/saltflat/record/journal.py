"""The journal: every release since the last checkpoint, on disk before it is used.

A checkpoint and the releases after it give the state of a run at any later step: the optimizer takes them
again, exactly and for free, because they left the private side once already. So a crash loses at most the one
release that was under way. The journal is emptied when a checkpoint holds what it held.

Each record is a frame (a mark, the length, a check of both) and a packed file. A record that a crash cut short
is the last one, and counts as lost; damage before the end is an error.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from saltflat.record.atomic import append, open_to_append
from saltflat.record.canonical import DamagedError
from saltflat.record.packed import packed, unpacked

_MARK = b"release\n"
_FRAME = len(_MARK) + 8 + 8


class Journal:
    """Appends releases to a file; `size` is how many bytes it has grown to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = open_to_append(path)
        self.size = os.fstat(self._handle).st_size

    def append(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write one release. Returns when it is on the disk."""
        content = packed(tensors, facts)
        append(self._handle, _framed(len(content)), content)
        self.size += _FRAME + len(content)

    def clear(self) -> None:
        """Forget all releases: a checkpoint holds them."""
        os.ftruncate(self._handle, 0)
        self.size = 0

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)


def read_journal(path: Path) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
    """The releases of a journal, in order, one at a time; a last one that was cut short is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        while frame := file.read(_FRAME):
            left -= len(frame)
            length = int.from_bytes(frame[len(_MARK) : len(_MARK) + 8], "little")
            if len(frame) == _FRAME and frame != _framed(length):
                if not (frame + file.read()).strip(b"\0"):
                    return  # the file grew, and the power went before its content was there
                raise DamagedError(f"{path.name} was changed or damaged: a record has no frame.")
            if len(frame) < _FRAME or left < length:
                return
            left -= length
            try:
                record = unpacked(file.read(length), path.name)
            except DamagedError:
                if left == 0:
                    return
                raise
            yield record


def _framed(length: int) -> bytes:
    head = _MARK + length.to_bytes(8, "little")
    return head + hashlib.sha256(head).digest()[:8]
