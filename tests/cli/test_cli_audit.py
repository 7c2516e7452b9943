"""``saltflat audit``: exit codes, JSON, and where its plan comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import Inside

import saltflat as sf
from saltflat.audit import suite
from saltflat.audit.findings import AuditReport, Check, LowerBound
from saltflat.audit.ledger_check import ledger_check
from saltflat.training import build

SMALL = ["--data", "digits", "--delta", "1e-4", "--steps", "4", "--batch-size", "64", "--quick"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """The command with the quickest check only; the others have tests of their own."""
    monkeypatch.setattr(suite, "_suite", lambda subject, quick: [("ledger", lambda: ledger_check(subject))])
    return Inside(monkeypatch, capsys)


def test_nothing_caught_is_zero_and_words(run: Inside) -> None:
    code, out, err = run("audit", *SMALL)
    assert code == 0
    assert "passed  ledger" in out
    assert "would catch" in out
    assert "trying: ledger" in err


def test_something_caught_is_one(run: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the exit code does not follow the report (tried)."""
    monkeypatch.setattr(build.Mechanism, "record", lambda self, *args: None)
    code, out, err = run("audit", *SMALL, "--json")
    assert code == 1
    found = json.loads(out)
    assert not found["passed"]
    assert any("are in the ledger" in fault for fault in found["faults"])
    assert err == ""


def test_a_run_folder_brings_its_plan_model_and_tier(run: Inside, tmp_path: Path) -> None:
    """Fails when the tier is taken from the options (tried)."""
    data = sf.data.load("digits")
    plan = sf.plans.dp_sat(noise_multiplier=1.5, delta=1e-4, population=1437, batch_size=64, steps=3)
    sf.fit(
        sf.models.build("mlp"), data.train, plan, out=tmp_path / "run", randomness="secure", progress=False
    )
    found = run.answer("audit", str(tmp_path / "run"), "--json")
    assert (found["method"], found["randomness"]) == ("dp-sat", "secure")
    assert found["epsilon"] == plan.epsilon


def test_a_run_file_brings_its_options(run: Inside, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('delta = 1e-4\nsteps = 4\nbatch-size = 64\nrandomness = "exact"\n')
    assert run.answer("audit", str(path), "--json")["randomness"] == "exact"


def test_bad_input_is_two(run: Inside) -> None:
    assert run("audit", *SMALL, "--randomness", "exat")[0] == 2
    assert "makes no claim that could be audited" in run.refused("audit", *SMALL, "--epsilon", "inf")


def test_a_report_says_bound_certificate_and_ceiling() -> None:
    checks = (
        Check("replay sensitivity", "a look", "a clip"),
        Check("noise law", "χ²", "noise", ("no noise",)),
    )
    bounds = {
        "two worlds": LowerBound(0.5, 2.0, 4.0, 100, 0.95),
        "one run": LowerBound(0.0, 9.0, 4.0, 50, 0.95),
    }
    report = AuditReport("dp-sgd", 3.0, 1e-5, "fast", checks, bounds)
    words = str(report)
    assert (
        "ε is at least 0.5 (95% confidence); certified 2 for these releases; 100 trials could show 4" in words
    )
    assert words.count("too few to contradict the certificate") == 1
    assert "CAUGHT  noise law" in words
    assert "! no noise" in words
    assert "1 fault caught" in words
    assert report.faults == ["noise law: no noise"]
    json.dumps(report.to_dict(), allow_nan=False)
