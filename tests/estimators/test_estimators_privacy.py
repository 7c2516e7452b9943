"""The budget of an estimator: what it releases, what it records, and what it keeps."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from estimators_helpers import declared, two_blobs

import saltflat as sf
from saltflat.accounting import epsilon
from saltflat.data.source import Surveyed
from saltflat.errors import InputError, PrivacyWarning
from saltflat.estimators.rows import Surveying, TableRows
from saltflat.estimators.scaling import Scaler
from saltflat.plan import Budget, Phase, Plan, Poisson, Survey
from saltflat.record.account import ReservationError
from saltflat.record.agreement import check_agreement, check_entries
from saltflat.record.ledger import Ledger, LedgerError
from saltflat.training.build import build_mechanism


def test_declared_numbers_keep_the_size_secret() -> None:
    X, y = two_blobs()
    model = sf.PrivateClassifier(1.0, **declared()).fit(X, y)
    assert model.certificate_.is_private
    assert model.certificate_.data["relation"] == "add-remove"
    assert model.plan_.survey is None


@pytest.mark.parametrize("missing", ["population", "classes"])
def test_what_is_not_declared_is_said(missing: str) -> None:
    X, y = two_blobs()
    with pytest.warns(PrivacyWarning, match=rf"{missing}=.*zero-out"):
        model = sf.PrivateClassifier(1.0, **(declared() | {missing: None})).fit(X, y)
    assert model.certificate_.data["relation"] == "zero-out"


def test_a_regressor_says_it_too() -> None:
    X, y = two_blobs()
    with pytest.warns(PrivacyWarning, match=r"population=.*zero-out"):
        model = sf.PrivateRegressor(1.0, bounds=(-5, 5), target_bounds=(0, 1), steps=3).fit(X, y)
    assert model.certificate_.data["relation"] == "zero-out"


def test_bounds_are_learned_within_the_budget() -> None:
    """Survey and steps jointly cost ε; fails when the survey is left out of the events (tried)."""
    X, y = two_blobs()
    model = sf.PrivateClassifier(1.0, population=200, classes=[0, 1], steps=5).fit(X, y)
    plan = model.plan_
    assert plan.survey is not None
    assert plan.survey.columns == 3
    assert 0.97 < plan.epsilon <= 1.0
    assert plan.epsilon == epsilon([plan.survey.event(), *plan.events()[1:]], 1e-5)
    assert model.certificate_.epsilon == plan.epsilon
    assert "histograms of 3 columns" in str(model.certificate_)
    assert model.bounds_[0].shape == (3,)


def test_bounds_follow_from_the_release_and_never_from_the_rows() -> None:
    """With noise that hides every count, bounds are the same whatever the rows are."""
    X, y = two_blobs()
    arguments = {"population": 200, "classes": [0, 1], "steps": 2, "survey_share": 1e-9, "random_state": 0}
    near = sf.PrivateClassifier(0.1, **arguments).fit(X, y)
    far = sf.PrivateClassifier(0.1, **arguments).fit(X * 1e-3 + 7, y)
    np.testing.assert_array_equal(near.bounds_, far.bounds_)


def survey_rows(X: Any, classes: Any = None) -> TableRows:
    columns = [np.asarray(column, dtype=float) for column in np.asarray(X, dtype=float).T]
    return TableRows(X, torch.zeros(len(X)), (3,), None, Surveying(columns, classes, 2))


@pytest.mark.parametrize("row", [[1e300, -1e300, 0.0], [math.nan] * 3, [math.inf, -math.inf, 1.0], [0.0] * 3])
def test_one_row_moves_a_survey_by_the_root_of_its_columns(row: list[float]) -> None:
    """Replay: the sums with and without a row. Fails when a class has a column that is not counted (tried)."""
    X, y = two_blobs(50)
    without = survey_rows(X, y)
    with_it = survey_rows(np.vstack([X, row]), np.append(y, 1))
    assert isinstance(with_it, Surveyed)
    moved = (with_it.counts() - without.counts()).double().norm()
    assert moved <= Survey(with_it.columns, 1.0).sensitivity
    assert with_it.columns == 4


def test_before_the_survey_nothing_of_the_rows_is_seen() -> None:
    rows = survey_rows(np.full((4, 3), 7.0))
    inputs, targets = rows.fetch(torch.tensor([0, 2]))
    assert inputs.shape == (2, 3)
    assert not inputs.any()
    assert not targets.any()


def surveyed_plan(sigma: float = 5.0, columns: int = 3) -> Plan:
    survey = Survey(columns, sigma)
    return Plan(Poisson(100, 100), (Phase(2, 1.0, 9.0, 0.5),), Budget(9.0, 1e-4), survey=survey)


@pytest.mark.parametrize("tier", ["fast", "secure", "exact"])
@pytest.mark.statistical
def test_a_survey_has_the_noise_of_its_plan(tier: str) -> None:
    """χ² over 30,000 counts: wrong by more than 2 % would be seen (six deviations of the mean square)."""
    plan = surveyed_plan(5.0, 3)
    mechanism = build_mechanism(plan, [0] * 10, Ledger(), torch.device("cpu"), None, tier)
    counts = torch.arange(30_000) % 7
    noise = mechanism.release_survey(counts) - counts
    assert noise.dtype == torch.float64
    relative = float(noise.square().mean()) / (25.0 * 3)
    assert abs(relative - 1) < 6 * math.sqrt(2 / len(counts))
    assert mechanism.ledger.entries[-1]["kind"] == "survey"
    with pytest.raises(LedgerError, match="recorded already"):
        mechanism.release_survey(counts)


def test_the_run_of_an_estimator_can_be_verified(tmp_path: Path) -> None:
    X, y = two_blobs()
    out = tmp_path / "run"
    arguments = {"population": 200, "classes": [0, 1], "class_weight": "balanced", "steps": 4}
    model = sf.PrivateClassifier(2.0, out=str(out), **arguments).fit(X, y)
    found = sf.verify(out)
    assert found.passed, str(found)
    assert found.epsilon == pytest.approx(model.certificate_.epsilon)
    kinds = [entry["kind"] for entry in Ledger.read(out / "ledger.jsonl").entries]
    assert kinds == ["run", "survey", *["release"] * 4]
    facts = json.loads((out / "run.json").read_text())["facts"]
    assert np.allclose(facts["bounds"], model.bounds_)
    assert "histograms of 4 columns" in (out / "certificate.html").read_text()


def test_a_survey_that_is_not_in_the_ledger_is_missed() -> None:
    plan = surveyed_plan()
    ledger = Ledger()
    mechanism = build_mechanism(plan, [0] * 10, ledger, torch.device("cpu"), None)
    mechanism.record(1, plan.phases[0], 1.0)
    with pytest.raises(LedgerError, match="survey before the first release"):
        check_agreement(ledger, plan)
    other = Ledger()
    mechanism = build_mechanism(plan, [0] * 10, other, torch.device("cpu"), None)
    mechanism.release_survey(torch.zeros(5))
    mechanism.record(1, plan.phases[0], 1.0)
    check_entries(other, plan)
    bare = Plan(plan.sampling, plan.phases, plan.budget)
    other.entries[0]["plan_hash"] = bare.hash  # so that nothing but the survey differs
    with pytest.raises(LedgerError, match="the plan has none"):
        check_agreement(other, bare)
    other.entries[0]["plan_hash"] = plan.hash
    other.entries[1]["noise_multiplier"] = 50.0
    with pytest.raises(LedgerError, match="noise_multiplier"):
        check_entries(other, plan)


def test_a_survey_cannot_be_asked_of_plain_rows_or_resumed(tmp_path: Path) -> None:
    rows = (torch.rand(20, 3), torch.zeros(20, dtype=torch.long))
    model = sf.models.build("logistic", in_features=3, classes=2)
    with pytest.raises(InputError, match="survey"):
        sf.fit(model, rows, surveyed_plan(), progress=False)
    X, y = two_blobs()
    out = tmp_path / "run"
    fitted = sf.PrivateClassifier(2.0, out=str(out), population=200, classes=[0, 1], steps=2).fit(X, y)
    assert not (out / "checkpoint").exists()
    (out / "certificate.json").unlink()
    with pytest.raises(InputError, match="survey"):
        sf.fit(fitted.run_.model, rows, resume=out, progress=False)


def test_people_and_surveys_do_not_go_together() -> None:
    with pytest.raises(InputError, match="unit='example'"):
        Plan(Poisson(9, 9), (Phase(1, 1.0, 1.0),), Budget(9.0, 1e-4, unit="person"), survey=Survey(1, 1.0))


def test_a_seeded_fit_is_not_private() -> None:
    X, y = two_blobs()
    model = sf.PrivateClassifier(1.0, random_state=0, **declared()).fit(X, y)
    assert not model.certificate_.is_private
    assert "fixed seed" in str(model.certificate_)


def test_without_noise_it_is_said() -> None:
    X, y = two_blobs()
    model = sf.PrivateClassifier(method="sgd", **(declared() | {"bounds": None})).fit(X, y)
    assert not model.certificate_.is_private
    assert model.plan_.survey.noise_multiplier == 0.0


def test_the_true_number_of_rows_changes_nothing_that_is_declared() -> None:
    X, y = two_blobs()
    whole = sf.PrivateClassifier(1.0, **declared()).fit(X, y)
    with pytest.warns(PrivacyWarning, match="declares"):
        fewer = sf.PrivateClassifier(1.0, **declared()).fit(X[:-3], y[:-3])
    assert whole.plan_ == fewer.plan_


@pytest.mark.parametrize("bounds", [(-5.0, 5.0), None])
def test_a_fitted_estimator_holds_no_row(bounds: Any) -> None:
    """A number that occurs in one row, searched for in everything that is pickled."""
    X, y = two_blobs()
    X[17, 1] = marker = 1.2345678901234567
    target = y.astype(float)
    target[17] = marker
    given = {"population": 200, "bounds": bounds, "steps": 2}
    for model in (
        sf.PrivateClassifier(1.0, classes=[0, 1], **given).fit(X, y),
        sf.PrivateRegressor(1.0, **given).fit(X, target),
    ):
        assert np.float64(marker).tobytes() not in pickle.dumps(model)


def test_an_account_is_charged_for_the_survey_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALTFLAT_BUDGETS", str(tmp_path))
    account = sf.Account.create("table", epsilon=1.0, delta=1e-4, rule="sum")
    X, y = two_blobs()
    sf.PrivateClassifier(0.8, population=200, classes=[0, 1], steps=2, account=account).fit(X, y)
    assert account.balance().share == pytest.approx(0.8, abs=0.03)
    with pytest.raises(sf.SaltflatError, match="overdrawn"):
        sf.PrivateClassifier(0.8, population=200, classes=[0, 1], steps=2, account=account).fit(X, y)


def test_a_survey_that_was_released_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off between the survey and the first step. Fails when steps alone count as releases (tried: the account
    gave back what had paid for the bounds, and the folder was taken for one without a run in it).
    """
    monkeypatch.setenv("SALTFLAT_BUDGETS", str(tmp_path / "budgets"))
    account = sf.Account.create("blobs", epsilon=3.0, delta=1e-4)
    X, y = two_blobs()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    model = sf.PrivateClassifier(1.0, population=200, classes=[0, 1], account=account, out=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("saltflat.training.step.Loop.query", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert (ledger.surveys, ledger.releases) == (1, 0)
    (held,) = account.balance().held
    with pytest.raises(ReservationError, match="stays spent"):
        account.give_back(held.reservation)
    (tmp_path / "run" / "plan.json").unlink()
    with pytest.raises(InputError, match="already holds a run"):
        model.fit(X, y)


def test_scaling_is_a_function_of_one_row() -> None:
    X, _ = two_blobs(20)
    for scaler in (Scaler("bounds", np.full(3, -1.0), np.full(3, 2.0)), Scaler("rows"), Scaler("none")):
        together = scaler(X)
        np.testing.assert_array_equal(together[5:6], scaler(X[5:6]))
    assert np.abs(Scaler("bounds", -1.0, 1.0)(X * 1e9)).max() <= 2.5
    np.testing.assert_allclose(np.linalg.norm(Scaler("rows")(X * 1e300), axis=1), 1.0)
    assert not Scaler("rows")(np.zeros((2, 3))).any()
