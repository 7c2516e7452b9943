"""The estimators among scikit-learn's tools: they learn, and can be cloned, searched, piped and stored."""

from __future__ import annotations

import io
import pickle
from typing import Any

import joblib
import numpy as np
import pytest
from estimators_helpers import cancer, declared, two_blobs
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import saltflat as sf
from saltflat.errors import InputError


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_defaults_work_at_a_few_hundred_rows(model: str) -> None:
    X, y, bounds = cancer()
    found = sf.PrivateClassifier(
        3.0, model=model, population=569, classes=[0, 1], bounds=bounds, random_state=0
    )
    assert found.fit(X, y).score(X, y) > 0.88


def test_learned_bounds_work_too() -> None:
    X, y, _ = cancer()
    found = sf.PrivateClassifier(3.0, population=569, classes=[0, 1], random_state=0).fit(X, y)
    assert found.score(X, y) > 0.85


@pytest.mark.parametrize(
    "method",
    ["dp-sat", "dp-sam", "sai+ema", "dp-sgd+swa", "dp-sgd+adam", "dp-sgd+adam-bc", "sai+adam-bc+ema"],
)
def test_every_method_can_be_named(method: str) -> None:
    X, y = two_blobs(400)
    found = sf.PrivateClassifier(4.0, method=method, random_state=0, **(declared(400) | {"steps": 40})).fit(
        X, y
    )
    assert found.plan_.method == method
    assert found.plan_.epsilon <= 4.0
    assert found.score(X, y) > 0.9


def test_adam_without_the_noise_divides_by_no_less_than_the_noise() -> None:
    """With the rate and floor that a plan has by itself, it ended no better than a coin (tried)."""
    X, y = two_blobs(400)
    found = sf.PrivateClassifier(
        4.0, method="dp-sgd+adam-bc", random_state=0, **(declared(400) | {"steps": 40})
    ).fit(X, y)
    plan = found.plan_
    in_a_release = plan.phases[0].sigma * plan.phases[0].clip_norm / 400
    assert plan.optimizer.settings["floor"] == pytest.approx(in_a_release**2, rel=0.05)
    rows = np.random.default_rng(0).uniform(-1, 1, (800, 4))
    line = rows @ np.array([1.0, -2.0, 0.5, 0.0])
    regressor = sf.PrivateRegressor(
        4.0, method="dp-sgd+adam-bc", population=800, bounds=(-1, 1), target_bounds=(-4, 4), random_state=0
    )
    assert regressor.fit(rows, line).score(rows, line) > 0.8


def test_an_average_is_what_predicts() -> None:
    X, y = two_blobs()
    found = sf.PrivateClassifier(2.0, method="dp-sgd+ema", random_state=0, **declared()).fit(X, y)
    assert found.run_.average is not None
    weight = dict(found.model_.named_parameters())["1.weight"]
    np.testing.assert_allclose(weight.detach().numpy(), found.run_.average["1.weight"].numpy(), rtol=1e-6)


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_a_regressor_learns(loss: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (800, 4))
    y = 100 + 20 * X @ np.array([1.0, -2.0, 0.5, 0.0])
    given: dict[str, Any] = {"population": 800, "loss": loss, "random_state": 0}
    known = sf.PrivateRegressor(4.0, bounds=(-1, 1), target_bounds=(30, 170), **given).fit(X, y)
    assert known.score(X, y) > 0.8
    assert known.predict(X * 1e9).max() <= 170
    learned = sf.PrivateRegressor(4.0, **given).fit(X, y)
    assert learned.plan_.survey.columns == 5
    low, high = learned.target_bounds_
    assert low < 80
    assert high > 120
    assert learned.score(X, y) > 0.5


def test_a_real_regression() -> None:
    X, y = load_diabetes(return_X_y=True)
    found = sf.PrivateRegressor(
        4.0, population=442, bounds=(-0.2, 0.2), target_bounds=(25, 346), random_state=0
    )
    assert found.fit(X, y).score(X, y) > 0.25


def test_a_loss_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="loss"):
        sf.PrivateRegressor(loss="cubic", population=9, bounds=(0, 1), target_bounds=(0, 1)).fit(
            [[0.0]], [1.0]
        )


def test_a_clone_is_unfitted_and_equal() -> None:
    X, y = two_blobs()
    model = sf.PrivateClassifier(1.0, random_state=0, **declared()).fit(X, y)
    twin = clone(model)
    assert not hasattr(twin, "classes_")
    assert twin.get_params() == model.get_params()
    np.testing.assert_array_equal(twin.fit(X, y).predict_proba(X), model.predict_proba(X))


def test_fits_without_a_seed_differ() -> None:
    X, y = two_blobs()
    one, two = (sf.PrivateClassifier(1.0, **declared()).fit(X, y).predict_proba(X) for _ in range(2))
    assert not np.allclose(one, two)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_fitted_estimator_can_be_stored(model: str) -> None:
    X, y = two_blobs()
    fitted = sf.PrivateClassifier(1.0, model=model, **declared()).fit(X, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.certificate_ == fitted.certificate_
    file = io.BytesIO()
    joblib.dump(fitted, file)
    file.seek(0)
    np.testing.assert_array_equal(joblib.load(file).predict(X), fitted.predict(X))


def test_pipelines_and_searches() -> None:
    """Searching spends one budget a fit; what it chose must not be told of private rows, as the page says."""
    X, y = two_blobs()
    model = sf.PrivateClassifier(4.0, random_state=0, **(declared() | {"population": 100}))
    piped = make_pipeline(FunctionTransformer(np.tanh), model.set_params(bounds=(-1, 1)))
    with pytest.warns(sf.PrivacyWarning, match="declares"):
        scores = cross_val_score(piped, X, y, cv=3)
    assert scores.mean() > 0.9
    search = GridSearchCV(model, {"learning_rate": [0.5, 4.0]}, cv=2, refit=False)
    assert search.fit(X, y).best_score_ > 0.9


def test_predictions_do_not_depend_on_the_rows_beside_them() -> None:
    X, y = two_blobs()
    model = sf.PrivateClassifier(1.0, model="mlp", **declared()).fit(X, y)
    alone = np.concatenate([model.predict_proba(X[i : i + 1]) for i in range(20)])
    np.testing.assert_allclose(model.predict_proba(X[:20]), alone, atol=1e-12)
