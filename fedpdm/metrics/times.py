"""Figures of a model that predicts times to an event."""

from typing import Any

import numpy as np

from fedpdm.metrics.evaluate import figures
from fedpdm.metrics.intervals import Estimate, Z
from fedpdm.metrics.predictions import Predictions

__all__ = ["concordance", "evaluate_times"]

BLOCK = 2000  # rows that are compared with all others at a time


def concordance(rows: Predictions) -> Estimate:
    """Return Harrell's concordance, with the standard error of a ratio of U-statistics.

    A pair is comparable if the earlier time is that of an event; ties of the prediction count one half. Labels are times,
    negative where the event was not seen; values are predicted times.

    Parameters
    ----------
    rows : Predictions
        Predicted times, and true ones, negative without an observed event.

    Returns
    -------
    Estimate
        The figure with its interval.

    >>> concordance(Predictions(np.array([1.0, 2.0, 3.0]), np.array([1.0, -2.0, 3.0]))).value
    1.0
    """
    times, seen, guess = np.abs(rows.labels), rows.labels > 0, rows.values
    right, pairs = np.zeros(len(times)), np.zeros(len(times))
    for start in range(0, len(times), BLOCK):
        part = slice(start, start + BLOCK)
        earlier = (times[part, None] < times) & seen[part, None]
        score = (guess[part, None] < guess) + 0.5 * (guess[part, None] == guess)
        right[part] += (earlier * score).sum(axis=1)
        pairs[part] += earlier.sum(axis=1)
        right += (earlier * score).sum(axis=0)
        pairs += earlier.sum(axis=0)
    if not pairs.sum():
        return Estimate(None)
    value = float(right.sum() / pairs.sum())
    error = Z * 2 * float(np.sqrt(((right - value * pairs) ** 2).sum())) / float(pairs.sum())
    return Estimate(float(f"{value:.9g}"), float(f"{max(value - error, 0):.6g}"), float(f"{min(value + error, 1):.6g}"))


def evaluate_times(predicted: np.ndarray, times: np.ndarray, seen: np.ndarray) -> dict[str, Any]:
    """All figures of predicted times on test rows, as a summary keeps them; an interval is [low, high].

    Parameters
    ----------
    predicted, times : ndarray
        [rows] in the label's own units: predicted times, and times under observation.
    seen : ndarray
        [rows] whether the event was seen.

    Returns
    -------
    dict
        "rows", "events", and the metrics.
    """
    labels = np.where(seen, times, -times)
    return {"rows": len(labels), "events": int(seen.sum()), "kind": "time", **figures(Predictions(predicted, labels), "time")}
