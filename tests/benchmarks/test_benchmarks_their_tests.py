"""Opacus's own tests: only imports are changed, every failure has a reason, and the page says what was found."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORT = """<testsuites><testsuite>
<testcase classname="their_tests.a_test.First" name="test_good"/>
<testcase classname="their_tests.a_test.First" name="test_bad"><failure message="no&#10;more"/></testcase>
<testcase classname="their_tests.a_test.First" name="test_parts"/>
<testcase classname="their_tests.a_test.First" name="test_parts"><failure message="one of them"/></testcase>
<testcase classname="their_tests.a_test.First" name="test_left"><skipped message="why"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = ROOT / "benchmarks" / "compat" / "their_tests.py"
    spec = importlib.util.spec_from_file_location("bench_their_tests", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_their_tests", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    return module


def test_only_imports_are_changed(bench: ModuleType) -> None:
    before = 'from opacus.layers import DPLSTM\n    import opacus\nlog("opacus.data_loader")\n'
    after = before.replace("opacus", "saltflat.compat.opacus")
    assert bench.changed(before) == after
    for line in ("compute_opacus_grad_sample,", "# see pytorch/opacus/pull", "from opacus_x import y"):
        assert bench.changed(line) == line


def test_a_test_whose_part_fails_has_failed(bench: ModuleType) -> None:
    found = bench.outcomes(ElementTree.fromstring(REPORT))
    assert found == {
        "passed": 1,
        "skipped": 1,
        "failed": {"First.test_bad": "no", "First.test_parts": "one of them"},
    }


def test_failures_and_reasons_must_match(bench: ModuleType) -> None:
    bench.REASONS = {"a_test::First.test_bad": "so", "a_test::First.test_other": "so", "b_test::X.y": "so"}
    files: dict[str, Any] = {
        "a_test": {"passed": 1, "skipped": 0, "failed": ["First.test_bad", "First.test_new"]}
    }
    assert [fault.split()[0] for fault in bench.faults(files)] == [
        "a_test::First.test_new", "a_test::First.test_other",
    ]  # fmt: skip


def test_the_page_says_what_was_found(bench: ModuleType) -> None:
    held = json.loads(bench.RESULTS.read_text(encoding="utf-8"))
    assert bench.faults(held["saltflat"]["files"]) == []
    page = bench.PAGE.read_text(encoding="utf-8")
    assert bench.between(page, bench.BEGIN, bench.END, bench.table(held)) == page
