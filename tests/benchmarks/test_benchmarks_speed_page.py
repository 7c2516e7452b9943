"""What pages say about speed is what one run measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "speed" / "page.py"
spec = importlib.util.spec_from_file_location("speed_page", FILE)
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)


@pytest.mark.parametrize("which", page.PAGES, ids=lambda path: path.name)
def test_pages_are_up_to_date(which: Path) -> None:
    there = which.read_text(encoding="utf-8")
    assert there == page.written(which, page.newest()), "make it again: python benchmarks/speed/page.py"


def test_every_model_that_was_measured_is_shown() -> None:
    """Fails when a ratio is turned round, or when a model is left out (tried)."""
    results = page.newest()
    for model, engine in results["sections"]["engines"].items():
        row = next(line for line in page.rows(results).splitlines() if line.startswith(f"| `{model}` |"))
        assert f"| {engine['ratios']['opacus']['median']:.2f} |" in row
        row = next(line for line in page.tables(results).splitlines() if line.startswith(f"| {model} |"))
        assert f"| {engine['ratios']['opacus']['median']:.2f} (" in row
    assert results["identity"]["machine"]["processor"] in page.rows(results)


def test_a_run_that_lacks_a_section_is_not_told_of(tmp_path: Path) -> None:
    """Numbers of two runs in one table would be compared as if they were of one."""
    whole = page.newest()
    (tmp_path / "9.json").write_text(json.dumps(whole), encoding="utf-8")
    (tmp_path / "10-later.json").write_text(json.dumps(whole), encoding="utf-8")
    assert page.newest(tmp_path)["file"] == "10-later.json"  # by number: as words, 10 comes before 9
    (tmp_path / "10-later.json").unlink()
    less = whole | {"sections": {"engines": {}}}
    (tmp_path / "11.json").write_text(json.dumps(less), encoding="utf-8")
    short = whole["sections"] | {"memory": {}}  # cut off
    (tmp_path / "12.json").write_text(json.dumps(whole | {"sections": short}), encoding="utf-8")
    assert page.newest(tmp_path)["file"] == "9.json"
    (tmp_path / "9.json").unlink()
    with pytest.raises(ValueError, match="holds no run over"):
        page.newest(tmp_path)


def test_a_page_without_marks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "README.md"
    bare.write_text("# saltflat\n", encoding="utf-8")
    monkeypatch.setitem(page.PAGES, bare, page.rows)
    with pytest.raises(ValueError, match="no marks"):
        page.written(bare, page.newest())
