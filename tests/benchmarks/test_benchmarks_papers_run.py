"""The runner of the papers' tables: cheapest first, within a budget, resumable, and no run is ever lost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import benchmarks_papers_helpers as helpers
import pytest
import torch
from papers import run, watching
from papers.experiments import Place, linear_data, linear_regression
from papers.outcomes import chosen_row, outcome, result_files, settings_of, words_of
from papers.watching import SideAverages

import saltflat as sf

LINEAR: dict[str, Any] = {
    "epsilon": 8,
    "epochs": 2,
    "dimension": 4,
    "rows": 32,
    "learning_rate": 1e-2,
    "cycles": [1, 5],
}


def test_a_run_leaves_one_result_and_is_not_made_again(tmp_path: Path) -> None:
    """Fails when a finished run is taken for one that is due (tried: the budget would be spent twice)."""
    registry = helpers.registry_of(tmp_path / "registry", helpers.table())
    places = (None, tmp_path / "runs", tmp_path / "results")
    assert run.run_all(registry, list(registry.works.values()), None, *places) == 0
    (path,) = (tmp_path / "results").iterdir()
    result = json.loads(path.read_text())
    assert path.name == "t-r-c-1.json"
    assert result["number"] == 1
    assert result["scale"] == "full"
    assert result["plan"]["phases"][0]["steps"] == 3
    assert result["private"] is True
    assert 0 < result["epsilon"]["pld"] <= result["epsilon"]["rdp"]
    assert 0 <= result["accuracy"] <= 1
    assert result["average_accuracy"] is None
    assert result["version"] == sf.__version__
    assert result["machine"].keys() == {
        "processor",
        "cores",
        "threads",
        "system",
    }
    assert result["command"].startswith("saltflat train --data digits")
    assert result["seconds"] > 0
    assert result["processor_seconds"] > 0
    before = path.read_bytes()
    assert run.run_all(registry, list(registry.works.values()), None, *places) == 0
    assert path.read_bytes() == before
    (cell,) = registry.cells()
    found = outcome(cell, tmp_path / "results")
    assert found is not None
    assert found.values == (100 * result["accuracy"],)


def test_cheapest_come_first_and_only_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [
        helpers.table(name, minutes=str(cost)) for name, cost in (("dear", 90), ("cheap", 2), ("middle", 20))
    ]
    registry = helpers.registry_of(tmp_path / "registry", "\n".join(tables))
    made = []

    def pretend(registry: Any, work: Any, *_: Any) -> dict[str, Any]:
        made.append(work.name)
        return {"seconds": 60.0, "accuracy": 0.5}

    monkeypatch.setattr(run, "one_run", pretend)
    run.run_all(registry, list(registry.works.values()), 30, None, tmp_path, tmp_path / "results")
    assert made == ["cheap-r-c", "middle-r-c"]


def test_names_may_be_tables_cells_works_and_patterns(tmp_path: Path) -> None:
    columns = '[{ name = "a", label = "a" }, { name = "b", label = "b", measure = "average_accuracy" }]'
    rows = '[{ name = "r", label = "row", paper = ["1", "2"] }]'
    registry = helpers.registry_of(
        tmp_path, helpers.table("one", one_work="true", columns=columns, rows=rows) + helpers.table("two")
    )
    for name, works in (
        ("one", ["one-r"]),
        ("one-r-b", ["one-r"]),
        ("two-r-c", ["two-r-c"]),
        ("*-r*", ["one-r", "two-r-c"]),
    ):
        assert [work.name for work in run.named(registry, [name])] == works
    assert run.named(registry, ["three"]) == []


def test_a_run_that_failed_stays_in_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = helpers.registry_of(tmp_path / "registry", helpers.table())

    def broken(*_: Any) -> dict[str, Any]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(run, "trained", broken)
    assert (
        run.run_all(
            registry, list(registry.works.values()), None, None, tmp_path / "runs", tmp_path / "results"
        )
        == 1
    )
    (cell,) = registry.cells()
    found = outcome(cell, tmp_path / "results")
    assert found is not None
    assert (found.values, found.failed) == ((), 1)
    assert "out of memory" in json.loads((tmp_path / "results" / "t-r-c-1.json").read_text())["failed"]


def test_what_was_refused_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f'"{helpers.SMALL.replace("digits", "no-such-data")} --steps 3"'
    registry = helpers.registry_of(tmp_path / "registry", helpers.table(words=words))
    assert (
        run.run_all(
            registry, list(registry.works.values()), None, None, tmp_path / "runs", tmp_path / "results"
        )
        == 0
    )
    assert "left out" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_a_process_that_was_killed_is_no_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = helpers.registry_of(tmp_path / "registry", helpers.table())
    killed = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed)
    run.run_all(registry, list(registry.works.values()), None, None, tmp_path / "runs", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger has one release a step in the end, and the averages say what they missed.

    Fails when a run that was cut off is not seen to have begun (tried).
    """
    place, seen = Place(tmp_path / "linear-1"), []
    whole = SideAverages.__call__

    def cut(self: SideAverages, step: Any) -> None:
        seen.append(step.number)
        if step.number == 30:
            raise KeyboardInterrupt
        whole(self, step)

    monkeypatch.setattr(SideAverages, "__call__", cut)
    monkeypatch.setattr(watching, "SIDE_EVERY", 0.0)
    with pytest.raises(KeyboardInterrupt):
        linear_regression(place, **LINEAR)
    assert place.begun
    monkeypatch.setattr(SideAverages, "__call__", whole)
    result = linear_regression(place, **LINEAR)
    entries = [json.loads(line) for line in (place.folder / "ledger.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if entry["kind"] == "release"] == list(range(1, 65))
    assert seen[-1] == 30
    assert result["missed"] == 1
    assert (
        linear_regression(place, **LINEAR)["by_cycle"] == result["by_cycle"]
    )  # of a finished run, from its files


def test_distances_are_those_of_the_weights(tmp_path: Path) -> None:
    place = Place(tmp_path / "linear-2", number=2)
    result = linear_regression(place, **LINEAR)
    _, _, truth = linear_data(2, 4, 32)
    loaded = sf.Run.load(place.folder)
    (weights,) = (weight.detach() for weight in loaded.model.parameters())
    assert result["distance"] == pytest.approx(float((weights - truth).square().sum()), rel=1e-5)
    assert loaded.average is not None
    (average,) = loaded.average.values()
    assert result["average_distance"] == pytest.approx(float((average - truth).square().sum()), rel=1e-5)
    assert result["by_cycle"]["1"] == pytest.approx(result["average_distance"], rel=1e-4)
    assert result["by_cycle"]["5"] != result["by_cycle"]["1"]  # by how much is chance


def test_the_data_of_a_repetition_is_its_own_and_stays() -> None:
    first, again, other = linear_data(1, 4, 8), linear_data(1, 4, 8), linear_data(2, 4, 8)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[0], other[0])
    assert float(first[2].min()) >= 0
    assert float(first[2].max()) <= 1


def test_choices_are_made_elsewhere_and_only_when_all_is_known(tmp_path: Path) -> None:
    """Fails when the best is taken among the rows that happen to be there (tried)."""
    each = [f'{{ name = "e{n}", label = "{n} epochs", words = "--epochs {n}" }}' for n in (1, 2)]
    rows = f"[{', '.join(each)}]"
    choose = helpers.table("choose", rows=rows, own='"ours"', words=f'"{helpers.SMALL}"')
    fair = helpers.table("fair", chosen_by='"choose"', words=f'"{helpers.SMALL}"')
    registry = helpers.registry_of(tmp_path / "registry", choose + fair)
    work, results = registry.works["fair-r-c"], tmp_path / "results"
    results.mkdir()
    (results / "choose-e1-c-1.json").write_text('{"accuracy": 0.5}')
    assert words_of(registry, work, results) is None
    (results / "choose-e2-c-1.json").write_text('{"accuracy": 0.6}')
    assert chosen_row(registry, work, results) == ("2 epochs", "choose-e2-c")
    assert (words_of(registry, work, results) or ())[-2:] == ("--epochs", "2")
    assert settings_of(registry, work, results) == {}


def test_repetitions_of_names_that_begin_alike_are_kept_apart(tmp_path: Path) -> None:
    for name in ("t-eps1-1.json", "t-eps1-2.json", "t-eps1-sgd-1.json"):
        (tmp_path / name).write_text("{}")
    assert sorted(result_files("t-eps1", tmp_path)) == [1, 2]
    assert sorted(result_files("t", tmp_path)) == []


@pytest.mark.parametrize("wrong", [["no-such-thing"], []])
def test_the_command_line_says_what_is_missing(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run.main(wrong)
    assert stop.value.code == 2
    assert "--list" in capsys.readouterr().err


def test_the_list_names_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--list", "dp-swa-table1"]) == 0
    out = capsys.readouterr().out
    assert "dp-swa-table1-eps1" in out
    assert "sai-" not in out
