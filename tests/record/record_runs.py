"""Runs to verify, and ways to change them: by accident, and by someone who can hash."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import core_helpers
import saltflat as sf
from core_helpers import small_data
from saltflat import plans
from saltflat.plan import Plan, Swa
from saltflat.record.canonical import file_hash, spelled
from saltflat.record.certificate import FILES, certify, sealed
from saltflat.record.ledger import GENESIS, Ledger, entry_hash

COMMON = core_helpers.COMMON | {"steps": 6}

Entries = list[dict[str, Any]]


def a_plan(**changes: Any) -> Plan:
    """Two phases and an average."""
    return plans.sai(rho=0.1, averaging=Swa(0.5), **(COMMON | changes))


def trained(folder: Path, plan: Plan | None = None, **settings: Any) -> Path:
    """A small run in a folder."""
    model = sf.models.build("logistic", in_features=4, classes=3).double()
    settings = {"evaluate": small_data(9, 1), "progress": False, "out": folder} | settings
    sf.fit(model, small_data(), a_plan() if plan is None else plan, **settings)
    return folder


def copied(folder: Path, to: Path) -> Path:
    """The same run elsewhere."""
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(folder, to))


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def entries_of(folder: Path) -> Entries:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def write_entries(folder: Path, entries: Entries) -> None:
    (folder / "ledger.jsonl").write_bytes(b"".join(spelled(entry, indent=None) for entry in entries))


def chained_anew(folder: Path, change: Callable[[Entries], Entries]) -> None:
    """Change the ledger, number its entries and hash the chain again."""
    previous = GENESIS
    entries = change(entries_of(folder))
    for number, entry in enumerate(entries):
        entry |= {"entry": number, "previous": previous}
        entry["hash"] = previous = entry_hash(entry)
    write_entries(folder, entries)


def certified_anew(folder: Path, **changes: Any) -> None:
    """Write certificate and page with other content: count, head, hashes of files and seals fit again."""
    data = read(folder, "certificate.json")
    entries = entries_of(folder)
    data |= {"ledger_entries": len(entries), "ledger_head": entries[-1]["hash"] if entries else GENESIS}
    data["files"] = {name: file_hash(folder / name) for name in FILES if (folder / name).exists()}
    certificate = sealed(data | changes)
    (folder / "certificate.json").write_bytes(spelled(certificate.data))
    (folder / "certificate.html").write_text(certificate.page())


def forged(folder: Path, plan: Plan) -> None:
    """All of it written anew, for another plan: what no check of the files alone can notice."""
    (folder / "plan.json").write_text(plan.to_json() + "\n")

    def replanned(entries: Entries) -> Entries:
        for entry in entries:
            if "plan_hash" in entry:
                entry["plan_hash"] = plan.hash
            if entry["kind"] == "release":
                entry["noise_multipliers"] = list(plan.query_noises(plan.phases[entry["phase"]]))
        return entries

    chained_anew(folder, replanned)
    ledger = Ledger.read(folder / "ledger.jsonl")
    files = {name: file_hash(folder / name) for name in FILES if (folder / name).exists()}
    certificate = certify(plan, ledger, randomness="fast", seeded=False, files=files)
    (folder / "certificate.json").write_bytes(spelled(certificate.data))
    (folder / "certificate.html").write_text(certificate.page())


def failed(folder: Path, **options: Any) -> list[str]:
    found = sf.verify(folder, **options)
    json.dumps(found.to_dict(), allow_nan=False)
    assert ("NOT VERIFIED" in str(found)) == (not found.passed)
    assert found.passed or found.failed
    return found.failed
