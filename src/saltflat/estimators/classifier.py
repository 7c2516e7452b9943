"""`PrivateClassifier`: a scikit-learn classifier that is trained within a budget."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import InputError, is_number
from saltflat.estimators.base import PrivateEstimator
from saltflat.estimators.histograms import Array, Place
from saltflat.estimators.inputs import read_rows
from saltflat.estimators.rows import Surveying, TableRows
from saltflat.record.account import Account


class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """A classifier with scikit-learn's interface, trained with differential privacy.

    ``epsilon`` and ``delta`` are the budget of one `fit`, everything in it included. ``method`` is any method of
    `saltflat.plans` that needs no public data, with suffixes (``"dp-sat+ema"``); ``model`` is ``"linear"``,
    ``"mlp"`` (with ``hidden`` units), ``"scatter"`` (a linear layer on scattering features of images) or a
    ``torch.nn.Module`` with one output a class.

    ``population`` and ``classes`` are declared, by someone who did not look at the rows. Left out, they are taken from
    the data; then the certificate holds for the zero-out relation, under which they are public, and a
    `PrivacyWarning` says so.

    ``scaling`` is ``"bounds"`` (cut off at bounds), ``"rows"`` (every row is brought to length one; costs nothing),
    ``"none"``, or ``"auto"``: rows for sparse input, else bounds. ``bounds`` is a public pair (low, high) of numbers,
    arrays, or Series and dicts by column; or one dict {column: (low, high)}. Left out, they are learned by a survey:
    noised histograms of all columns, one release within the budget that takes ``survey_share`` of it. They are never
    read from the rows as they are. ``fill`` is the public value for what is missing, one or one for each column.
    ``image_shape`` says that flat rows are images.

    ``class_weight`` is a public dict; ``"balanced"`` learns the class counts in the same survey.
    ``batch_size``, ``steps``, ``learning_rate`` and ``clip_norm`` have defaults for about a thousand rows
    (docs/estimators.md); ``settings`` holds further arguments of the plan. ``out``, ``account`` and ``randomness`` are
    those of `saltflat.fit`. ``random_state`` makes a repeatable test run, which is **not private**, and
    the certificate says so.

    Guarantees: (ε, δ) for every row that is fitted on, for everything that `fit` leaves in the estimator.
    `score` on private rows is an exact number about them, and not covered.

    After `fit`: ``classes_``, ``certificate_``, ``plan_``, ``run_``, ``model_``, ``bounds_``, ``n_features_in_``.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)        # a pixel is a number from 0 to 16, whatever the rows hold
    >>> model = PrivateClassifier(epsilon=2.0, population=1797, classes=list(range(10)), bounds=(0, 16))
    >>> model.fit(X, y).score(X, y) > 0.8
    True
    >>> model.certificate_.data["relation"], round(model.certificate_.epsilon, 2)
    ('add-remove', 2.0)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        method: str = "dp-sgd",
        model: str | nn.Module = "linear",
        hidden: int = 16,
        population: int | None = None,
        classes: Any = None,
        scaling: Literal["auto", "bounds", "rows", "none"] = "auto",
        bounds: Any = None,
        survey_share: float = 0.2,
        fill: Any = None,
        image_shape: tuple[int, ...] | None = None,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        batch_size: float | None = None,
        steps: int | None = None,
        learning_rate: float | None = None,
        clip_norm: float | None = None,
        settings: dict[str, Any] | None = None,
        randomness: str = "fast",
        random_state: Any = None,
        out: str | None = None,
        account: str | Account | None = None,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any) -> PrivateClassifier:
        """Train on private rows. Spends the whole budget, every time it is called.

        Guarantees: (ε, δ) for every row, as ``certificate_`` says.
        """
        rows, labels, image = read_rows(self, X, y, reset=True)
        check_classification_targets(labels)
        classes, codes = self._coded(labels)
        weights = self._weights(classes)
        loss = _WeightedLoss(torch.ones(len(classes)) if weights is None else weights)

        def learned(source: TableRows, found: list[Place], counts: Array | None) -> dict[str, Any]:
            if counts is None:
                return {}
            sizes = np.maximum(counts, max(1.0, source.deviation))  # a count below its noise says nothing
            loss.weights = torch.from_numpy(sizes.min() / sizes).float()
            return {"class_weight": loss.weights.tolist()}

        balanced = isinstance(self.class_weight, str)
        self._train(
            rows, image, len(classes), torch.from_numpy(codes), loss, learned=learned,
            declared=self.population is not None and self.classes is not None,
            also=Surveying([], codes if balanced else None, len(classes)),
        )  # fmt: skip
        self.classes_ = classes
        self.class_weight_ = dict(zip(classes.tolist(), loss.weights.tolist()))
        return self

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, in the order of ``classes_``. Post-processing: costs nothing."""
        logits = torch.from_numpy(self._outputs(X))
        return np.asarray(logits.softmax(1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row. Post-processing: costs nothing."""
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])

    def _coded(self, labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The classes in order, and the place of each label among them."""
        if self.classes is None:
            classes, codes = np.unique(labels, return_inverse=True)
        else:
            classes, codes, known = _found_among(self.classes, labels)
            if not known:
                raise InputError(
                    "classes", str(classes.tolist()), "every class that occurs",
                    problem="lacks a label that is in y", cure="Declare all classes that there can be.",
                )  # fmt: skip
        if len(classes) < 2:
            raise InputError(
                "y", "one class", "at least two classes", problem="is all there is: y has 1 class"
            )
        return classes, codes.astype(np.int64)

    def _weights(self, classes: NDArray[Any]) -> Tensor | None:
        """The declared weight of each class, the largest one; None where none is declared."""
        given = self.class_weight
        if given is None or (isinstance(given, str) and given == "balanced"):
            return None
        if not isinstance(given, dict):
            raise InputError("class_weight", given, "a dict {label: weight}, 'balanced' or None")
        unknown = [label for label in given if label not in classes.tolist()]
        values = [given.get(label, 1.0) for label in classes.tolist()]
        sound = all(is_number(value) and 0 <= value < float("inf") for value in values)
        if unknown or not sound or not max(values) > 0:
            raise InputError(
                "class_weight", str(given), "weights >= 0 for labels among the classes, one above 0",
                problem=f"names {unknown[0]!r}, which is no class" if unknown else "is no set of weights",
            )  # fmt: skip
        return torch.tensor(values) / max(values)

    def _undeclared(self) -> str:
        if self.classes is not None:
            return "The number of rows (population=) was"
        if self.population is not None:
            return "The set of classes (classes=) was"
        return "The number of rows (population=) and the set of classes (classes=) were"


def _found_among(declared: Any, labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], bool]:
    """The declared classes in order, the place of each label among them, and whether each label has one."""
    given = np.asarray(declared)
    kinds = [_kind(given), _kind(labels)]
    try:
        if sorted(kinds) == ["numbers", "text"]:  # numpy would compare them as text
            raise TypeError
        classes = np.unique(given)
        codes = np.searchsorted(classes, labels).clip(0, len(classes) - 1)
        return classes, codes, bool((classes[codes] == labels).all())
    except TypeError as error:
        raise InputError(
            "classes", str(given.tolist()), "labels of one type, the same as in y",
            problem=f"holds {kinds[0]}, and y holds {kinds[1]}: they cannot be compared",
            cure="Convert one of them, y.astype(str) for instance.",
        ) from error  # fmt: skip


def _kind(values: NDArray[Any]) -> str:
    """What labels are, in a word that says nothing about any of them."""
    return {"U": "text", "S": "text", "T": "text", "O": "objects"}.get(values.dtype.kind, "numbers")


class _WeightedLoss:
    """Cross-entropy times the weight of the class. Weights are at most one, so that the clip does not undo them."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        if outputs.dim() != 2 or outputs.shape[1] != len(self.weights):
            raise InputError(
                "model", str(tuple(outputs.shape)), f"one output for each of {len(self.weights)} classes",
                problem="is the shape of the model's outputs",
            )  # fmt: skip
        losses = F.cross_entropy(outputs, targets, reduction="none")
        return losses * self.weights.to(losses.device)[targets]
