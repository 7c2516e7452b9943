"""The README's rows on speed are what the measurements say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "speed" / "page.py"
spec = importlib.util.spec_from_file_location("speed_page", FILE)
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)


def test_the_readme_is_up_to_date() -> None:
    there = page.README.read_text(encoding="utf-8")
    assert there == page.with_rows(there), "make it again: python benchmarks/speed/page.py"


def test_every_model_that_was_measured_is_shown() -> None:
    """Fails when a ratio is turned round, or when a model is left out (tried)."""
    results = page.kept()
    rows = page.rows(results)
    for model, engine in results["sections"]["engines"].items():
        row = next(line for line in rows.splitlines() if line.startswith(f"| `{model}` |"))
        assert f"| {engine['ratios']['opacus']['median']:.2f} |" in row
    assert results["identity"]["machine"]["processor"] in rows


def test_a_readme_without_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no marks"):
        page.with_rows("# saltflat\n")
