"""What both estimators share: from rows and parameters to a plan, a run and predictions."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, is_regressor
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from saltflat.engine.batch import LossFunction
from saltflat.errors import InputError, PrivacyWarning, check_count
from saltflat.estimators.defaults import choose_settings, noise_floor
from saltflat.estimators.histograms import Array, Place
from saltflat.estimators.inputs import Shape, read_rows
from saltflat.estimators.networks import Network, network
from saltflat.estimators.rows import Answer, Surveying, TableRows, as_inputs, rows_at_once
from saltflat.estimators.scaling import Scaler, checked_bounds
from saltflat.plan import Optimizer, Plan, Survey
from saltflat.plans import by_name
from saltflat.training.fit import fit as train

Learned = Callable[[TableRows, list[Place], Array | None], dict[str, Any]]
"""Takes in what a survey found beside the bounds of features, and returns it as public facts."""

NOT_PRIVATE = ("sgd", "sam")
OWN = ("population", "relation", "unit", "epsilon", "delta", "noise_multiplier", "survey", "steps", "epochs",
       "batch_size", "rate", "clip_norm", "learning_rate")  # fmt: skip
"""What a plan is told of by the estimator alone."""


class PrivateEstimator(BaseEstimator):
    """The parts of `PrivateClassifier` and `PrivateRegressor` that do not know what a target is."""

    def _keep(self, parameters: dict[str, Any]) -> None:
        """Each parameter as an attribute of its name, as scikit-learn wants it: the `locals()` of an `__init__`."""
        self.__dict__.update({name: value for name, value in parameters.items() if name != "self"})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.fill is not None
        return tags

    def _train(
        self, rows: Any, image: Shape | None, outputs: int, targets: Tensor, loss: LossFunction,
        *, declared: bool, also: Surveying, learned: Learned,
    ) -> None:  # fmt: skip
        """Make plan and rows together, train, and keep what predictions need.

        ``declared`` says whether everything that must be public was declared. ``also`` holds what a survey is to
        find beside the bounds of the features, and ``learned`` takes it in.
        """
        seed = self._seed()
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            net = network(self.model, int(rows.shape[1]), image, outputs, _plain(self.hidden))
            scaler, columns = self._scaler(rows, net)
            surveying = replace(also, numbers=[*columns, *also.numbers])
            plan = self._plan(len(targets), net, surveying.columns, declared=declared)
            source = TableRows(rows, targets, net.shape, scaler, transform=net.transform)
            facts: dict[str, Any] = {"estimator": type(self).__name__}
            if plan.survey is not None:
                source.surveying, source.deviation = surveying, plan.survey.deviation
                source.answer = _answer(source, net, len(columns), learned, facts)
            run = train(
                net.module, source, plan, loss_fn=loss, progress=False, seed=seed, out=self.out,
                randomness=self.randomness, account=self.account, facts=facts,
            )  # fmt: skip
        module = copy.deepcopy(run.model).double().eval()
        if run.average is not None:
            module.load_state_dict({**module.state_dict(), **run.average})
        used = source.scaler
        assert used is not None
        self.run_, self.plan_, self.certificate_ = run, run.plan, run.certificate
        self.model_, self.image_shape_ = module, image
        self.bounds_ = None if used.kind != "bounds" else (used.low, used.high)
        self._scaling, self._shape, self._transform = used, net.shape, net.transform

    def _outputs(self, X: Any) -> Array:
        """The model's outputs, in float64: a row's do not depend on the rows beside it."""
        check_is_fitted(self)
        rows, _, image = read_rows(self, X, reset=False)
        if image != self.image_shape_:
            raise InputError("X", str(image), f"rows of the form that was trained on, {self.image_shape_}")
        found, many = [], rows_at_once(rows)
        with torch.no_grad():
            for start in range(0, rows.shape[0], many):
                some = rows[start : start + many]
                inputs = as_inputs(some, self._scaling, self._shape, self._transform, torch.float64)
                found.append(self.model_(inputs))
        return np.asarray(torch.cat(found).numpy())

    # --- from parameters to parts -------------------------------------------------------------------

    def _seed(self) -> int | None:
        """A seed for a test run, which is not private; None for a private one."""
        if self.random_state is None:
            return None
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _scaler(self, rows: Any, net: Network) -> tuple[Scaler | None, list[Array]]:
        """How rows are scaled; or None and the columns that a survey must look at first."""
        kind = self.scaling
        if kind == "auto":
            kind = "rows" if sparse.issparse(rows) and self.bounds is None else "bounds"
        if kind in ("rows", "none"):
            if self.bounds is not None:
                raise InputError(
                    "bounds", self.bounds, "scaling='bounds' beside it", problem=f"is given with scaling={kind!r}"
                )  # fmt: skip
            return Scaler(kind), []
        if kind != "bounds":
            raise InputError("scaling", self.scaling, "'auto', 'bounds', 'rows' or 'none'")
        if self.bounds is not None:
            names = getattr(self, "feature_names_in_", None)
            low, high = checked_bounds("bounds", self.bounds, rows.shape[1], names)
            return Scaler("bounds", low, high, unit=net.transform is not None), []
        if sparse.issparse(rows):
            raise InputError(
                "scaling", "bounds", "bounds=(low, high) for sparse rows", problem="has no bounds to use",
                cure="Or take scaling='rows', which needs none.",
            )  # fmt: skip
        if net.images:  # one range for all pixels: each image says how dark and how bright it gets
            return None, [rows.min(axis=1), rows.max(axis=1)]
        return None, list(np.ascontiguousarray(rows.T))

    def _plan(self, rows: int, net: Network, columns: int, *, declared: bool) -> Plan:
        """The plan: what was declared, or else counted, and defaults for what was not said."""
        population = _plain(self.population)
        if population is not None:
            check_count("population", population)
        counted = rows if population is None else population
        if not declared:
            warnings.warn(
                f"{self._undeclared()} read from the data, and the certificate holds for the zero-out relation, "
                "under which that is public. Declare it to keep it secret.",
                PrivacyWarning,
                stacklevel=4,
            )
        more = dict(self.settings or {})
        if own := [key for key in more if key in OWN]:
            raise InputError(
                "settings", str(own), "further arguments of the plan", problem="are the estimator's own",
                cure="Give them to the estimator, if it has them.",
            )  # fmt: skip
        base = str(self.method).split("+")[0]
        epsilon = math.inf if base in NOT_PRIVATE else self.epsilon
        suffix = next((part for part in str(self.method).split("+")[1:] if part.startswith("adam")), "sgd")
        optimizer = "another" if "optimizer" in more else suffix
        survey = Survey.for_share(columns, self.survey_share, epsilon, self.delta) if columns else None
        settings = choose_settings(
            epsilon, self.delta, counted, layers=net.layers, optimizer=optimizer, squared=is_regressor(self)
        )
        for key in ("batch_size", "steps", "learning_rate", "clip_norm"):
            if (given := _plain(getattr(self, key))) is not None:
                settings[key] = given
        if optimizer == "adam-bc":
            floor = noise_floor(
                epsilon, self.delta, counted, steps=settings["steps"], clip_norm=settings["clip_norm"]
            )
            settings["optimizer"] = Optimizer("adam-bc", {"floor": floor})
        plan = by_name(
            self.method, epsilon=self.epsilon, delta=self.delta, population=counted,
            relation="add-remove" if declared else "zero-out",
            survey=survey, **(settings | more),
        )  # fmt: skip
        if plan.needs_public:
            raise InputError(
                "method", self.method, "a method without public data", problem="needs public data",
                cure="Train with sf.fit(model, data, plan, public=...).",
            )  # fmt: skip
        return plan

    def _undeclared(self) -> str:
        """What was taken from the data, as the beginning of a sentence."""
        return "The number of rows (population=) was"


def _plain(value: Any) -> Any:
    """A number of numpy's, which searches over grids hand out, as one of Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _answer(
    source: TableRows, net: Network, features: int, learned: Learned, facts: dict[str, Any]
) -> Answer:
    """Read the bounds of features first, then what else was asked for; all of it is public from then on."""

    def answer(found: list[Place], counts: Array | None) -> None:
        if source.scaler is None:
            source.scaler = scaler = _learned(found[:features], net)
            facts["bounds"] = [np.ravel(side).tolist() for side in (scaler.low, scaler.high)]
        facts.update(learned(source, found[features:], counts))

    return answer


def _learned(found: list[Place], net: Network) -> Scaler:
    """The scaler that a survey found: bounds for each feature, or one pair for all pixels."""
    if net.images:
        darkest, brightest = found
        low, high = darkest.bounds[0] if darkest.centre else 0.0, brightest.bounds[1]
        if not low < high:
            low, high = min(low, high) - 1.0, max(low, high) + 1.0
        return Scaler("bounds", np.asarray(low), np.asarray(high), unit=net.transform is not None)
    pairs = np.array([place.bounds for place in found])
    return Scaler("bounds", pairs[:, 0], pairs[:, 1])


EXPECTED_FAILED_CHECKS: dict[str, str] = {
    "check_class_weight_classifiers": (
        "wants 87 % of the predictions for a class of weight 1000, after fifty rows of blobs that overlap; the noise "
        "of epsilon=1 outweighs fifty rows. It passes at epsilon=8."
    ),
}
"""By the name of the check, the reason; for ``check_estimator(..., expected_failed_checks=...)``."""
