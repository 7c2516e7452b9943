"""``saltflat calibrate`` and ``saltflat account``: the contract of their JSON, phases, and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Inside, answer

FASHION = ("--population", "60000", "--batch-size", "2048", "--delta", "1e-5")
CIFAR = ("--population", "50000", "--batch-size", "2048", "--delta", "1e-5")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(monkeypatch, capsys)


def test_calibrate_and_account_are_inverses(run: Inside) -> None:
    found = answer("calibrate", "--epsilon", "1", *FASHION, "--steps", "1172", "--json")
    assert found["noise_multiplier"] == pytest.approx(4.4627, rel=2e-3)
    assert found["epsilon"] <= 1.0 == found["target_epsilon"]
    back = run.answer(
        "account", "--noise-multiplier", str(found["noise_multiplier"]), *FASHION, "--steps", "1172", "--json"
    )
    assert back["epsilon"] == found["epsilon"]
    assert back["epsilon_rdp"] == pytest.approx(1.095, rel=1e-3)
    assert back["delta"] == 1e-5
    assert back["steps"] == 1172
    assert back["rate"] == 2048 / 60_000


def found_by(run: Inside, *arguments: str) -> dict[str, Any]:
    """The JSON of a command that went well."""
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_phases_are_accounted_jointly(run: Inside) -> None:
    first, second = "steps=244,noise-multiplier=2.931", "steps=488,noise-multiplier=29.485"
    found = found_by(run, "account", *CIFAR, "--phase", first, "--phase", second)
    assert found["epsilon"] == pytest.approx(0.8665, rel=2e-3)
    assert found["noise_multiplier"] == [2.931, 29.485]
    assert [phase["steps"] for phase in found["phases"]] == [244, 488]
    assert sum(phase["epsilon_alone"] for phase in found["phases"]) > found["epsilon"]


def test_two_queries_on_a_batch(run: Inside) -> None:
    settings = ("--steps", "732", "--noise-multiplier", "4.2523", "--queries", "2")
    found = found_by(run, "account", *CIFAR, *settings)
    assert found["epsilon"] == pytest.approx(1.498, rel=2e-3)
    assert found["epsilon_rdp"] == pytest.approx(1.639, rel=1e-3)


def test_a_phase_without_noise_is_solved_for(run: Inside) -> None:
    phases = ("--phase", "steps=244,noise-multiplier=2.931", "--phase", "steps=488")
    found = found_by(run, "calibrate", "--epsilon", "1", *CIFAR, *phases)
    assert found["noise_multiplier"] == pytest.approx([2.931, 6.83], rel=2e-3)
    assert found["epsilon"] <= 1.0


def test_ratios_are_kept(run: Inside) -> None:
    phases = ("--phase", "epochs=10,noise-ratio=1", "--phase", "epochs=20,noise-ratio=10.06")
    found = found_by(run, "calibrate", "--epsilon", "1", *CIFAR, *phases)
    assert found["noise_multiplier"] == pytest.approx([2.606, 26.215], rel=2e-3)
    assert [phase["steps"] for phase in found["phases"]] == [244, 488]


def test_in_words(run: Inside) -> None:
    code, out, _ = run("account", *FASHION, "--steps", "100", "--noise-multiplier", "4.0")
    assert code == 0
    for words in ("phase 1: 100 steps, noise multiplier 4.0000", "ε = 0.", "replace one row", "Rényi bound"):
        assert words in out


def test_a_truncated_sampler_has_no_renyi_bound(run: Inside) -> None:
    code, out, _ = run("account", *FASHION, "--steps", "10", "--noise-multiplier", "4.0", "--cap", "2300")
    assert code == 0
    assert "Rényi bound: not supported here" in out


def test_a_picture_of_what_a_budget_buys(run: Inside, tmp_path: Path) -> None:
    picture = tmp_path / "budget.png"
    code, _, err = run("calibrate", "--epsilon", "1", *FASHION, "--steps", "1172", "--plot", str(picture))
    assert code == 0, err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {picture}" in err


def test_a_picture_around_a_given_noise(run: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The curves are the same function; here only what it is asked for."""
    asked: list[Any] = []
    monkeypatch.setattr("saltflat.cli.account.draw", lambda *a, **k: asked.append((a[0], k)))
    code, _, _ = run("account", *FASHION, "--steps", "100", "--noise-multiplier", "4", "--plot", "budget.svg")
    assert code == 0
    [(path, facts)] = asked
    assert path == "budget.svg"
    assert facts["steps"] == 100
    assert facts["epsilon"] > 0


BAD = {
    "a budget of nothing": (("calibrate", "--epsilon", "0", *FASHION, "--steps", "9"), "epsilon=0.0"),
    "no budget at all": (("calibrate", *FASHION, "--steps", "9"), "--epsilon"),
    "no number": (("calibrate", "--epsilon", "one", *FASHION, "--steps", "9"), "'one' is not a valid float"),
    "a rate above one": (
        ("calibrate", "--epsilon", "1", "--population", "9", "--rate", "2", "--steps", "9"), "rate=2.0",
    ),
    "a rate and a batch size": (("calibrate", "--epsilon", "1", *FASHION, "--rate", "0.1"), "batch_size="),
    "a batch above the population": (
        ("account", "--noise-multiplier", "1", "--population", "9", "--batch-size", "10", "--steps", "9"),
        "batch_size=10.0 is larger than population=9",
    ),
    "a delta of one": (("account", *FASHION, "--delta", "1", "--noise-multiplier", "1", "--steps", "9"), "delta="),
    "steps and epochs": (("account", *FASHION, "--steps", "9", "--epochs", "9"), "exactly one of steps and epochs"),
    "neither": (("account", *FASHION, "--noise-multiplier", "1"), "exactly one of steps and epochs"),
    "steps and phases": (("account", *FASHION, "--steps", "9", "--phase", "steps=9"), "is given with --phase"),
    "no noise": (("account", *FASHION, "--steps", "9"), "use: saltflat calibrate"),
    "nothing left to solve": (
        ("calibrate", "--epsilon", "1", *FASHION, "--phase", "steps=9,noise-multiplier=2"), "saltflat account",
    ),
    "ratios in some phases": (
        ("calibrate", "--epsilon", "1", *FASHION, "--phase", "steps=9,noise-ratio=2", "--phase", "steps=9"),
        "in every phase, or in none",
    ),
    "a phase's unknown key": (
        ("calibrate", "--epsilon", "1", *FASHION, "--phase", "stepps=9"), "Did you mean 'steps'",
    ),
    "a phase's text": (("calibrate", "--epsilon", "1", *FASHION, "--phase", "steps=many"), "steps='many'"),
    "half a query": (
        ("account", *FASHION, "--phase", "steps=9,noise-multiplier=1,queries=1.5"), "queries='1.5'",
    ),
    "a picture of no kind": (
        ("calibrate", "--epsilon", "1", *FASHION, "--steps", "9", "--plot", "budget.xyz"), ".png, .svg or .pdf",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence_and_exit_code_two(case: str, run: Inside) -> None:
    arguments, words = BAD[case]
    assert words in run.refused(*arguments)
