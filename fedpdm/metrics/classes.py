"""The metrics of the table `fedpdm.choices.METRICS`: each a figure with its interval, from predictions and truth."""

import numpy as np

from fedpdm.metrics import intervals
from fedpdm.metrics.confusion import balanced_share, majority_share, right_share
from fedpdm.metrics.intervals import Estimate
from fedpdm.metrics.predictions import Predictions

__all__ = ["accuracy", "auc", "balanced_accuracy", "brier", "log_loss", "majority_rate"]

LEAST = 1e-15  # the smallest probability in a log loss: 0 would give infinity


def accuracy(rows: Predictions) -> Estimate:
    """Return the share of rows in the right class.

    Parameters
    ----------
    rows : Predictions
        Predictions and truth.

    Returns
    -------
    Estimate
        The accuracy.
    """
    return right_share(rows.confusion())


def majority_rate(rows: Predictions) -> Estimate:
    """Return the accuracy of a classifier that always predicts the largest class.

    Parameters
    ----------
    rows : Predictions
        Predictions and truth.

    Returns
    -------
    Estimate
        The share of the largest class.
    """
    return majority_share(rows.confusion())


def balanced_accuracy(rows: Predictions) -> Estimate:
    """Return the mean of the classes' recalls.

    Parameters
    ----------
    rows : Predictions
        Predictions and truth.

    Returns
    -------
    Estimate
        The balanced accuracy.
    """
    return balanced_share(rows.confusion())


def auc(rows: Predictions) -> Estimate:
    """Return the AUC of the second of two classes, or the mean over several classes of each against the rest.

    Parameters
    ----------
    rows : Predictions
        Probabilities and truth.

    Returns
    -------
    Estimate
        The AUC.
    """
    if rows.values.shape[1] == 2:
        return intervals.auc(rows.values[:, 1], rows.labels == 1)
    return intervals.mean_auc(rows.values, rows.labels)


def log_loss(rows: Predictions) -> Estimate:
    """Return the mean of minus the logarithm of the true class's probability.

    Parameters
    ----------
    rows : Predictions
        Probabilities and truth.

    Returns
    -------
    Estimate
        The log loss.
    """
    true = rows.values[np.arange(len(rows.values)), rows.labels]
    return intervals.mean(-np.log(np.clip(true, LEAST, 1)), least=0.0)


def brier(rows: Predictions) -> Estimate:
    """Return the mean squared distance of the probabilities from the truth.

    Parameters
    ----------
    rows : Predictions
        Probabilities and truth.

    Returns
    -------
    Estimate
        The Brier score; for two classes that of the second one.
    """
    classes = rows.values.shape[1]
    squares = ((rows.values - np.eye(classes)[rows.labels]) ** 2).sum(axis=1)
    # for two classes the usual score: that of the second class, half of the sum over both
    return intervals.mean(squares / 2 if classes == 2 else squares, least=0.0)
