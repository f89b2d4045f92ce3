"""Estimators of scikit-learn: a federation in `fit`, a linear model after it."""

from fedpdm.estimator.classifier import FedPDMClassifier
from fedpdm.estimator.regressor import FedPDMRegressor

__all__ = ["FedPDMClassifier", "FedPDMRegressor"]
