"""What can be fitted on: frames, missing values, images, sparse rows, unequal classes; and what is refused."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from estimators_helpers import declared, two_blobs
from scipy import sparse
from torch import nn

import saltflat as sf
from saltflat.errors import InputError
from saltflat.estimators.scaling import Scaler


def classifier(**changes: Any) -> sf.PrivateClassifier:
    return sf.PrivateClassifier(**(declared() | {"epsilon": 4.0, "random_state": 0} | changes))


def test_frames_keep_their_names() -> None:
    X, y = two_blobs()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = classifier().fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(model.predict(frame), classifier().fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["c", "a", "b"]])


def test_text_is_refused_and_not_quoted() -> None:
    """Fails when scikit-learn's message is passed on: it quotes a cell of the private rows (tried)."""
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["77123", "positive"]})
    with pytest.raises(InputError, match="X='DataFrame' holds text") as found:
        classifier().fit(frame, [0, 1])
    assert "positive" not in "".join(traceback.format_exception(found.value))


ORDERS: list[Any] = [
    lambda low, high: (pd.Series(low, ["c", "a", "b"]), pd.Series(high, ["c", "a", "b"])),
    lambda low, high: (dict(zip("cab", low)), dict(zip("cab", high))),
    lambda low, high: {name: (a, b) for name, a, b in zip("cab", low, high)},
    lambda low, high: (
        pd.Series([low[1], low[2], low[0]]),
        [high[1], high[2], high[0]],
    ),  # no names: in order
]


@pytest.mark.parametrize("written", ORDERS)
def test_bounds_by_column_are_those_of_the_column(written: Any) -> None:
    """Failed when the index of a Series was ignored: column a had the bounds of column c."""
    X, y = two_blobs()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = classifier(bounds=written([-3.0, -1.0, -2.0], [30.0, 10.0, 20.0])).fit(frame, y)
    assert [side.tolist() for side in model.bounds_] == [[-1.0, -2.0, -3.0], [10.0, 20.0, 30.0]]


def test_columns_without_names_are_counted() -> None:
    X, y = two_blobs()
    model = classifier(bounds={2: (-3, 3), 0: (-1, 1), 1: (-2, 2)}).fit(X, y)
    assert model.bounds_[0].tolist() == [-1.0, -2.0, -3.0]


@pytest.mark.parametrize("fill", [pd.Series({"b": 0.5, "c": 9.0, "a": 9.0}), {"b": 0.5, "a": 9.0, "c": 9.0}])
def test_fill_by_column_is_that_of_the_column(fill: Any) -> None:
    X, y = two_blobs()
    X[3, 1] = np.nan
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    by_column, plain = classifier(fill=fill).fit(frame, y), classifier(fill=0.5).fit(frame, y)
    np.testing.assert_array_equal(by_column.predict_proba(frame), plain.predict_proba(frame))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": {"a": (0, 1), "b": (0, 1)}}, "lacks the column 'c'"),
        ({"bounds": {"a": (0, 1), "b": (0, 1), "c": (0, 1), "d": (0, 1)}}, "names 'd', which is no column"),
        ({"bounds": {"a": 0, "b": 1, "c": 2}}, "column: "),
        ({"bounds": (pd.Series([0, 0, 0], ["a", "b", "d"]), 1)}, "names 'd', which is no column"),
        ({"bounds": (pd.Series([0, 0, 0, 0], ["a", "b", "c", "c"]), 1)}, "twice"),
        ({"fill": {"a": 0.0}}, "fill.*lacks the column 'b'"),
        ({"fill": {0: 0.0, 1: 0.0, 2: 0.0}}, "names 0, which is no column"),
    ],
)
def test_columns_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    X, y = two_blobs()
    with pytest.raises(InputError, match=message):
        classifier(**changes).fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)
    with pytest.raises(InputError, match="pass a frame"):
        classifier(bounds=(pd.Series([0, 0, 0], ["a", "b", "c"]), 1)).fit(X, y)


@pytest.mark.parametrize(
    ("classes", "labels", "message"),
    [
        ([0, 1], ["no", "yes"], "classes.* holds numbers, and y holds text"),
        (["0", "1"], [0, 1], "classes.* holds text, and y holds numbers"),
        ([0, 1], np.array(["no", "yes"], dtype=object), "holds numbers, and y holds objects"),
        ([None, 1], [0, 1], "holds objects, and y holds numbers"),
    ],
)
def test_labels_of_another_type_are_refused(classes: Any, labels: Any, message: str) -> None:
    """Failed with a bare TypeError from numpy, for some of them."""
    X, y = two_blobs()
    with pytest.raises(InputError, match=message):
        classifier(classes=classes).fit(X, np.asarray(labels)[y])


