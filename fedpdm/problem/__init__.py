"""Losses, penalties and the problem that they make together."""

from fedpdm.problem.custom import CustomModel, custom_model
from fedpdm.problem.losses import LOSSES, Loss, logistic, softmax
from fedpdm.problem.objective import Problem
from fedpdm.problem.penalties import PENALTIES, Penalty

__all__ = ["LOSSES", "Loss", "logistic", "softmax", "Problem", "PENALTIES", "Penalty", "CustomModel", "custom_model"]
