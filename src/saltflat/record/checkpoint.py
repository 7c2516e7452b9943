"""The checkpoint: the state of a run after a step, in one file, and the journal of the releases since.

Order of writes, and why a crash between any two of them is safe
----------------------------------------------------------------
A run begins with the ledger's opening entry, a checkpoint at step 0, and last ``plan.json``: a folder without
a plan is no run yet, and nothing was released from it. Then, for each step:

1. **ledger**: the entry of the release, on disk.        Only now is noise drawn and the release made.
2. **journal**: the release itself, on disk.             Only now may anything see it.
3. use: optimizer, ascent, clip norm, average.           In memory only.
4. **checkpoint**, when one is due: the whole state, replacing the last one by a rename.
5. the journal is emptied.

A run that goes on reads the checkpoint (step s), the journal (steps up to j) and the ledger (steps up to r).

- Cut in 1: the entry is not whole, so its release was never drawn. The entry is written over.
- Cut between 1 and 2 (r = j + 1): recorded, and lost. It may have been drawn, though nobody saw it. In a private
  run it uses up one planned release of its phase: drawing it again would be a release of its own. In a seeded
  test run it is drawn again, which gives the same numbers, and finds its entry there.
- Cut in 2: the record is not whole; as above.
- Cut between 2 and 4: the journal's releases after s are used again, in order, which repeats 3 exactly. They
  left the private side once, so this costs nothing.
- Cut in 4: the old checkpoint is still there, with the whole journal.
- Cut between 4 and 5: the journal holds steps up to s only, which are skipped.
- Cut while going on: before the first new release the run writes a ``resume`` entry, then a checkpoint, then
  empties the journal. Each may be repeated.
- At the end: weights and average, then the certificate, then the checkpoint is removed. A crash before the
  certificate makes the run go on from its last checkpoint, with nothing left to release.

So r >= j always: nothing is released that is not recorded. A ledger that is behind its checkpoint or journal
was cut, and is refused. And r never passes the plan's steps, because a step that is recorded is never recorded
again and the next one is r + 1. What is stored comes from releases and public numbers: weights, moments,
averages. The state of the random generators is stored in seeded test runs only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from saltflat.errors import newer_format
from saltflat.record.atomic import append, clear_partials, open_to_append, sync_folder, write_whole
from saltflat.record.canonical import DamagedError
from saltflat.record.packed import packed, unpacked

FORMAT = 1


class Checkpoints:
    """``checkpoint/state.safetensors`` and ``checkpoint/releases.journal`` in a run folder."""

    def __init__(self, run: Path) -> None:
        self.path = run / "checkpoint"
        self.state_path = self.path / "state.safetensors"
        self.journal_path = self.path / "releases.journal"
        self._journal: Journal | None = None
        self.size = 0

    def exist(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.state_path.exists()

    def write(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the checkpoint, then empty the journal."""
        if not self.path.exists():
            self.path.mkdir()
            sync_folder(self.path.parent)
        content = packed(tensors, {"saltflat_checkpoint": FORMAT, **facts})
        write_whole(self.state_path, content)
        self.size = len(content)
        self.journal().clear()

    def journal(self) -> Journal:
        """The journal, open for appending."""
        if self._journal is None:
            self._journal = Journal(self.journal_path)
        return self._journal

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The checkpoint; a newer format is refused by name. Never executes code."""
        tensors, facts = unpacked(self.state_path.read_bytes(), "checkpoint/state.safetensors")
        version = facts.get("saltflat_checkpoint")
        if not isinstance(version, int) or isinstance(version, bool):
            raise DamagedError("checkpoint/state.safetensors is not a checkpoint of saltflat.")
        if version > FORMAT:
            raise newer_format("checkpoint", version, FORMAT)
        return tensors, facts

    def releases(self) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
        """The releases in the journal, in order."""
        return read_journal(self.journal_path)

    def close(self) -> None:
        """Let go of the journal."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def clear_partials(self) -> None:
        """Remove what a crash left unfinished."""
        if self.path.exists():
            clear_partials(self.path)

    def remove(self) -> None:
        """Remove checkpoint and journal: the run is finished."""
        self.close()
        self.clear_partials()
        self.state_path.unlink(missing_ok=True)  # first: without it there is no checkpoint
        self.journal_path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not there, or holds what is not ours
            self.path.rmdir()


_MARK = b"release\n"
_FRAME = len(_MARK) + 8 + 8


class Journal:
    """Every release since the last checkpoint, on disk before it is used; `size` is how many bytes that are.

    A record is a frame (a mark, the length, a check of both) and a packed file. One that a crash cut short is the
    last, and counts as lost; damage before the end is an error.
    """

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
