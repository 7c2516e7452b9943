"""The run folder: plan, ledger, weights, metrics, certificate. Every file is written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import Tensor

from saltflat.errors import InputError
from saltflat.plan import Plan
from saltflat.record.certificate import Certificate
from saltflat.record.ledger import Ledger


class RunFolder:
    """``plan.json``, ``ledger.jsonl``, ``weights.safetensors``, ``average.safetensors``, ``metrics.jsonl``,
    ``certificate.json`` and ``model.json`` under one path.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @staticmethod
    def create(path: str | Path) -> RunFolder:
        """A new folder. One that already holds a run is refused, so that nothing is lost."""
        folder = RunFolder(path)
        if folder.path.exists() and not folder.path.is_dir():
            raise InputError("out", str(path), "a folder", problem="is a file")
        if folder.file("ledger.jsonl").exists() or folder.file("plan.json").exists():
            raise InputError(
                "out", str(path), "a folder without a run in it", problem="already holds a run",
                cure="Choose another name, or remove that folder if the run is not needed.",
            )  # fmt: skip
        folder.path.mkdir(parents=True, exist_ok=True)
        return folder

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """The folder of a run that was made before."""
        folder = RunFolder(path)
        if not folder.file("plan.json").exists():
            raise InputError("folder", str(path), "a folder that saltflat wrote", problem="holds no run")
        return folder

    def file(self, name: str) -> Path:
        """The path of one of the folder's files."""
        return self.path / name

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file atomically: readers see the old one or the new one, never half."""
        data = content.encode() if isinstance(content, str) else content
        scratch = self.file(f".{name}.partial")
        with scratch.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        scratch.replace(self.file(name))

    def write_plan(self, plan: Plan) -> None:
        """``plan.json``."""
        self.write("plan.json", plan.to_json() + "\n")

    def read_plan(self) -> Plan:
        """The plan of the run."""
        return Plan.load(self.file("plan.json"))

    def ledger(self) -> Ledger:
        """A new ledger that writes into the folder."""
        return Ledger(self.file("ledger.jsonl"))

    def read_ledger(self) -> Ledger:
        """The recorded ledger, its chain checked."""
        return Ledger.read(self.file("ledger.jsonl"))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> str:
        """A safetensors file; returns the SHA-256 of its bytes."""
        # tied tensors share memory, which the format refuses: each is stored as its own copy
        content = save({key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()})
        self.write(name, content)
        return hashlib.sha256(content).hexdigest()

    def read_tensors(self, name: str) -> dict[str, Tensor] | None:
        """The tensors of a file, or None if there is none. Never executes code."""
        return load_file(self.file(name)) if self.file(name).exists() else None

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One more line of ``metrics.jsonl``."""
        with self.file("metrics.jsonl").open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of ``metrics.jsonl``."""
        path = self.file("metrics.jsonl")
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def write_json(self, name: str, data: Any) -> None:
        """Any small JSON file."""
        self.write(name, json.dumps(data, indent=2, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        """What `write_json` wrote, or None."""
        path = self.file(name)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def read_certificate(self) -> Certificate | None:
        """The certificate, if the run was finished."""
        data = self.read_json("certificate.json")
        return None if data is None else Certificate.from_dict(data)
