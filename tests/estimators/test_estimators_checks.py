"""scikit-learn's own checks of estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import saltflat as sf
from saltflat.estimators import EXPECTED_FAILED_CHECKS

pytestmark = pytest.mark.filterwarnings("ignore::saltflat.errors.PrivacyWarning")
DEFAULTS = [sf.PrivateClassifier(), sf.PrivateRegressor()]


@parametrize_with_checks(DEFAULTS, expected_failed_checks=lambda _: EXPECTED_FAILED_CHECKS)
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("name", EXPECTED_FAILED_CHECKS)
def test_what_is_listed_fails_by_its_budget_alone(name: str) -> None:
    """The list holds no check that passes, and none that the estimator could not pass."""
    check = getattr(estimator_checks, name)
    with pytest.raises(AssertionError):
        check("PrivateClassifier", sf.PrivateClassifier())
    check("PrivateClassifier", sf.PrivateClassifier(epsilon=8.0))
