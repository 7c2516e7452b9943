"""`verify` on runs that were chosen among many, that an account covers, or whose settings came from public data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from record_runs import certified_anew, copied, read

import saltflat as sf
from core_helpers import small_data, small_net
from saltflat.errors import PrivacyWarning
from saltflat.record.ledger import GENESIS, entry_hash


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "tuned"
    sf.tune(
        small_net(), small_data(200), grid={"learning_rate": [0.1, 0.5]}, epsilon=3.0, delta=1e-4, population=200,
        batch_size=40, steps=2, repeats=3.0, out=out, progress=False,
    )  # fmt: skip
    return out


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return copied(original, tmp_path / "run")


def rewritten(run: Path, **declared: Any) -> None:
    """The record of the tuning with other facts, its hashes to match."""
    previous, lines = GENESIS, []
    for line in (run / "tuning.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["kind"] == "tuning":
            entry["tuning"] |= declared
        entry["previous"] = previous
        entry["hash"] = previous = entry_hash(entry)
        lines.append(json.dumps(entry) + "\n")
    (run / "tuning.jsonl").write_text("".join(lines))


def test_a_tuned_run_is_verified_at_the_cost_of_the_whole_tuning(run: Path) -> None:
    found = sf.verify(run)
    assert found.passed, str(found)
    selection = read(run, "certificate.json")["selection"]
    assert read(run, "certificate.json")["epsilon"] == selection["epsilon"] > selection["epsilon_alone"]
    assert "random number of trials" in (run / "certificate.html").read_text()


@pytest.mark.parametrize(
    "change", [{"repeats": 1.0}, {"law": "poisson"}, {"score_noise": 1e6}, {"delta": 0.01}]
)
def test_a_cheaper_tuning_than_was_declared_is_found(run: Path, change: dict[str, Any]) -> None:
    """The record is changed, and the certificate is left, or made anew with what it had."""
    rewritten(run, **change)
    assert "files" in sf.verify(run).failed
    certified_anew(run)
    assert set(sf.verify(run).failed) & {"claims", "files"}


def test_a_choice_without_its_record_is_found(run: Path) -> None:
    (run / "tuning.jsonl").unlink()
    assert {"files", "claims"} & set(sf.verify(run).failed)
    files = {
        name: value
        for name, value in read(run, "certificate.json")["files"].items()
        if name != "tuning.jsonl"
    }
    certified_anew(run, files=files)
    assert "claims" in sf.verify(run).failed


def test_a_smaller_claim_than_the_tuning_costs_is_found(run: Path) -> None:
    selection = read(run, "certificate.json")["selection"]
    certified_anew(
        run, epsilon=selection["epsilon_alone"], selection=selection | {"epsilon": selection["epsilon_alone"]}
    )
    assert "claims" in sf.verify(run).failed


def test_every_byte_of_the_record_counts(run: Path) -> None:
    content = bytearray((run / "tuning.jsonl").read_bytes())
    for place in range(0, len(content), 37):
        changed = bytearray(content)
        changed[place] ^= 1
        (run / "tuning.jsonl").write_bytes(changed)
        assert not sf.verify(run).passed


def test_a_run_within_an_account_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALTFLAT_BUDGETS", str(tmp_path / "budgets"))
    sf.Account.create("patients", epsilon=4.0, delta=1e-4)
    plan = sf.plans.dp_sgd(noise_multiplier=2.0, delta=1e-5, population=200, batch_size=40, steps=2)
    out = tmp_path / "run"
    sf.fit(small_net(), small_data(200), plan, out=out, account="patients", progress=False)
    found = sf.verify(out)
    assert found.passed, str(found)
    account = read(out, "certificate.json")["account"]
    assert account["account"] == "patients"
    assert "patients" in (out / "certificate.html").read_text()
    certified_anew(out, account=None)
    assert "claims" in sf.verify(out).failed


def test_settings_from_public_data_are_named(tmp_path: Path) -> None:
    plan = sf.plans.dp_sgd(noise_multiplier=2.0, delta=1e-4, population=200, batch_size=40, steps=2)
    out = tmp_path / "run"
    sf.fit(small_net(), small_data(200), plan, out=out, facts={"tuned_on": "mnist"}, progress=False)
    assert sf.verify(out).passed
    assert read(out, "certificate.json")["tuned_on"] == "mnist"
    certified_anew(out, tuned_on="cifar10")
    assert "claims" in sf.verify(out).failed


def test_the_record_of_evaluations_is_checked(tmp_path: Path) -> None:
    """A changed byte, another run's record, and a cheaper claim than the noise costs, hashed anew."""
    plan = sf.plans.dp_sgd(noise_multiplier=2.0, delta=1e-4, population=200, batch_size=40, steps=2)
    out = tmp_path / "run"
    run = sf.fit(small_net(), small_data(200), plan, out=out, progress=False)
    with pytest.warns(PrivacyWarning):
        sf.evaluate_privately(run, small_data(40), epsilon=0.5, delta=1e-5, size=50)
    found = sf.verify(out)
    assert found.passed, str(found)
    assert "training and evaluations: ε" in str(found)
    path = out / "evaluations.jsonl"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"disjoint": false', b'"disjoint": true '))
    assert sf.verify(out).failed == ["evaluations"]
    path.write_bytes(content)
    entries = [json.loads(line) for line in content.splitlines()]
    entries[1]["epsilon"] /= 2
    previous = GENESIS
    for entry in entries:
        entry["previous"] = previous
        entry["hash"] = previous = entry_hash(entry)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert sf.verify(out).failed == ["evaluations"]
