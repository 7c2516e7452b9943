"""`PrivateRegressor`: a scikit-learn regressor that is trained within a budget."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from torch import Tensor, nn

from saltflat.errors import InputError, check_positive
from saltflat.estimators.base import PrivateEstimator
from saltflat.estimators.histograms import REACH, Array, Place
from saltflat.estimators.inputs import read_rows
from saltflat.estimators.rows import Surveying, TableRows
from saltflat.estimators.scaling import checked_bounds
from saltflat.record.account import Account


class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """A regressor with scikit-learn's interface, trained with differential privacy.

    The parameters are those of `PrivateClassifier`, but for classes. ``target_bounds`` is a public pair (low, high):
    targets are cut off there, and predictions stay within. Left out, it is learned by the survey, as bounds of
    features are. ``loss`` is ``"squared"`` or ``"huber"``, which grows linearly beyond ``huber`` deviations of
    the target's range.

    Guarantees: (ε, δ) for every row that is fitted on, for everything that `fit` leaves in the estimator.

    After `fit`: ``certificate_``, ``plan_``, ``run_``, ``model_``, ``bounds_``, ``target_bounds_``, ``n_features_in_``.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (1000, 3))
    >>> y = X @ [1.0, -2.0, 0.5]
    >>> model = PrivateRegressor(epsilon=3.0, population=1000, bounds=(-1, 1), target_bounds=(-3.5, 3.5))
    >>> model.fit(X, y).score(X, y) > 0.5
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        method: str = "dp-sgd",
        model: str | nn.Module = "linear",
        hidden: int = 16,
        loss: Literal["squared", "huber"] = "squared",
        huber: float = 1.0,
        population: int | None = None,
        scaling: Literal["auto", "bounds", "rows", "none"] = "auto",
        bounds: Any = None,
        target_bounds: Any = None,
        survey_share: float = 0.2,
        fill: Any = None,
        image_shape: tuple[int, ...] | None = None,
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

    def fit(self, X: Any, y: Any) -> PrivateRegressor:
        """Train on private rows. Spends the whole budget, every time it is called.

        Guarantees: (ε, δ) for every row, as ``certificate_`` says.
        """
        rows, values, image = read_rows(self, X, y, reset=True, numeric_y=True)
        values = np.asarray(values, dtype=np.float64)
        ranges: list[tuple[float, float]] = []
        if self.target_bounds is not None:
            low, high = checked_bounds("target_bounds", self.target_bounds)
            ranges.append((float(low), float(high)))

        def learned(source: TableRows, found: list[Place], counts: Array | None) -> dict[str, Any]:
            if not found:
                return {}
            ranges.append(found[0].bounds)
            source.targets = _scaled(values, ranges[0])
            return {"target_bounds": list(ranges[0])}

        self._train(
            rows, image, 1, _scaled(values, ranges[0]) if ranges else torch.zeros(len(values)),
            self._loss_function(), declared=self.population is not None, learned=learned,
            also=Surveying([] if ranges else [values]),
        )  # fmt: skip
        self.target_bounds_ = ranges[0]
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The predicted target of each row, within ``target_bounds_``. Post-processing: costs nothing."""
        outputs = self._outputs(X).reshape(-1)
        low, high = self.target_bounds_
        return np.asarray(np.clip(low + (outputs / REACH + 1) / 2 * (high - low), low, high))

    def _loss_function(self) -> Any:
        if self.loss not in ("squared", "huber"):
            raise InputError("loss", self.loss, "'squared' or 'huber'")
        check_positive("huber", self.huber)
        return _Loss(float(self.huber) if self.loss == "huber" else None)


def _scaled(values: Array, bounds: tuple[float, float]) -> Tensor:
    """Targets cut off at the bounds, which become ∓2.5: a deviation of about one."""
    low, high = bounds
    inside = (np.clip(values, low, high) - low) / (high - low)
    return torch.from_numpy((2 * inside - 1) * REACH).float()


class _Loss:
    """Half the squared error; beyond ``huber``, its tangent."""

    def __init__(self, huber: float | None) -> None:
        self.huber = huber

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        if outputs.numel() != targets.numel():
            raise InputError(
                "model", str(tuple(outputs.shape)), "one output for each row",
                problem="is the shape of the outputs",
            )  # fmt: skip
        error = (outputs.reshape(-1) - targets.reshape(-1)).abs()
        if self.huber is None:
            return 0.5 * error.square()
        near = error.clamp(max=self.huber)
        return 0.5 * near.square() + self.huber * (error - near)
