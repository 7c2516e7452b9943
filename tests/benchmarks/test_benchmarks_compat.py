"""The comparison with Opacus goes on where it was stopped, and compares only what was measured alike."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from saltflat.data.source import Examples

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = argparse.Namespace(rounds=2, threads=1, data_dir=None)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, with a page of its own and scripts that are not really run."""
    spec = importlib.util.spec_from_file_location(
        "bench_compat", ROOT / "benchmarks" / "compat" / "opacus.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_compat", module)
    spec.loader.exec_module(module)
    module.RESULTS, module.PAGE = tmp_path / "results" / "found.json", tmp_path / "page.md"
    module.PAGE.write_text(f"before\n{module.BEGIN}\nold\n{module.END}\nafter\n", encoding="utf-8")
    module.ran = []

    def ran(script: Path, arguments: list[str], threads: int) -> dict[str, Any]:
        module.ran.append((script.stem, *arguments))
        return {"seconds": 6.0 if "opacus" in script.stem else 2.0, "accuracy": 0.5}

    module.real_rows_file = module.rows_file
    monkeypatch.setattr(module, "one_run", ran)
    monkeypatch.setattr(module, "rows_file", lambda case, data_dir, folder: folder / case.data)
    return module


def test_every_run_is_made_once(bench: ModuleType) -> None:
    bench.run(ARGUMENTS)
    assert len(bench.ran) == 2 * 2 * 2 * 2  # rounds, cases, modes, libraries
    bench.run(ARGUMENTS)
    assert len(bench.ran) == 16
    bench.run(argparse.Namespace(**vars(ARGUMENTS) | {"rounds": 3}))
    assert len(bench.ran) == 24
    page = bench.PAGE.read_text(encoding="utf-8")
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "old" not in page
    assert page.count("| 3.00 (3.00 to 3.00) |") == 4


def test_accuracies_have_a_spread_and_are_not_compared_by_their_means(bench: ModuleType) -> None:
    """Differences of both signs show nothing; the same one in every round does."""
    bench.run(ARGUMENTS)
    found = json.loads(bench.RESULTS.read_text(encoding="utf-8"))
    for seed, (theirs, own) in enumerate([(0.50, 0.60), (0.60, 0.54)]):
        found["runs"][f"small-cnn hooks opacus {seed}"]["accuracy"] = theirs
        found["runs"][f"small-cnn hooks saltflat {seed}"]["accuracy"] = own
    made = bench.table(found)
    assert "| 55.0 ± 7.1 % | 57.0 ± 4.2 % |" in made
    assert "on a thousand rows: no difference is visible over 2 rounds." in made
    for seed in range(2):
        found["runs"][f"small-cnn ghost opacus {seed}"]["accuracy"] = 0.4 + 0.001 * seed
    assert "over 2 rounds a difference is visible for small-cnn, `ghost`." in bench.table(found)


def test_what_was_stopped_goes_on(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bench.one_run

    def stops(*given: Any) -> Any:
        if len(bench.ran) == 5:
            raise KeyboardInterrupt
        return whole(*given)

    monkeypatch.setattr(bench, "one_run", stops)
    with pytest.raises(KeyboardInterrupt):
        bench.run(ARGUMENTS)
    assert len(json.loads(bench.RESULTS.read_text(encoding="utf-8"))["runs"]) == 5
    monkeypatch.setattr(bench, "one_run", whole)
    bench.run(ARGUMENTS)
    assert len(bench.ran) == len(set(bench.ran)) == 16


def test_runs_under_other_conditions_are_not_mixed_in(bench: ModuleType) -> None:
    bench.run(ARGUMENTS)
    bench.run(argparse.Namespace(**vars(ARGUMENTS) | {"threads": 2}))
    assert len(bench.ran) == 32


def test_rows_are_not_those_of_one_class(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Folders of images come sorted by class. Should fail when the first rows are taken."""
    labels = torch.arange(5000) // 500
    data = argparse.Namespace(**dict.fromkeys(("train", "test"), Examples(torch.zeros(5000, 1), labels)))
    monkeypatch.setattr("saltflat.data.load", lambda name, **_: data)
    found = torch.load(bench.real_rows_file(bench.CASES["cnn-selu"], None, tmp_path), weights_only=True)
    for _, targets in found.values():
        assert len(targets) >= 1000
        assert torch.bincount(targets, minlength=10).min() > 50


def test_the_scripts_differ_in_one_line(bench: ModuleType) -> None:
    before, after, diff = bench.changed()
    assert diff == ["-from opacus import PrivacyEngine", "+from saltflat.compat.opacus import PrivacyEngine"]
    assert len(before.splitlines()) == len(after.splitlines())
