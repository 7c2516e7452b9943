"""Estimators with scikit-learn's interface: `PrivateClassifier` and `PrivateRegressor`."""

from saltflat.estimators.base import EXPECTED_FAILED_CHECKS
from saltflat.estimators.classifier import PrivateClassifier
from saltflat.estimators.regressor import PrivateRegressor

__all__ = ["EXPECTED_FAILED_CHECKS", "PrivateClassifier", "PrivateRegressor"]
