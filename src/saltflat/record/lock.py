"""One process a run folder: a second one is refused, and told which the first is.

The lock is the operating system's, on an open file. It goes with the process, however that ends, so that a
killed run leaves nothing to clean up; the file's content only says who holds it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saltflat.errors import SaltflatError

NAME = "lock"


class InUseError(SaltflatError):
    """Another process works on this run folder."""


class FolderLock:
    """Holds a run folder for this process until `release`. Raises `InUseError` if it is held already.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with FolderLock(folder):
    ...     FolderLock(folder)
    Traceback (most recent call last):
    saltflat.record.lock.InUseError: ... is in use by process ...
    >>> FolderLock(folder).release()
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._handle: int | None = None
        while self._handle is None:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            if not _locked(handle):
                os.close(handle)
                raise InUseError(
                    f"{folder} is in use by {self._holder()}.\n"
                    "  Expected a run folder that no other process works on. Wait for it, or choose another folder."
                )
            if _is_same_file(handle, self.path):
                self._handle = handle
            else:  # its holder removed it between our opening and our locking it
                os.close(handle)
        os.ftruncate(self._handle, 0)
        held = {"process": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.write(self._handle, json.dumps(held).encode())

    def release(self) -> None:
        """Let the folder go. May be called again."""
        if self._handle is not None:
            if os.name != "nt":
                self.path.unlink(missing_ok=True)  # while we hold it: nobody else can be in between
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _holder(self) -> str:
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            return f"process {held['process']} on {held['host']}, since {held['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"


@contextmanager
def waited_for(path: Path, seconds: float = 300.0) -> Iterator[None]:
    """Holds a lock file inside the block, and waits for it before: for files that are held for moments only.

    The lock goes with the process, however that ends. The file stays.

    >>> import tempfile
    >>> with waited_for(Path(tempfile.mkdtemp()) / "lock"):
    ...     pass
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        until = time.monotonic() + seconds
        while not _locked(handle):
            if time.monotonic() > until:
                raise InUseError(
                    f"{path} has been held by another process for {seconds:.0f} seconds.\n"
                    "  Expected that it lets go soon. Look for a process that hangs."
                )
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _locked(handle: int) -> bool:
        try:
            os.lseek(handle, 1 << 30, os.SEEK_SET)  # beyond the text, which others may read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(handle, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _locked(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
