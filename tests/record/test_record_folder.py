"""The run folder and the certificate: what is there, what it says, what is refused."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import saltflat as sf
from core_helpers import COMMON, contents, small_data, small_net
from saltflat import plans
from saltflat.accounting import epsilon
from saltflat.errors import InputError
from saltflat.plan import Plan, Swa
from saltflat.record.certificate import certify
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import Ledger


def certificate_of(plan: Plan, **facts: Any) -> dict[str, Any]:
    settings = {"randomness": "fast", "seeded": False} | facts
    return certify(plan, Ledger(), **settings).data


def test_a_run_folder_holds_what_the_run_was(tmp_path: Path) -> None:
    plan = plans.dp_sat(rho=0.1, averaging=Swa(0.5), **COMMON)
    run = sf.fit(
        sf.models.build("logistic", in_features=4, classes=3).double(), small_data(), plan,
        evaluate=small_data(20, seed=1), out=tmp_path / "run", progress=False,
    )  # fmt: skip
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {
        "plan.json", "ledger.jsonl", "weights.safetensors", "average.safetensors", "metrics.jsonl",
        "certificate.json", "certificate.html", "model.json", "run.json",
    }  # fmt: skip
    assert Plan.load(tmp_path / "run" / "plan.json") == plan
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    stored = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert stored["ledger_head"] == ledger.head
    assert stored["ledger_entries"] == len(ledger.entries) == 11
    assert stored["plan_hash"] == plan.hash == ledger.entries[0]["plan_hash"]
    weights = (tmp_path / "run" / "weights.safetensors").read_bytes()
    assert stored["files"]["weights.safetensors"] == hashlib.sha256(weights).hexdigest()
    assert set(stored["files"]) == files - {"certificate.json", "certificate.html"}
    assert run.folder == tmp_path / "run"


def test_a_run_is_read_again(tmp_path: Path) -> None:
    model = sf.models.build("logistic", in_features=4, classes=3)
    data = small_data()
    rows = (data.inputs.float(), data.targets)
    plan = plans.dp_sgd(averaging=Swa(0.5), **COMMON)
    run = sf.fit(model, rows, plan, evaluate=rows, out=tmp_path / "run", progress=False)
    again = sf.Run.load(tmp_path / "run")
    assert (again.plan, again.history, again.certificate, again.rules) == (
        run.plan, run.history, run.certificate, run.rules,
    )  # fmt: skip
    assert again.seconds == pytest.approx(run.seconds, abs=1e-3)
    assert again.accuracy == run.accuracy is not None
    assert again.average_accuracy == run.average_accuracy is not None
    for average in (False, True):
        assert torch.equal(again.predict(rows[0], average=average), run.predict(rows[0], average=average))
    assert not torch.equal(run.average["1.weight"], model[1].weight)


def test_a_model_of_ones_own_must_be_passed_in(tmp_path: Path) -> None:
    run = sf.fit(small_net(), small_data(), plans.dp_sgd(**COMMON), out=tmp_path / "run", progress=False)
    with pytest.raises(InputError, match="Pass it"):
        sf.Run.load(tmp_path / "run")
    again = sf.Run.load(tmp_path / "run", small_net(1))
    assert torch.equal(again.predict(small_data().inputs), run.predict(small_data().inputs))
    with pytest.raises(InputError, match="nothing was averaged"):
        again.predict(small_data().inputs, average=True)


def test_what_is_no_finished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        sf.Run.load(tmp_path)
    RunFolder(tmp_path).write_plan(plans.dp_sgd(**COMMON))
    with pytest.raises(InputError, match="did not finish"):
        sf.Run.load(tmp_path)


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path) -> None:
    plan = plans.dp_sgd(**COMMON)
    sf.fit(small_net(), small_data(), plan, out=tmp_path / "run", progress=False)
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match="already holds a run"):
        sf.fit(small_net(), small_data(), plan, out=tmp_path / "run", progress=False)
    assert contents(tmp_path / "run") == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        RunFolder.create(tmp_path / "file")


def test_files_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash while writing leaves the old file. Fails when the file is written in place (tried)."""
    folder = RunFolder(tmp_path)
    folder.write("plan.json", "old")

    def crash(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("saltflat.record.folder.os.fsync", crash)
    with pytest.raises(OSError, match="no space"):
        folder.write("plan.json", "new")
    assert folder.file("plan.json").read_text() == "old"


def test_a_certificate_claims_the_whole_plan_also_after_an_early_stop() -> None:
    plan = plans.sai(noise_ratio=2.0, **COMMON)
    data = certificate_of(plan)
    assert data["recorded_releases"] == 0
    assert data["planned_releases"] == 10
    assert data["epsilon"] == plan.epsilon == epsilon(plan.events(), 1e-3)
    assert data["epsilon_rdp"] == plan.epsilon_rdp
    assert data["epsilon_replace_one"] > data["epsilon"]
    assert [phase["noise_multipliers"] for phase in data["phases"]] == [[3.0], [6.0]]


def test_what_is_not_private_claims_nothing() -> None:
    for data in (
        certificate_of(plans.sgd(population=40, batch_size=8, steps=3)),
        certificate_of(plans.dp_sgd(**COMMON), seeded=True),
    ):
        assert data["private"] is False
        assert data["epsilon"] == "inf"
        assert data["epsilon_rdp"] is None
        assert data["why_not_private"]
        json.dumps(data, allow_nan=False)


def test_a_certificate_in_words() -> None:
    plan = plans.dp_sgd(relation="zero-out", **COMMON)
    text = str(certify(plan, Ledger(), randomness="fast", seeded=False))
    for words in (
        f"ε = {plan.epsilon:.4g}", "δ = 0.001", "emptied", "replaced by another", "rate 0.2 of 40 declared",
        "divided by 8, a public constant", "PLD", "10 planned releases", "Not covered", "tuning",
        "evaluation data", "floating-point attacks", "not that it was honest",
    ):  # fmt: skip
        assert words in text
    bare = certify(
        plans.sgd(**{k: v for k, v in COMMON.items() if k != "noise_multiplier"}), Ledger(),
        randomness="fast", seeded=False,
    )  # fmt: skip
    assert str(bare).startswith("NOT PRIVATE")
    assert bare.epsilon == math.inf


def test_a_newer_certificate_is_refused_by_name(tmp_path: Path) -> None:
    data = certificate_of(plans.dp_sgd(**COMMON))
    RunFolder(tmp_path).write_json("certificate.json", data)
    assert RunFolder(tmp_path).read_certificate().data == data
    RunFolder(tmp_path).write_json("certificate.json", data | {"saltflat_certificate": 3})
    with pytest.raises(InputError, match="certificate=3"):
        RunFolder(tmp_path).read_certificate()
    RunFolder(tmp_path).write_json("certificate.json", data | {"saltflat_certificate": 1})
    assert RunFolder(tmp_path).read_certificate().epsilon == data["epsilon"]


def test_tied_weights_can_be_stored(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    RunFolder(tmp_path).write_tensors("w", model.state_dict())
    again = RunFolder(tmp_path).read_tensors("w")
    assert torch.equal(again["1.weight"], model[0].weight)
    assert RunFolder(tmp_path).read_tensors("nothing") is None
