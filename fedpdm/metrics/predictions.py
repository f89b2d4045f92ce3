"""The input of a metric: the predictions for test rows, and the truth."""

from typing import Any, NamedTuple

import numpy as np

from fedpdm.metrics.intervals import Estimate

__all__ = ["Predictions", "confusion_matrix", "plain", "predicted"]


class Predictions(NamedTuple):
    """The predictions for test rows, and the truth.

    Attributes
    ----------
    values : ndarray
        [rows, classes] probabilities, or [rows] numbers.
    labels : ndarray
        [rows] true classes, numbered from 0, or true numbers.
    threshold : float or None
        Two classes: the probability from which the second one is predicted; None: the most likely class.
    """

    values: np.ndarray
    labels: np.ndarray
    threshold: float | None = None

    def confusion(self) -> np.ndarray:
        """Return the number of rows by true and predicted class."""
        return confusion_matrix(self.labels, predicted(self.values, self.threshold), self.values.shape[1])


def confusion_matrix(labels: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """Count rows by true and predicted class.

    Parameters
    ----------
    labels, classes : ndarray
        [rows] true and predicted classes.
    count : int
        Number of classes.

    Returns
    -------
    ndarray
        [true, predicted] rows.
    """
    return np.bincount(labels * count + classes, minlength=count**2).reshape(count, count)


def predicted(probabilities: np.ndarray, threshold: float | None = None) -> np.ndarray:
    """Predict the class of every row.

    Parameters
    ----------
    probabilities : ndarray
        [rows, classes].
    threshold : float, optional
        Two classes: predict the second one from this probability on. None: the most likely class.

    Returns
    -------
    ndarray
        [rows] classes.

    Examples
    --------
    >>> predicted(np.array([[0.8, 0.2], [0.4, 0.6]]), threshold=0.15).tolist()
    [1, 1]
    """
    if threshold is None:
        return probabilities.argmax(axis=1)
    return (probabilities[:, 1] >= threshold).astype(np.int64)


def plain(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as in summary.json.

    Parameters
    ----------
    estimate : Estimate
        A figure with its interval.

    Returns
    -------
    dict
        The value, and the interval [low, high] or None.
    """
    interval = None if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]
    return {"value": estimate.value, "interval": interval}
