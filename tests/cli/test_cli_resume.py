"""``saltflat train --resume``: real processes, killed and interrupted, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest
from cli_helpers import Inside, killed_after

import saltflat as sf
from core_helpers import small_data, small_net
from saltflat import plans
from saltflat.record.ledger import Ledger

TRAIN = [sys.executable, "-m", "saltflat", "train"]
PLAN = (
    "--method", "sai+ema", "--noise-multiplier", "4", "--delta", "1e-4", "--batch-size", "256", "--steps", "150",
)  # fmt: skip


@pytest.mark.slow
def test_a_killed_run_goes_on_and_a_finished_one_says_so(run: Inside, tmp_path: Path) -> None:
    """Killed, resumed, and asked for again: the same JSON, exit code 0."""
    dead = killed_after(40, [*TRAIN, *PLAN, "--out", "here", "--json"], tmp_path / "here", cwd=tmp_path)
    assert dead.returncode == -signal.SIGKILL
    assert dead.stdout == ""
    found = run.answer("train", "--resume", "here", "--json")
    assert (found["steps"], found["method"], found["out"], found["private"]) == (150, "sai+ema", "here", True)
    ledger = Ledger.read(tmp_path / "here" / "ledger.jsonl")
    assert (ledger.releases, ledger.resumes) == (150, 1)
    assert sf.Run.load(tmp_path / "here").accuracy == found["accuracy"]
    before = {path: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    assert run.answer("train", "--resume", "here", "--json") == found
    assert "is finished" in run("train", "--resume", "here")[2]
    assert {path: path.read_bytes() for path in (tmp_path / "here").iterdir()} == before


@pytest.mark.slow
def test_a_seeded_run_that_was_interrupted_equals_one_that_was_not(run: Inside, tmp_path: Path) -> None:
    """Ctrl-C: exit code 130, the command that goes on, and in the end the same bytes."""
    seeded = (*PLAN, "--seed", "3")
    stopped = killed_after(
        60, [*TRAIN, *seeded, "--out", "a b"], tmp_path / "a b", signal.SIGINT, cwd=tmp_path
    )
    assert stopped.returncode == 130, stopped.stderr
    assert "Go on with: saltflat train --resume 'a b'" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert (tmp_path / "a b" / "certificate.json").exists()
    run.answer("train", "--resume", "a b", "--json")
    run.answer("train", *seeded, "--out", "whole", "--json")
    for name in ("weights.safetensors", "average.safetensors", "metrics.jsonl"):
        assert (tmp_path / "a b" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def cut_off(run: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the command line that was interrupted, inside this process."""
    from saltflat.training import fit

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fit, "metrics_row", interrupt)  # at the end of the first epoch
        code, _, err = run("train", *PLAN, "--out", "here", "--randomness", "secure", "--quiet")
    assert code == 130
    assert "saltflat train --resume here" in err


def test_what_differs_is_refused_by_its_option(run: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(run, monkeypatch)
    before = {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()}
    for option, value, words in (
        ("--steps", "151", "steps=151 differs"),
        ("--epsilon", "2", "epsilon=2.0 differs"),
        ("--method", "dp-sgd", "method='dp-sgd' differs"),
        ("--model", "logistic", "model='logistic' differs"),
        ("--seed", "1", "seed=1 differs"),
        ("--schedule", "cosine", "schedule='cosine' differs"),
        ("--randomness", "exact", "randomness='exact' differs"),
        ("--out", "there", "is given beside out='there'"),
        ("--checkpoint-every", "-1", "checkpoint_every=-1.0"),
    ):
        assert words in run.refused("train", "--resume", "here", option, value)
    assert {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()} == before
    code, out, _ = run("train", "--resume", "here", "--steps", "150", "--checkpoint-every", "0", "--json")
    assert (code, json.loads(out)["steps"], json.loads(out)["randomness"]) == (0, 150, "secure")


def test_a_run_file_may_say_resume(run: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(run, monkeypatch)
    Path("run.toml").write_text('resume = "here"\ncheckpoint-every = 5\njson = true\n')
    assert run.answer("train", "run.toml")["out"] == "here"


def test_what_cannot_be_resumed_says_why(run: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "holds no run" in run("train", "--resume", "nowhere")[2]
    assert not Path("nowhere").exists()
    plan = plans.dp_sgd(noise_multiplier=3.0, population=40, batch_size=8, steps=3, delta=1e-3)
    walk = sf.steps(small_net(), small_data(), plan, out="python")
    next(walk)
    code, _, err = run("train", "--resume", "python")
    assert code == 2
    assert "was started from Python" in err
    walk.close()
    cut_off(run, monkeypatch)
    for name, words in (("model.json", "model.json"), ("run.json", "run.json"), ("plan.json", "plan")):
        shutil.copytree("here", "broken")
        for content in (
            b"{",
            b"[]",
            b'{"name": 3, "overrides": 4, "facts": {"options": {"data": 1}}}',
            b"\xff",
        ):
            (Path("broken") / name).write_bytes(content)
            err = run.refused("train", "--resume", "broken")
            assert words in err or "started from Python" in err or "rebuild" in err
        shutil.rmtree("broken")
