"""Kept results, goals, tables and pictures: all of them functions of plain numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_helpers import TINY, engine_result, memory_by_rule, ratio

from saltflat.bench import growth, machine, memory
from saltflat.bench.goals import Goal, goals, summary
from saltflat.bench.report import report
from saltflat.bench.results import Results
from saltflat.bench.settings import FULL, MODELS, QUICK, SECTIONS, chosen, left_out
from saltflat.errors import InputError

MACHINE = {"processor": "a processor", "threads": 2, "torch": "2", "peers": {"opacus": None}}


# --- settings ---------------------------------------------------------------------------------------


def test_options_win_over_quick_and_quick_says_what_it_leaves_out() -> None:
    assert chosen() == FULL
    assert chosen(quick=True) == QUICK
    settings = chosen(quick=True, models=" mlp, logistic,mlp ", examples=7, rounds=9)
    assert settings.models == ("mlp", "logistic")
    assert (settings.examples, settings.rounds) == (7, 9)
    assert chosen(sections="growth,engines").sections == ("engines", "growth")
    assert left_out(FULL) == []
    told = " ".join(left_out(QUICK))
    for model in set(MODELS) - set(QUICK.models):
        assert model in told
    assert f"{QUICK.examples} instead of 256" in told
    assert "2,048 and 32,768" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sections": "engine"}, "Did you mean 'engines'"),
        ({"sections": " , "}, "at least one of the sections"),
        ({"models": ""}, "at least one of the models"),
        ({"examples": 0}, "examples >= 1"),
        ({"rounds": -1}, "rounds >= 1"),
    ],
)
def test_bad_settings_are_refused_with_the_cure(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        chosen(**options)


# --- keeping ----------------------------------------------------------------------------------------


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    """Fails when results are only written at the end (tried: the second bench measured all again)."""
    calls: list[str] = []

    def measure(name: str) -> dict[str, Any]:
        calls.append(name)
        if name == "breaks":
            raise KeyboardInterrupt
        return {"value": len(calls)}

    first = Results.open(tmp_path, {"sizes": (1, 2)})
    first.once("engines", "a", lambda: measure("a"))
    with pytest.raises(KeyboardInterrupt):
        first.once("engines", "b", lambda: measure("breaks"))
    again = Results.open(tmp_path, {"sizes": (1, 2)})  # tuples are lists in a file: still the same
    assert again.once("engines", "a", lambda: measure("a")) == {"value": 1}
    again.once("engines", "b", lambda: measure("b"))
    assert calls == ["a", "breaks", "b"]
    assert set(Results.open(tmp_path, {"sizes": (1, 2)}).sections["engines"]) == {"a", "b"}
    assert not Results.open(tmp_path, {"sizes": (1, 2)}, fresh=True).sections


def test_results_of_other_settings_or_code_are_not_mixed_in(tmp_path: Path) -> None:
    Results.open(tmp_path, {"machine": {"code": "old", "torch": "2"}}).once("step", "x", lambda: {"a": 1})
    with pytest.raises(InputError, match=r"machine\.code.*\n.*--fresh"):
        Results.open(tmp_path, {"machine": {"code": "new", "torch": "2"}})
    path = tmp_path / "bench.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"version": 1', '"version": 2'), encoding="utf-8"
    )
    with pytest.raises(InputError, match="version 2"):
        Results.open(tmp_path, {"machine": {"code": "old", "torch": "2"}})


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 1}', "null"])
def test_a_damaged_file_is_named_and_fresh_starts_anew(tmp_path: Path, damage: str) -> None:
    (tmp_path / "bench.json").write_text(damage, encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        Results.open(tmp_path, {})
    Results.open(tmp_path, {}, fresh=True).once("step", "x", lambda: {"a": 1})
    assert json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["sections"] == {
        "step": {"x": {"a": 1}}
    }


def test_the_machine_is_described_without_naming_it() -> None:
    import platform

    facts = machine.facts()
    assert facts["threads"] >= 1
    assert facts["code"] == machine.code_hash()
    assert platform.node() not in json.dumps(facts) or not platform.node()


# --- goals ------------------------------------------------------------------------------------------


def by_name(found: list[Goal]) -> dict[str, Goal]:
    return {goal.name: goal for goal in found}


def test_means_are_geometric_and_a_slow_model_is_named() -> None:
    sections = {
        "engines": {
            "a": engine_result(2.0, opacus=8.0, **{"torch.func": 4.0}),
            "b": engine_result(0.5, opacus=2.0, **{"torch.func": 0.9}),
            "c": engine_result(1.0),  # no peer can run it
        }
    }
    told = summary(sections)
    # the floor of each is half of its step
    assert told["means"]["ordinary"] == pytest.approx({"geometric_mean": 1.0, "limit": 2.0, "models": 3})
    assert told["means"]["opacus"] == pytest.approx({"geometric_mean": 4.0, "limit": 8.0, "models": 2})
    assert told["means"]["jax-privacy"] == {"geometric_mean": None, "limit": None, "models": 0}
    assert told["slower_than_a_peer"] == [{"model": "b", "peer": "torch.func", "ratio": 0.9}]
    found = by_name(goals(sections))
    assert found["throughput against the fastest Opacus mode"].met is True
    assert found["throughput against ordinary, channels_last"].value == pytest.approx(0.5)
    assert found["throughput against ordinary, channels_last"].met is False
    assert found["throughput against torch.func"].met is False
    assert found["models slower than the fastest peer"].value == 1
    assert found["models slower than the fastest peer"].met is False
    assert found["throughput against the fastest Opacus mode"].over == "2 of 7 models"


def test_an_error_of_either_sum_is_a_wrong_gradient() -> None:
    for key in ("gradient_error", "clipped_error"):
        row = engine_result(1.0) | {key: 2e-4}
        assert summary({"engines": {"a": row}})["wrong_gradients"] == ["a"]
        assert by_name(goals({"engines": {"a": row}}))["relative error of the sums"].met is False
    assert summary({"engines": {"a": engine_result(1.0)}})["wrong_gradients"] == []


def test_goals_of_steps_and_memory() -> None:
    row = {"model": "cnn-selu", "batch_size": 2048}
    sections: dict[str, Any] = {
        "step": {"dp-sgd": row | {"ratio": ratio(1.2)}},
        "methods": {
            "dp-sat": row | {"ratio": ratio(1.01)},
            "sai": row | {"ratio": ratio(1.03)},
            "dp-sam": row | {"ratio": ratio(1.95)},
        },
        "memory": {
            "logical batch": {"batches": [2048, 32768], "ratio": 0.9},
            "a": {"ratio": 1.4, "judged": True},
            "b": {"ratio": 9.0, "judged": False},
        },
    }
    met = {name: goal.met for name, goal in by_name(goals(sections)).items()}
    assert met["whole step against its clipped gradient"] is False
    assert met["DP-SAT, SAI and averages against DP-SGD"] is False  # the dearest of them counts
    assert met["DP-SAM against DP-SGD"] is True
    assert met["memory over the logical batch"] is False  # a tenth less is as odd as a tenth more
    assert met["memory against the ordinary step"] is True
    assert by_name(goals(sections))["memory against the ordinary step"].over == "1 of 7 models"


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert all(goal.met is None and goal.over == "not measured" for goal in goals({}))


# --- tables and pictures ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sections() -> dict[str, Any]:
    """All sections, with made-up times where a real measurement is tested elsewhere."""
    broken = engine_result(1.3, **{"torch.func": 2.5})
    broken["missing"] = [
        {"name": "opacus ghost, 64", "family": "opacus", "reason": "fails on this model: " + 12 * "because "},
        *({"name": f"jax-privacy, {n}", "family": "jax-privacy", "reason": "not installed"} for n in (1, 4)),
    ]
    step = {"model": "cnn-selu", "batch_size": 2048, "population": 50_000, "rounds": 15}
    step |= {"seconds": 2.9, "gradient_seconds": 2.7, "ratio": ratio(1.07)}
    method = step | {"interval": [0.99, 1.02], "confidence": 0.965}
    found: dict[str, Any] = {
        "engines": {
            "cnn-selu": engine_result(1.1, opacus=3.3, **{"torch.func": 2.2, "jax-privacy": 9.0}),
            "scatter-linear": broken,
        },
        "step": {"dp-sgd": step},
        "methods": {"dp-sgd+swa": method, "dp-sam": method},
        "memory": {
            "logical batch": memory.of_logical_batches(TINY, memory_by_rule),
            "mlp": memory.of_model("mlp", TINY, memory_by_rule),
        },
        "growth": {},
    }
    for at in (256, 1024, 4096, 32768):
        found["growth"][f"b{at}"] = {
            "axis": growth.BATCH, "at": at, "seconds": {"saltflat": at / 700, "ordinary": at / 750},
            "bytes": {"saltflat": 150 * 2**20},
        }  # fmt: skip
    for axis, places in (
        (growth.PARAMETERS, (35_000, 550_570, 8_790_000)),
        (growth.MICRO_BATCH, (8, 64, 256)),
    ):
        for at in places:
            names = ("saltflat", "ordinary", "opacus hooks")
            found["growth"][f"{axis}{at}"] = {
                "axis": axis, "at": at, "examples": 256,
                "seconds": {name: at**0.5 * (2 + i) / 1000 for i, name in enumerate(names)},
                "bytes": {name: at**0.5 * (2 + i) * 2**20 for i, name in enumerate(names)},
            }  # fmt: skip
    return found


def test_the_tables_fit_and_hide_nothing(sections: dict[str, Any]) -> None:
    text = report(sections, MACHINE, left_out(QUICK))
    assert max(map(len, text.splitlines())) <= 100
    flat = " ".join(text.split())
    assert "not compared: opacus: fails on this model: because" in flat
    assert flat.count("jax-privacy: not installed") == 1  # once, not once a setting
    assert "opacus not installed" in flat
    assert "geometric means: ordinary 1.20" in flat
    assert "slower than the fastest peer: no model" in flat
    assert "32,768" in flat
    for section in SECTIONS:
        assert sections[section]
    for goal in goals(sections):
        assert goal.name in flat


def test_a_wrong_gradient_stands_in_the_report() -> None:
    row = engine_result(1.0) | {"gradient_error": 0.02}
    assert "WRONG on mlp: relative error 2.0e-02" in report({"engines": {"mlp": row}}, MACHINE, [])


def test_a_section_that_was_not_asked_for_has_no_table() -> None:
    text = report(
        {"engines": {"mlp": engine_result(1.0)}}, MACHINE, left_out(replace(FULL, sections=("engines",)))
    )
    assert "Peak memory" not in text
    assert "sections step, methods, memory, growth" in text


def test_pictures_show_what_was_measured(sections: dict[str, Any], tmp_path: Path) -> None:
    """Not empty: many colours, and other numbers make another picture."""
    pytest.importorskip("matplotlib")
    Image = pytest.importorskip("PIL.Image")
    from saltflat.bench.pictures import draw

    paths = draw(sections, tmp_path)
    assert [path.name for path in paths] == ["ratios.png", "growth.png"]
    for path in paths:
        picture = Image.open(path).convert("RGB")
        assert min(picture.size) > 300
        assert len(picture.getcolors(1_000_000)) > 50
        for colour in ("#0b6e99", "#d97b29"):  # saltflat's and Opacus's
            wanted = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
            assert sum(count for count, found in picture.getcolors(1_000_000) if found == wanted) > 100
    before = paths[0].read_bytes()
    other = sections | {"engines": {"cnn-selu": engine_result(0.4, opacus=1.0)}}
    assert draw(other, tmp_path)[0].read_bytes() != before
    assert draw({"engines": {}}, tmp_path) == []


def test_without_matplotlib_the_cure_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from saltflat.bench.pictures import draw
    from saltflat.errors import MissingDependencyError

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"saltflat\[plot\]"):
        draw({}, tmp_path)