def test_labels_may_be_words() -> None:
    X, y = two_blobs()
    words = np.array(["no", "yes"])[y]
    model = classifier(classes=["yes", "no"], steps=30).fit(X, words)
    assert model.classes_.tolist() == ["no", "yes"]
    assert (model.predict(X) == words).mean() > 0.9


def test_missing_values_need_a_declared_fill() -> None:
    X, y = two_blobs()
    X[3, 1] = np.nan
    with pytest.raises(InputError, match=r"NaN(.|\n)*fill="):
        classifier().fit(X, y)
    filled = X.copy()
    filled[3, 1] = 0.5
    model = classifier(fill=0.5).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), classifier().fit(filled, y).predict_proba(filled))
    per_feature = classifier(fill=[9.0, 0.5, 9.0]).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), per_feature.predict_proba(X))
    with pytest.raises(InputError, match="fill"):
        classifier(fill=[1.0, 2.0]).fit(X, y)


def test_sparse_rows_are_brought_to_length_one() -> None:
    """Sparse and dense rows give the same model, and the sparse matrix is never dense all at once."""
    rng = np.random.default_rng(0)
    y = np.arange(300) % 2
    words = rng.poisson(0.05 + 0.4 * (np.arange(40)[None, :] % 2 == y[:, None]), (300, 40)).astype(float)
    arguments = {"bounds": None, "population": 300, "steps": 40}
    from_sparse = classifier(**arguments).fit(sparse.csr_matrix(words), y)
    from_dense = classifier(scaling="rows", **arguments).fit(words, y)
    assert from_sparse.plan_.survey is None
    assert from_sparse.bounds_ is None
    np.testing.assert_allclose(
        from_sparse.predict_proba(sparse.csr_array(words)), from_dense.predict_proba(words), rtol=1e-5
    )
    assert from_sparse.score(sparse.csr_matrix(words), y) > 0.9


