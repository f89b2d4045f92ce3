"""What a metric looks at: the predictions for test rows, and the truth."""

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
        Of two classes the probability from which the second one is predicted; None: the likeliest class.
    """

    values: np.ndarray
    labels: np.ndarray
    threshold: float | None = None

    def confusion(self) -> np.ndarray:
        """Return the number of rows by true and predicted class."""
        return confusion_matrix(self.labels, predicted(self.values, self.threshold), self.values.shape[1])


def confusion_matrix(labels: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """Return [count, count] rows by true and predicted class."""
    return np.bincount(labels * count + classes, minlength=count**2).reshape(count, count)


def predicted(probabilities: np.ndarray, threshold: float | None = None) -> np.ndarray:
    """The class of every row: the likeliest one, or of two classes the second where its probability reaches the threshold.

    >>> predicted(np.array([[0.8, 0.2], [0.4, 0.6]]), threshold=0.15).tolist()
    [1, 1]
    """
    if threshold is None:
        return probabilities.argmax(axis=1)
    return (probabilities[:, 1] >= threshold).astype(np.int64)


def plain(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as a summary keeps it: its value, and its interval [low, high] or None."""
    interval = None if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]
    return {"value": estimate.value, "interval": interval}
