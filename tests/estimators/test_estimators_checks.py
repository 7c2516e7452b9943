"""scikit-learn's own checks of estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import saltflat as sf

# The budget of these: the checks ask for 83 % accuracy on 50 to 300 rows, and for R² > 0.5 on 200 rows.
ESTIMATORS = [sf.PrivateClassifier(epsilon=8.0), sf.PrivateRegressor(epsilon=8.0)]

EXPECTED: dict[str, dict[str, str]] = {"PrivateClassifier": {}, "PrivateRegressor": {}}


@pytest.mark.filterwarnings("ignore::saltflat.errors.PrivacyWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda e: EXPECTED[type(e).__name__])
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
