"""Reports of damaged folders: a page that says so, or a refusal in a sentence; never more, never less than is true."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from report_runs import a_plan, audit, check_page, copied, evaluated, geometry, trained, write

import saltflat as sf
from fuzz.fuzz_helpers import as_json, byte_damages, cases, damaged, twisted, value_damages
from record.record_runs import certified_anew, chained_anew
from saltflat.errors import SaltflatError

pytestmark = pytest.mark.filterwarnings("ignore")

LINES = ("metrics.jsonl", "ledger.jsonl", "evaluations.jsonl")
FILES = ("plan.json", "certificate.json", "run.json", "geometry.json", "audit.json", *LINES)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = trained(
        tmp_path_factory.mktemp("runs") / "source", facts={"data": "x", "options": {"epsilon": 1.0}}
    )
    write(folder, "geometry.json", geometry())
    write(folder, "audit.json", audit(a_plan()))
    evaluated(folder)
    return folder


def assert_laws_of_a_report(folder: Path, honest: float) -> None:
    """The laws of a report, whatever the folder holds."""
    try:
        made = sf.report(folder)
    except SaltflatError:
        return  # nothing in it is a run any more
    check_page(made.page)
    made.page.encode()
    json.dumps(made.to_dict(), allow_nan=False)
    cost = made.costs[0]
    if made.verdict.kind == "good":
        assert made.passed
        assert cost.epsilon is not None
        assert cost.epsilon >= honest * (1 - 1e-9)
    if not made.runs[0].verification.passed:
        assert made.verdict.kind != "good"
        assert not made.passed
    if cost.by_ledger is not None and cost.epsilon is not None:
        assert cost.epsilon >= cost.by_ledger


@pytest.mark.parametrize("name", FILES)
def test_damaged_bytes(source: Path, tmp_path: Path, name: str) -> None:
    honest = sf.report(source).costs[0].by_ledger or 0.0

    @cases(12)
    @given(byte_damages)
    def law(damages: Any) -> None:
        folder = copied(source, tmp_path / "run")
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(damaged(content, damages))
        assert_laws_of_a_report(folder, honest)

    law()


def _values(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Values inside a file exchanged; the chain of a ledger, and the certificate's hashes, made to fit again."""
    if name == "ledger.jsonl":
        chained_anew(folder, change)
    elif name in LINES:
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        changed = change(rows)
        lines = changed if isinstance(changed, list) else [changed]
        (folder / name).write_bytes(b"".join(as_json(row) + b"\n" for row in lines))
    else:
        (folder / name).write_bytes(as_json(change(json.loads((folder / name).read_text()))))
    if name != "certificate.json":
        certified_anew(folder)


@pytest.mark.parametrize("name", FILES)
def test_damaged_values(source: Path, tmp_path: Path, name: str) -> None:
    """The hashes fit, so a report has to read what it finds. Fails when metrics are trusted to be numbers (tried)."""
    honest = sf.report(source).costs[0].by_ledger or 0.0

    @cases(20)
    @given(value_damages)
    def law(damages: Any) -> None:
        folder = copied(source, tmp_path / "run")
        try:
            _values(folder, name, lambda value: twisted(value, damages))
        except (TypeError, KeyError, ValueError, AttributeError):
            return  # damage that cannot even be chained again
        assert_laws_of_a_report(folder, honest if name != "ledger.jsonl" else 0.0)

    law()


def test_missing_files(source: Path, tmp_path: Path) -> None:
    honest = sf.report(source).costs[0].by_ledger or 0.0
    for name in (*FILES, "weights.safetensors", "average.safetensors", "certificate.html"):
        folder = copied(source, tmp_path / "run")
        (folder / name).unlink()
        assert_laws_of_a_report(folder, honest)
