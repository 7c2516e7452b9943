"""``saltflat budget``, ``--account`` and ``saltflat evaluate``, through the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import Inside, killed_after

from saltflat.record.account import Account, ReservationError
from saltflat.record.ledger import Ledger

SHORT = ("--delta", "1e-4", "--steps", "30", "--batch-size", "256", "--epsilon", "1.1", "--quiet")
CREATE = ("budget", "create", "digits", "--epsilon", "1.5", "--delta", "1e-4", "--relation", "zero-out")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Inside:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SALTFLAT_BUDGETS", str(tmp_path / "budgets"))
    return Inside(monkeypatch, capsys)


def test_an_account_from_its_first_day_to_its_last(run: Inside) -> None:
    assert "no accounts yet" in run("budget", "list")[1]
    code, out, _ = run(*CREATE, "--fingerprint", "version 1")
    assert code == 0
    assert "0.00% of it is spent or reserved" in out
    assert run(*CREATE)[0] == 2
    code, _, err = run("train", *SHORT, "--account", "digits", "--fingerprint", "version 1", "--out", "one")
    assert code == 0, err
    err = run.refused("train", *SHORT, "--account", "digits", "--out", "two")
    assert "would be overdrawn" in err
    assert "is left" in err
    assert not Path("two").exists()
    code, _, err = run("train", *SHORT, "--account", "digits", "--fingerprint", "version 2", "--out", "two")
    assert (code, "has another" in err) == (2, True)
    code, _, err = run("train", *SHORT, "--fingerprint", "version 2", "--out", "two")
    assert (code, "Name one with --account" in err) == (2, True)
    code, _, err = run("train", *SHORT, "--account", "digits", "--population", "1437", "--out", "two")
    assert (code, "relation='add-remove' is another" in err) == (2, True)
    code, out, _ = run("budget", "show", "digits", "--json")
    shown = json.loads(out)
    (held,) = shown["reservations"]
    assert held["share"] == pytest.approx(shown["share"])
    assert 0.5 < shown["share"] < 1
    assert shown["epsilon_if_fixed"] == pytest.approx(1.1, rel=0.01)
    assert (held["what"], held["returned"], Path(held["where"]).name) == ("train", False, "one")
    code, _, err = run("budget", "return", "digits", held["reservation"])
    assert (code, "stays spent" in err) == (2, True)
    assert held["reservation"] in run("budget", "show", "digits")[1]
    assert "digits" in run("budget", "show")[1]
    assert json.loads(run("budget", "list", "--json")[1])[0]["account"] == "digits"
    assert "closed" in run("budget", "close", "digits")[1]
    code, _, err = run("train", *SHORT, "--account", "digits", "--out", "two")
    assert (code, "it was closed" in err) == (2, True)


def test_the_folder_of_accounts_and_a_run_file(run: Inside) -> None:
    assert run(*CREATE, "--budgets", "elsewhere")[0] == 0
    assert "is not there" in run("budget", "show", "digits")[2]
    Path("run.toml").write_text(
        'delta = 1e-4\nsteps = 30\nbatch-size = 256\nepsilon = 1.1\naccount = "digits"\nbudgets = "elsewhere"\n'
    )
    assert run("train", "run.toml", "--quiet", "--out", "one")[0] == 0
    assert len(Account.open("digits", budgets="elsewhere").balance().held) == 1
    (Path("elsewhere") / "digits.jsonl").write_text("{}\n")
    code, _, err = run("budget", "show", "digits", "--budgets", "elsewhere")
    assert (code, "Traceback" in err) == (2, False)


@pytest.mark.slow
def test_a_comparison_is_covered_as_a_whole_or_refused(run: Inside) -> None:
    run(*CREATE)
    settings = ("--delta", "1e-4", "--steps", "4", "--batch-size", "256", "--quiet", "--seeds", "1")
    pair = ("compare", "--methods", "dp-sgd,dp-sat", *settings, "--out", "pair")
    err = run.refused(*pair, "--epsilon", "1.4", "--account", "digits")
    assert "The comparison (2 runs to come) would take" in err
    assert not Path("pair").exists()
    code, out, err = run(*pair, "--epsilon", "0.6", "--account", "digits")
    assert code == 0, err
    assert "not covered by ε" in out
    assert len(Account.open("digits").balance().held) == 2
    assert run(*pair, "--epsilon", "0.6", "--account", "digits")[0] == 0  # finished runs are read
    assert len(Account.open("digits").balance().held) == 2
    run("budget", "create", "other", "--epsilon", "2", "--delta", "1e-4", "--relation", "zero-out")
    code, _, err = run(*pair, "--epsilon", "0.6", "--account", "other")
    assert (code, "does not cover the run" in err) == (2, True)


def test_evaluate(run: Inside) -> None:
    run(*CREATE)
    code, out, _ = run("train", *SHORT, "--out", "one")
    assert "on test data (not covered by ε)" in out
    code, out, err = run("evaluate", "one", "--epsilon", "0.2", "--account", "digits")
    assert code == 0, err
    assert "on 360 declared private rows, with noise" in out
    assert "training and 1 evaluation so far: ε = 1.3" in out
    assert "charged to the account digits" in out
    code, out, err = run("evaluate", "one", "--epsilon", "0.2", "--disjoint", "--part", "all", "--json")
    found = json.loads(out)
    assert (found["size"], found["evaluations"], found["disjoint"]) == (1797, 2, True)
    assert found["total_epsilon"] == pytest.approx(1.3, rel=0.01)
    code, _, err = run("evaluate", "one", "--epsilon", "1.9", "--account", "digits")
    assert (code, "This evaluation would take" in err) == (2, True)
    code, _, err = run("evaluate", "one", "--epsilon", "0.2", "--average")
    assert (code, "nothing was averaged" in err) == (2, True)
    kinds = [entry["kind"] for entry in Ledger.read(Path("one/evaluations.jsonl")).entries]
    assert kinds == ["evaluations", "account", "evaluation", "result", "evaluation", "result"]
    summary = json.loads(run("train", *SHORT, "--out", "two", "--json")[1])
    assert summary["evaluation"] == "not covered"


@pytest.mark.slow
def test_two_runs_at_once_and_one_that_is_killed(
    run: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes want what only one can have: one trains, the other is refused. A killed run keeps its part
    when it goes on, and gives nothing back.
    """
    monkeypatch.setenv("SALTFLAT_BUDGETS", str(tmp_path / "budgets"))
    account = Account.create("digits", 1.5, 1e-4, relation="zero-out")
    train = [sys.executable, "-m", "saltflat", "train", *SHORT, "--account", "digits"]
    both = [
        subprocess.Popen([*train, "--out", name], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    ends = [(process.communicate(timeout=600)[1], process.returncode) for process in both]
    assert sorted(code for _, code in ends) == [0, 2]
    assert any("would be overdrawn" in err for err, _ in ends)
    assert len(account.balance().held) == 1
    longer = ("--noise-multiplier", "30", "--delta", "1e-4", "--steps", "60", "--quiet")
    dead = killed_after(
        20, [*train[:4], *longer, "--account", "digits", "--out", "c"], tmp_path / "c", cwd=tmp_path
    )
    assert dead.returncode == -signal.SIGKILL
    reservation = account.balance().held[-1].reservation
    with pytest.raises(ReservationError, match="stays spent"):
        account.give_back(reservation, without_ledger=True)
    code, _, err = run("train", "--resume", "c", "--quiet")
    assert code == 0, err
    assert len(account.balance().live) == 2
    assert account.balance().held[-1].reservation == reservation
