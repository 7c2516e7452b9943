"""The run folder: plan, ledger, weights, metrics, certificate. Every file is written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from saltflat.errors import InputError
from saltflat.plan import Plan
from saltflat.record.atomic import append, clear_partials, open_to_append, write_whole
from saltflat.record.canonical import DamagedError, file_hash, no_run, parsed, spelled
from saltflat.record.certificate import FILES, Certificate
from saltflat.record.checkpoint import Checkpoints
from saltflat.record.evaluations import FILE as EVALUATIONS
from saltflat.record.ledger import Ledger, LedgerError
from saltflat.record.lock import NAME as LOCK
from saltflat.record.lock import FolderLock
from saltflat.record.packed import own_copies
from saltflat.record.selected import TUNING


class RunFolder:
    """``plan.json``, ``ledger.jsonl``, ``weights.safetensors``, ``average.safetensors``, ``metrics.jsonl``,
    ``certificate.json`` and ``.html``, ``model.json``, ``run.json`` and ``checkpoint/`` under one path.

    A folder holds a run as soon as it has a ``plan.json``. One process at a time may write to it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path)
        self._lock: FolderLock | None = None

    @staticmethod
    def create(path: str | Path) -> RunFolder:
        """A new folder, held for this process. One that already holds a run is refused: nothing is lost."""
        folder = RunFolder(path)
        if folder.path.exists() and not folder.path.is_dir():
            raise InputError("out", str(path), "a folder", problem="is a file")
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                "out", str(path), "a folder that can be written to",
                problem=f"cannot be made ({error.strerror or error})",
            ) from error  # fmt: skip
        if not os.access(folder.path, os.W_OK | os.X_OK):
            raise InputError(
                "out", str(path), "a folder that can be written to", problem="cannot be written to"
            )
        folder.hold()
        if folder.file(TUNING).exists():
            folder._refuse(
                "a tuning", "Choose another name. Also a tuning that was cut off has spent its epsilon."
            )
        if folder.file("plan.json").exists() or folder._has_releases():
            folder._refuse(
                "a run",
                "Choose another name; go on with that run by resume instead of out; or remove that folder.",
            )
        if folder.file(EVALUATIONS).exists():
            folder._refuse(
                "evaluations of another model", "Choose another name: what they cost stays on record there."
            )
        folder.file("ledger.jsonl").unlink(missing_ok=True)  # of a run that was cut off before it began
        folder.checkpoints.remove()
        return folder

    def _refuse(self, what: str, cure: str) -> NoReturn:
        """Let go, and say what is in a folder that should hold no run."""
        self.let_go()
        raise InputError(
            "out", str(self.path), "a folder without a run in it", problem=f"already holds {what}", cure=cure
        )

    @staticmethod
    def open(path: str | Path, argument: str = "folder") -> RunFolder:
        """The folder of a run that was made before."""
        folder = RunFolder(path)
        if not folder.file("plan.json").exists():
            raise no_run(folder.path, argument)
        return folder

    def hold(self) -> None:
        """Keep other processes out until `let_go`; an `InUseError` names one that is in already."""
        self._lock = FolderLock(self.path)

    def let_go(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _has_releases(self) -> bool:
        if not self.file("ledger.jsonl").exists():
            return False
        try:
            return not self.read_ledger(cut_short=True).shows_nothing
        except LedgerError:
            return True

    def file(self, name: str) -> Path:
        """The path of one of the folder's files."""
        return self.path / name

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file atomically: readers see the old one or the new one, never half."""
        write_whole(self.file(name), content.encode() if isinstance(content, str) else content)

    def clear_partials(self) -> None:
        """Remove what a crash left unfinished."""
        clear_partials(self.path)
        self.checkpoints.clear_partials()

    def tidy(self) -> None:
        """Remove what a finished run did not come to remove, because it was killed at the very end."""
        if self.checkpoints.path.exists() or self.file(LOCK).exists():
            self.hold()
            self.clear_partials()
            self.checkpoints.remove()
            self.let_go()

    def write_plan(self, plan: Plan) -> None:
        """``plan.json``."""
        self.write("plan.json", plan.to_json() + "\n")

    def read_plan(self) -> Plan:
        """The plan of the run."""
        try:
            return Plan.load(self.file("plan.json"))
        except UnicodeDecodeError as error:
            raise DamagedError(f"plan.json is not text ({error}).") from error

    def ledger(self) -> Ledger:
        """A new ledger that writes into the folder."""
        return Ledger(self.file("ledger.jsonl"))

    def write_ledger(self, ledger: Ledger) -> None:
        """A ledger that was kept in memory, whole. Only where another record was written ahead of it."""
        self.write("ledger.jsonl", "".join(json.dumps(entry) + "\n" for entry in ledger.entries))

    def tuning_ledger(self) -> Ledger:
        """A new record of a tuning that writes into the folder."""
        return Ledger(self.file(TUNING))

    def read_ledger(self, *, cut_short: bool = False) -> Ledger:
        """The recorded ledger, its chain checked; with ``cut_short``, without a line that a crash cut short."""
        return Ledger.read(self.file("ledger.jsonl"), cut_short=cut_short)

    def tier(self) -> str | None:
        """The tier of randomness that the run was started in; None if nothing is recorded."""
        if not self.file("ledger.jsonl").exists():
            return None
        entries = self.read_ledger(cut_short=True).entries
        return str(entries[0]["randomness"]) if entries and "randomness" in entries[0] else None

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """A safetensors file."""
        self.write(name, save(own_copies(tensors)))

    def read_tensors(self, name: str) -> dict[str, Tensor] | None:
        """The tensors of a file, or None if there is none. Never executes code."""
        if not self.file(name).exists():
            return None
        try:
            return load(self.file(name).read_bytes())
        except SafetensorError as error:
            raise DamagedError(f"{name} cannot be read ({error}).") from error

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One more line of ``metrics.jsonl``, on the disk when this returns."""
        handle = open_to_append(self.file("metrics.jsonl"))
        try:
            append(handle, json.dumps(row).encode() + b"\n")
        finally:
            os.close(handle)

    def read_metrics(self, *, cut_short: bool = False) -> list[dict[str, Any]]:
        """All lines of ``metrics.jsonl``; with ``cut_short``, without a last one that a crash cut short."""
        path = self.file("metrics.jsonl")
        content = path.read_bytes() if path.exists() else b""
        if cut_short:
            content = content[: content.rfind(b"\n") + 1]
        rows = [parsed(line, path.name) for line in content.splitlines()]
        if not all(isinstance(row, dict) for row in rows):
            raise DamagedError("metrics.jsonl holds a line that is no table of figures.")
        return rows

    def keep_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Leave these lines in ``metrics.jsonl`` and no others."""
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path = self.file("metrics.jsonl")
        if path.exists() and path.read_bytes() != content:
            write_whole(path, content)

    def write_json(self, name: str, data: Any) -> None:
        """Any small JSON file."""
        self.write(name, spelled(data))

    def read_json(self, name: str) -> Any:
        """What `write_json` wrote, or None."""
        path = self.file(name)
        return parsed(path.read_bytes(), name) if path.exists() else None

    def hashes(self) -> dict[str, str]:
        """The SHA-256 of every file that a certificate vouches for, as far as they are there."""
        return {name: file_hash(self.file(name)) for name in FILES if self.file(name).exists()}

    def write_certificate(self, certificate: Certificate) -> None:
        """``certificate.html``, then ``certificate.json``: with the second one the run has its certificate."""
        self.remove_certificate()
        self.write("certificate.html", certificate.page())
        self.write_json("certificate.json", certificate.data)

    def remove_certificate(self) -> None:
        """Remove the certificate, its page and its signature: what they are about is going to change."""
        for name in ("certificate.json", "certificate.html", "signature.json"):
            self.file(name).unlink(missing_ok=True)

    def read_certificate(self) -> Certificate | None:
        """The certificate, if the run was finished."""
        data = self.read_json("certificate.json")
        return None if data is None else Certificate.from_dict(data)