def test_wide_sparse_rows_become_dense_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed with 24 rows of 2²⁰ columns at once, 192 MiB; of 512 rows it would have been 4 GiB."""
    scaled, densified = Scaler.__call__, []

    def noted(self: Scaler, rows: Any) -> Any:
        densified.append(rows.shape)
        return scaled(self, rows)

    monkeypatch.setattr(Scaler, "__call__", noted)
    words = sparse.random(24, 2**20, density=1e-5, format="csr", random_state=0)
    model = classifier(bounds=None, population=24, steps=2).fit(words, np.arange(24) % 2)
    assert model.predict(words).shape == (24,)
    assert max(rows * columns * 8 for rows, columns in densified) == 64 * 2**20


def test_a_missing_value_in_a_sparse_row_is_filled() -> None:
    words = sparse.csr_matrix(np.array([[1.0, np.nan, 0.0], [0.0, 2.0, 1.0]] * 20))
    model = classifier(bounds=None, population=40, fill=0.5).fit(words, [0, 1] * 20)
    assert np.isfinite(model.predict_proba(words)).all()


def images(side: int = 16, rows: int = 120) -> tuple[Any, Any]:
    """Stripes across or along, between 0 and 255."""
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 2
    wave = np.sin(np.arange(side) * 2.0 + rng.uniform(0, 6, (rows, 1)))
    found = np.where(y[:, None, None] == 0, wave[:, :, None], wave[:, None, :]) + rng.normal(
        0, 0.1, (rows, side, side)
    )
    return np.clip(127 + 100 * found, 0, 255), y


@pytest.mark.parametrize("bounds", [(0, 255), None])
def test_images_by_scattering(bounds: Any) -> None:
    X, y = images()
    arguments: dict[str, Any] = {"model": "scatter", "population": 120, "steps": 20, "bounds": bounds}
    model = classifier(**arguments).fit(X, y)
    assert model.score(X, y) > 0.9
    assert (model.plan_.survey is None) == (bounds is not None)
    if bounds is None:  # one range for all pixels: darkest and brightest
        assert model.plan_.survey.columns == 2
    flat = classifier(image_shape=(16, 16), **arguments).fit(X.reshape(120, -1), y)
    coloured = classifier(**arguments).fit(X[:, None], y)
    np.testing.assert_array_equal(model.predict_proba(X), flat.predict_proba(X.reshape(120, -1)))
    np.testing.assert_array_equal(model.predict_proba(X), coloured.predict_proba(X[:, None]))


def test_images_that_do_not_fit_are_refused() -> None:
    X, y = images(side=8)
    with pytest.raises(InputError, match="at least 16"):
        classifier(model="scatter", population=120, bounds=(0, 255)).fit(X, y)
    with pytest.raises(InputError, match="no images"):
        classifier(model="scatter").fit(*two_blobs())
    with pytest.raises(InputError, match="image_shape"):
        classifier(image_shape=(5, 5)).fit(*two_blobs())
    model = classifier(population=120, bounds=(0, 255)).fit(X, y)
    with pytest.raises(ValueError, match="trained on"):
        model.predict(X.reshape(120, -1))


def test_declared_weights_answer_to_unequal_classes() -> None:
    """One in ten is rare; without weights it is hardly ever predicted."""
    rng = np.random.default_rng(0)
    y = (np.arange(500) % 10 == 0).astype(int)
    X = rng.normal(0, 1, (500, 2)) + 0.9 * y[:, None]
    given: dict[str, Any] = {"population": 500, "bounds": (-4, 5), "steps": 60, "epsilon": 8.0}
    plain = classifier(**given).fit(X, y)
    weighted = classifier(class_weight={0: 1.0, 1: 9.0}, **given).fit(X, y)
    balanced = classifier(class_weight="balanced", **given).fit(X, y)
    rare = [float((model.predict(X)[y == 1] == 1).mean()) for model in (plain, weighted, balanced)]
    assert rare[1] > rare[0] + 0.3
    assert rare[2] > rare[0] + 0.3
    assert balanced.plan_.survey.columns == 1
    assert balanced.plan_.epsilon <= 8.0
    assert balanced.class_weight_[0] == pytest.approx(1 / 9, abs=0.05)


@pytest.mark.parametrize("wrong", ["balance", {0: -1.0}, {7: 1.0}, {0: 0.0, 1: 0.0}, [1, 2]])
def test_weights_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="class_weight"):
        classifier(class_weight=wrong).fit(*two_blobs())


def test_a_label_that_was_not_declared_is_refused() -> None:
    with pytest.raises(InputError, match="lacks a label"):
        classifier(classes=[1, 2]).fit(*two_blobs())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": (1, 0)}, "bounds"),
        ({"bounds": (0, np.inf)}, "bounds"),
        ({"bounds": ([0, 0], [1, 1])}, "bounds"),
        ({"bounds": 5}, "bounds"),
        ({"bounds": ("a", "b")}, "bounds"),
        ({"scaling": "rows"}, "bounds"),
        ({"scaling": "columns"}, "scaling"),
        ({"model": "lineer"}, "Did you mean 'linear'"),
        ({"method": "dp-stg"}, "Did you mean 'dp-sgd'"),
        ({"method": "dope-sgd"}, "public"),
        ({"method": "dp-sgd+mirror"}, "public"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"population": 0}, "population"),
        ({"model": "mlp", "hidden": 0}, "hidden"),
        ({"bounds": None, "survey_share": 1.5}, "share"),
        ({"settings": {"no_such": 1}}, "no_such"),
        ({"settings": {"relation": "add-remove"}}, "estimator's own"),
        ({"model": nn.Linear(3, 5)}, "2 classes"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classifier(**changes).fit(*two_blobs())


def test_bounds_of_sparse_rows_must_be_given() -> None:
    X, y = two_blobs()
    with pytest.raises(InputError, match="scaling='rows'"):
        classifier(scaling="bounds", bounds=None).fit(sparse.csr_matrix(X), y)
    model = classifier(scaling="bounds").fit(sparse.csr_matrix(X), y)
    np.testing.assert_allclose(model.predict_proba(X), classifier().fit(X, y).predict_proba(X), rtol=1e-6)


def test_ones_own_module_is_trained_and_left_as_it_was() -> None:
    X, y = two_blobs()
    torch.manual_seed(0)
    own = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    before = own[0].weight.detach().clone()
    model = classifier(model=own, steps=40).fit(X, y)
    assert torch.equal(own[0].weight, before)
    assert model.score(X, y) > 0.9
