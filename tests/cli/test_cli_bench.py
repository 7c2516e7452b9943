"""``saltflat bench`` through the command line: its answer, its exit codes, and going on after a cut-off."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Inside

from saltflat.bench import contenders, memory, settings, tasks, timing

SMALL = ("bench", "--models", "mlp", "--examples", "8", "--rounds", "2", "--sections", "engines")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.0)  # steps of tiny models are taken once
    # in this process, where tests can reach it; the process of its own is tested beside the engines
    monkeypatch.setattr(tasks.engines, "compare_apart", tasks.engines.compare)
    return Inside(monkeypatch, capsys)


def test_the_answer_in_json(run: Inside, tmp_path: Path) -> None:
    code, out, err = run(*SMALL, "--json", "--out", str(tmp_path / "b"))
    assert code == 0
    assert "1/1 engines: mlp" in err
    answer = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert set(answer) == {
        "sections", "summary", "goals", "machine", "sizes", "left_out", "pictures", "out", "seconds",
    }  # fmt: skip
    result = answer["sections"]["engines"]["mlp"]
    assert result["examples"] == 8
    assert result["rounds"] == 2
    assert result["gradient_error"] < 1e-5
    assert {"processor", "threads", "torch", "peers", "code"} <= set(answer["machine"])
    by_name = {goal["name"]: goal for goal in answer["goals"]}
    assert by_name["relative error of the sums"]["met"] is True
    assert by_name["memory against the ordinary step"]["met"] is None
    assert any("sections step" in line for line in answer["left_out"])
    assert answer["summary"]["means"]["ordinary"]["models"] == 1
    assert [Path(path).name for path in answer["pictures"]] == ["ratios.png"]
    assert Path(answer["pictures"][0]).read_bytes().startswith(b"\x89PNG")
    kept = json.loads((tmp_path / "b" / "bench.json").read_text(encoding="utf-8"))
    assert kept["sections"] == answer["sections"]
    assert kept["goals"] == answer["goals"]


def test_the_same_command_goes_on_and_another_is_refused(run: Inside, tmp_path: Path) -> None:
    """Fails when a finished model is measured again (tried: its times changed)."""
    arguments = (*SMALL, "--json", "--out", str(tmp_path))
    first = json.loads(run(*arguments)[1])
    wider = list(arguments)
    wider[wider.index("mlp")] = "mlp,logistic"
    code, out, err = run(*wider)
    assert code == 0
    assert "1/2 engines: mlp, measured before" in err
    assert "2/2 engines: logistic\n" in err
    second = json.loads(out)
    assert second["sections"]["engines"]["mlp"] == first["sections"]["engines"]["mlp"]
    assert list(second["sections"]["engines"]) == ["mlp", "logistic"]
    third = json.loads(run(*arguments)[1])  # only what was asked for is told
    assert list(third["sections"]["engines"]) == ["mlp"]
    err = run.refused(*arguments, "--rounds", "3")
    assert "sizes.rounds" in err
    assert "--fresh" in err
    assert run.answer(*arguments, "--rounds", "3", "--fresh")["sections"]["engines"]["mlp"]["rounds"] == 3


def test_a_bench_that_is_stopped_says_where_its_results_are(
    run: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks.engines, "compare_apart", stop)
    code, out, err = run(*SMALL, "--out", str(tmp_path))
    assert (code, out) == (130, "")
    assert f"kept in {tmp_path / 'bench.json'}" in err
    assert "ledger" not in err


def test_a_wrong_gradient_ends_with_code_one(
    run: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the check is only printed (tried). It also does when the wrong result is a kept one."""
    real = contenders.clipped_sum

    def forgetful(*arguments: Any, **options: Any) -> Any:
        total = real(*arguments, **options)
        next(iter(total.grads.values())).mul_(0.9)
        return total

    with monkeypatch.context() as patch:
        patch.setattr(contenders, "clipped_sum", forgetful)
        code, out, err = run(*SMALL, "--out", str(tmp_path))
    assert code == 1
    assert "WRONG on mlp" in out
    assert "the sums of gradients are wrong on mlp" in err
    assert "Traceback" not in err
    code, out, _ = run(*SMALL, "--out", str(tmp_path))
    assert code == 1


def test_a_peer_that_is_not_there_is_listed(
    run: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("opacus", "opacus.grad_sample", "jax"):
        monkeypatch.setitem(sys.modules, name, None)
    code, out, _ = run(*SMALL, "--out", str(tmp_path))
    assert code == 0
    assert "not compared: opacus: not installed" in out
    assert "not compared: jax-privacy: not installed" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--models", "mpl"), "Did you mean 'mlp'"),
        (("--models", "mlp,,nothing-like-it"), "models='nothing-like-it' is not a model"),
        (("--sections", "engine"), "Did you mean 'engines'"),
        (("--examples", "0"), "examples >= 1"),
        (("--rounds", "0"), "rounds >= 1"),
        (("--rounds", "many"), "not a valid integer"),
    ],
)
def test_bad_input_ends_with_code_two(
    options: tuple[str, ...], words: str, run: Inside, tmp_path: Path
) -> None:
    assert words in run.refused("bench", *options, "--out", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_all_sections_in_one_run(run: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--quick on settings that are smaller still, with memory by rule: fresh processes are tested on their own."""

    def by_rule(cell: memory.Cell, repeats: int) -> dict[str, Any]:
        return {"engine": cell.engine, "peak_bytes": 20 * 2**20, "peaks": [0]}

    tiny = replace(
        settings.QUICK, models=("mlp",), examples=8, rounds=2, step_model="mlp", step_batch=16, step_population=60,
        methods=("dp-sat", "dp-sam"), method_rounds=2, memory_batches=(16, 64), growth_batches=(8, 16),
        growth_memory_batches=(8, 32), growth_widths=(0.05, 0.1), growth_width_examples=4, growth_micro_batches=(4, 8),
    )  # fmt: skip
    monkeypatch.setattr(settings, "QUICK", tiny)
    for function in (memory.of_model, memory.of_logical_batches, *growth_functions()):
        monkeypatch.setattr(function, "__defaults__", (by_rule,))
    code, out, err = run("bench", "--quick", "--out", str(tmp_path))
    assert code == 0, err
    assert max(map(len, out.splitlines()[:-1])) <= 100
    for words in ("Throughput of", "A whole step", "dp-sam", "Peak memory", "Growth", "Goals", "left out:"):
        assert words in out
    assert "step_model" in (tmp_path / "bench.json").read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "ratios.png", "growth.png"}
    assert "opacus hooks, s" in out
    assert "opacus hooks, MB" not in out
    total = len(tasks.tasks(tiny))
    assert f"{total}/{total} growth: micro-batch 8" in err


def growth_functions() -> list[Any]:
    from saltflat.bench import growth

    return [growth.against_batch, growth.against_parameters, growth.against_micro_batch]


def test_without_matplotlib_the_numbers_still_come(
    run: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run(*SMALL, "--json", "--out", str(tmp_path))
    assert code == 0
    assert json.loads(out)["pictures"] == []
    assert "saltflat[plot]" in err


def test_a_terminal_has_a_bar(run: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, err = run(*SMALL, "--out", str(tmp_path))
    assert code == 0
    assert "0/1" in err
    assert "engines: mlp" in err
    assert "1/1 engines" not in err
