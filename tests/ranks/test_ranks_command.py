"""``torchrun -m saltflat train``: one folder, one record, one voice; and a rank that is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import click
import pytest
from ranks_helpers import (
    LONG,
    Inside,
    descendants,
    launched,
    process_of_rank,
    torchrun,
    wait_for_entries,
    wait_for_the_end,
)
from safetensors.torch import load_file

from saltflat.cli.train import _trained
from saltflat.errors import LostRankError
from saltflat.ranks.stopping import Terminated
from saltflat.record.ledger import Ledger

TRAIN = ("-m", "saltflat", "train")
SMALL = ("--noise-multiplier", "2", "--delta", "1e-4", "--batch-size", "64", "--method", "sai+ema")


@pytest.fixture
def run(run: Inside, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """The command line in this process, without anything that a launcher may have left in its environment."""
    for word in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(word, raising=False)
    return run


def test_two_ranks_write_one_record_and_speak_once(run: Inside, tmp_path: Path) -> None:
    """A seeded run: its weights are those of one process to the rounding of float32."""
    words = (*SMALL, "--steps", "6", "--seed", "1")
    done = torchrun(2, *TRAIN, *words, "--out", "two", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)  # one object, from one rank
    assert (said["steps"], said["private"]) == (6, False)
    assert done.stderr.count("NOT PRIVATE") == done.stderr.count("Traceback") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two"]

    code, out, err = run("train", *words, "--out", "one", "--json")
    assert code == 0, err
    two, one = (load_file(tmp_path / name / "weights.safetensors") for name in ("two", "one"))
    for name, value in one.items():
        assert float((two[name] - value).norm()) <= 1e-5 * float(value.norm())
    averages = [load_file(tmp_path / name / "average.safetensors") for name in ("two", "one")]
    for name, value in averages[1].items():
        assert float((averages[0][name] - value).norm()) <= 1e-5 * float(value.norm())
    assert said["accuracy"] == pytest.approx(json.loads(out)["accuracy"], abs=0.02)

    ledgers = [Ledger.read(tmp_path / name / "ledger.jsonl") for name in ("two", "one")]
    assert [entry["hash"] for entry in ledgers[0].entries] == [entry["hash"] for entry in ledgers[1].entries]
    assert json.loads((tmp_path / "two" / "run.json").read_text())["ranks"] == 2
    code, out, err = run("verify", "two", "--accept", "not-private")
    assert code == 0, out + err


def test_a_killed_rank_ends_the_run_in_order_and_one_process_goes_on(run: Inside, tmp_path: Path) -> None:
    """The kill comes in the middle of a private run; nothing of the launch is left, and the record is whole."""
    with launched(2, *TRAIN, *SMALL, "--steps", "150", "--out", "cut", cwd=tmp_path) as process:
        wait_for_entries(process, tmp_path / "cut" / "ledger.jsonl", 30)
        below = descendants(process.pid)
        os.kill(process_of_rank(process.pid, 1), signal.SIGKILL)
        out, err = process.communicate(timeout=LONG)
        assert process.returncode != 0
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert out == ""
    assert "go on with: saltflat train --resume cut" in err, err
    assert "saltflat:" in err.partition("go on with")[0]
    certificate = json.loads((tmp_path / "cut" / "certificate.json").read_text())
    recorded = certificate["recorded_releases"]
    assert certificate["finished"] is False
    assert 29 <= recorded < 150
    code, out, err = run("verify", "cut")
    assert code == 1
    assert "1 check failed (finished)" in out
    code, out, err = run("verify", "cut", "--accept", "unfinished")
    assert code == 0, out + err

    code, out, err = run("train", "--resume", "cut", "--json")
    assert code == 0, err
    ledger = Ledger.read(tmp_path / "cut" / "ledger.jsonl")
    assert (ledger.releases, ledger.resumes) == (150, 1)
    steps = [entry["step"] for entry in ledger.entries if entry["kind"] == "release"]
    assert steps == list(range(1, 151))
    code, out, err = run("verify", "cut")
    assert code == 0, out + err


@pytest.mark.slow
def test_a_silent_rank_is_given_up_after_a_while(
    run: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 is stopped: its connections stay open, and it says nothing. Without a limit this would wait for ever."""
    monkeypatch.setenv("SALTFLAT_RANK_TIMEOUT", "20")
    with launched(2, *TRAIN, *SMALL, "--steps", "2000", "--out", "cut", cwd=tmp_path) as process:
        wait_for_entries(process, tmp_path / "cut" / "ledger.jsonl", 30)
        below = descendants(process.pid)
        leader, silent = (process_of_rank(process.pid, rank) for rank in (0, 1))
        os.kill(silent, signal.SIGSTOP)
        wait_for_the_end(leader)
        os.kill(silent, signal.SIGCONT)  # so that it hears its launcher, which ends all
        out, err = process.communicate(timeout=LONG)
        assert process.returncode != 0
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert out == ""
    assert "it was silent for longer than 20 seconds (SALTFLAT_RANK_TIMEOUT)" in err
    assert "go on with: saltflat train --resume cut" in err, err
    assert json.loads((tmp_path / "cut" / "certificate.json").read_text())["finished"] is False
    code, out, err = run("verify", "cut", "--accept", "unfinished")
    assert code == 0, out + err


