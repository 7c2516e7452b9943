"""Estimators with scikit-learn's interface: `PrivateClassifier` and `PrivateRegressor`."""

from saltflat.estimators.classifier import PrivateClassifier
from saltflat.estimators.regressor import PrivateRegressor

__all__ = ["PrivateClassifier", "PrivateRegressor"]
