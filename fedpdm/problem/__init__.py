"""Losses, penalties and the problem that they make together."""

from fedpdm.problem.custom import CustomModel, custom_model
from fedpdm.problem.losses import Loss, logistic, softmax
from fedpdm.problem.objective import Problem
from fedpdm.problem.penalties import Penalty
from fedpdm.problem.prediction import Link
from fedpdm.problem.regression import huber, poisson, quantile, squared

__all__ = ["Loss", "Link", "logistic", "softmax", "squared", "huber", "quantile", "poisson"]
__all__ += ["Problem", "Penalty", "CustomModel", "custom_model"]