@pytest.mark.slow
def test_the_leader_is_killed_and_three_ranks_go_on(run: Inside, tmp_path: Path) -> None:
    """Rank 0 holds everything: what it wrote before is enough."""
    with launched(2, *TRAIN, *SMALL, "--steps", "150", "--out", "cut", cwd=tmp_path) as process:
        wait_for_entries(process, tmp_path / "cut" / "ledger.jsonl", 30)
        below = descendants(process.pid)
        os.kill(process_of_rank(process.pid, 0), signal.SIGKILL)
        process.communicate(timeout=LONG)
        assert process.returncode != 0
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    done = torchrun(3, *TRAIN, "--resume", "cut", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 150
    ledger = Ledger.read(tmp_path / "cut" / "ledger.jsonl")
    assert (ledger.releases, ledger.resumes) == (150, 1)
    code, out, err = run("verify", "cut")
    assert code == 0, out + err
    again = torchrun(2, *TRAIN, "--resume", "cut", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["out"] == "cut"


@pytest.mark.slow
def test_ctrl_c_ends_all_ranks_in_order(run: Inside, tmp_path: Path) -> None:
    """As a terminal sends it: to the launcher and to every rank."""
    with launched(2, *TRAIN, *SMALL, "--steps", "2000", "--out", "cut", cwd=tmp_path) as process:
        wait_for_entries(process, tmp_path / "cut" / "ledger.jsonl", 30)
        below = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LONG)
        assert process.returncode != 0
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert "saltflat train --resume cut" in err
    assert json.loads((tmp_path / "cut" / "certificate.json").read_text())["finished"] is False
    code, out, err = run("verify", "cut", "--accept", "unfinished")
    assert code == 0, out + err


def test_a_bad_request_is_refused_in_one_voice(tmp_path: Path) -> None:
    done = torchrun(2, *TRAIN, "--batch-size", "5000", "--out", "never", cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("saltflat: batch_size=5000 is larger than population=1437.") == 1
    assert "rank 1" not in "".join(line for line in done.stderr.splitlines() if line.startswith("saltflat:"))
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("command", ["compare", "tune", "quickstart", "federate", "recipe", "bench"])
def test_other_commands_are_for_one_process(
    command: str, run: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank would do all of it. What a rank starts by itself may: it has no part in the launch."""
    for word, value in {
        "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x",
    }.items():  # fmt: skip
        monkeypatch.setenv(word, value)
    code, out, err = run(command)
    assert (code, out) == (2, "")
    assert f"Expected one process for saltflat {command}" in err


def test_a_signal_while_a_lost_rank_is_told_of_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 loses a rank, and the launcher's SIGTERM comes before it has said so. Fails when only the first is
    caught (tried: "Aborted!" is all that was said)."""

    def lose(*_: object, **__: object) -> None:
        raise LostRankError("Another rank was lost.")

    def interrupted(*_: object) -> None:
        raise Terminated("SIGTERM")

    monkeypatch.setattr("saltflat.cli.training_run.train_once", lose)
    monkeypatch.setattr("saltflat.cli.train.lost_rank", interrupted)
    monkeypatch.setattr("saltflat.cli.train.ranks_here", lambda: 2)
    monkeypatch.setattr(
        "saltflat.ranks.stopping.already_ending", lambda: None
    )  # it would change this process
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "state.safetensors").touch()
    options = {"resume": None, "quiet": True, "as_json": False}
    with pytest.raises(click.exceptions.Exit):
        _trained(click.Context(click.Command("train")), options, str(tmp_path))
    assert "go on with: saltflat train --resume" in capsys.readouterr().err
