"""Ctrl-C, sent to real processes: exit code 130, no traceback, and the command that goes on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import Inside, killed_after, write_table

from saltflat.record.ledger import Ledger
from saltflat.training import fit, trials

assert trials  # imported before a test exchanges what it takes from `fit`, which it would keep

SALTFLAT = [sys.executable, "-m", "saltflat"]
PLAN = ["--noise-multiplier", "4", "--delta", "1e-4", "--batch-size", "256", "--steps", "150"]


def told_to(stderr: str) -> list[str]:
    """The command after 'Go on with:', as a shell would read it."""
    return shlex.split(stderr.partition("Go on with: ")[2].splitlines()[0])


def test_an_interrupt_inside_executed_text_ends_with_our_exit_code(tmp_path: Path) -> None:
    """As when it falls into scipy, where ε is computed: without the care of `__main__` the code is -2 (tried)."""
    early = "import click\nclick.Group.main = lambda *_, **__: exec('raise KeyboardInterrupt')\n"
    (tmp_path / "sitecustomize.py").write_text(early)
    done = subprocess.run(
        SALTFLAT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "saltflat: stopped.\n")


@pytest.mark.slow
def test_train_goes_on_with_the_very_words_it_printed(run: Inside, tmp_path: Path) -> None:
    """Also where the folder's name needs quotes."""
    stopped = killed_after(
        40,
        [*SALTFLAT, "train", *PLAN, "--out", "it's here"],
        tmp_path / "it's here",
        signal.SIGINT,
        cwd=tmp_path,
    )
    assert stopped.returncode == 130, stopped.stderr
    assert stopped.stdout == ""
    assert "Traceback" not in stopped.stderr
    command = told_to(stopped.stderr)
    assert command == ["saltflat", "train", "--resume", "it's here"]
    assert run.answer(*command[1:], "--json")["steps"] == 150
    assert Ledger.read(tmp_path / "it's here" / "ledger.jsonl").resumes == 1


@pytest.mark.slow
def test_compare_goes_on_with_the_very_words_it_printed(run: Inside, tmp_path: Path) -> None:
    command = ["compare", "--methods", "dp-sgd,sai", "--seeds", "1", *PLAN, "--out", "a b", "--quiet"]
    stopped = killed_after(
        40, [*SALTFLAT, *command], tmp_path / "a b" / "sai-seed0", signal.SIGINT, cwd=tmp_path
    )
    assert stopped.returncode == 130, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert "The runs so far are kept in a b." in stopped.stderr
    assert told_to(stopped.stderr) == ["saltflat", *command]
    code, _, err = run(*told_to(stopped.stderr)[1:])
    assert code == 0, err
    assert Ledger.read(tmp_path / "a b" / "sai-seed0" / "ledger.jsonl").resumes == 1
    assert Ledger.read(tmp_path / "a b" / "dp-sgd-seed0" / "ledger.jsonl").resumes == 0


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_before_the_first_release_nothing_is_promised(run: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saltflat.cli.run_data.load", interrupt)
    code, out, err = run("train", *PLAN)
    assert (code, out) == (130, "")
    assert err.endswith("saltflat: stopped. Nothing was released yet.\n")


def test_without_checkpoints_it_cannot_go_on_and_says_so(
    run: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saltflat.training.fit.metrics_row", interrupt)
    code, _, err = run("train", *PLAN, "--checkpoint-every", "inf", "--out", "here")
    assert code == 130
    assert "recorded in here/ledger.jsonl. Without checkpoints it cannot go on." in err
    assert "Go on with" not in err


def test_a_tuning_that_was_cut_off_is_spent(run: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """And `train --resume` says why it cannot go on, instead of that Python started it."""
    with monkeypatch.context() as patch:
        patch.setattr("saltflat.training.trials.draw_repetitions", interrupt)
        code, out, err = run(
            "tune", "--grid", "learning_rate=1,2", "--epsilon", "3", "--delta", "1e-4", "--steps", "2", "--out",
            "here",
        )  # fmt: skip
    assert (code, out) == (130, "")
    assert "its budget counts as spent" in err
    assert (Path("here") / "tuning.jsonl").exists()
    err = run.refused("train", "--resume", "here")
    assert "resume='here' is a tuning, which cannot go on" in err
    assert "saltflat tune --out" in err
    assert "Python" not in err


def test_a_tuning_on_public_data_goes_on_as_a_run(run: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table("secret.csv")
    write_table("public.csv", weight=0.5)
    command = (
        "tune", "--data", "secret.csv", "--proxy", "public.csv", "--label", "outcome", "--epsilon", "3", "--delta",
        "1e-3", "--batch-size", "20", "--steps", "9", "--grid", "learning_rate=0.1,1", "--out", "here", "--quiet",
    )  # fmt: skip
    rightly, calls = fit.metrics_row, []

    def third_time(*arguments: object) -> object:
        calls.append(1)
        return interrupt() if len(calls) > 4 else rightly(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(fit, "metrics_row", third_time)
        code, _, err = run(*command)
    assert code == 130
    assert "Go on with: saltflat train --resume here" in err
    assert run.answer("train", "--resume", "here", "--json")["steps"] == 9


def test_resume_of_a_finished_tuning_has_nothing_to_do(run: Inside) -> None:
    settings = ("--grid", "learning_rate=1,2", "--epsilon", "3", "--delta", "1e-4", "--steps", "2")
    assert run("tune", *settings, "--repeats", "1", "--out", "here", "--quiet")[0] == 0
    code, out, err = run("train", "--resume", "here")
    assert code == 0, err
    assert "is finished; there is nothing left to do" in err
    code, out, err = run("evaluate", "here", "--epsilon", "0.5", "--quiet")
    assert code == 0, err
    assert out.startswith("accuracy ")
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("audit --quick --steps 5", "audit.run"),
        ("models", "models.names"),
        ("data list", "data.names"),
        ("bench --quick", "bench.tasks.tasks"),
    ],
)
def test_others_stop_without_a_word_about_ledgers(
    line: str, where: str, run: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"saltflat.{where}", interrupt)
    code, out, err = run(*line.split())
    assert (code, out) == (130, "")
    assert "stopped." in err
    assert "ledger" not in err
    assert "Traceback" not in err
    assert ("Go on with: saltflat bench --quick" in err) == line.startswith("bench")
