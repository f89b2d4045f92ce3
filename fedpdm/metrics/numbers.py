"""Every figure of a model that predicts numbers, each with its interval."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpdm.metrics.evaluate import figures
from fedpdm.metrics.intervals import Estimate, Z, mean, share
from fedpdm.metrics.predictions import Predictions, plain

__all__ = ["below", "deviance", "evaluate_numbers", "mae", "r2", "rmse"]

BINS = 10  # of the calibration curve
RESIDUALS = (0.05, 0.25, 0.5, 0.75, 0.95)  # the quantiles of the residuals that a summary keeps
POINTS = 200  # rows that the picture of predicted against true values shows
LEAST = 1e-12  # a predicted count of 0 would cost infinitely much


def evaluate_numbers(predicted: np.ndarray, true: np.ndarray, metrics: Sequence[str] = ("r2", "mae", "rmse")) -> dict[str, Any]:
    """All figures of predicted numbers on test rows, as a summary keeps them; an interval is [low, high].

    Parameters
    ----------
    predicted, true : ndarray
        [rows] in the label's own units.
    metrics : sequence of str
        The built-in metrics to measure; empty: all for numbers.

    Returns
    -------
    dict
        "rows", the metrics, "calibration" (means of prediction and truth in tenths of the rows, by prediction), "residuals"
        (quantiles of truth minus prediction) and "points" (some rows: predicted, true).

    Examples
    --------
    >>> found = evaluate_numbers(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
    >>> found["mae"]["value"], found["r2"]["value"]
    (0.333333333, 0.5)
    """
    guess, truth = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
    order = np.argsort(guess, kind="stable")
    tenths = [part for part in np.array_split(order, min(BINS, len(order))) if len(part)]
    shown = order[np.unique(np.linspace(0, len(order) - 1, min(POINTS, len(order))).astype(int))]
    return {
        "rows": len(truth),
        "kind": "number",
        **figures(Predictions(guess, truth), "number", metrics),
        "calibration": [
            {"rows": len(part), "predicted": _digits(guess[part].mean()), **plain(mean(truth[part]))} for part in tenths
        ],
        "residuals": [[level, _digits(np.quantile(truth - guess, level))] for level in RESIDUALS],
        "points": [[_digits(float(guess[row])), _digits(float(truth[row]))] for row in shown.tolist()],
    }


def r2(rows: Predictions) -> Estimate:
    """Return 1 minus the squared error over that of the mean, with the standard error of a ratio of means (delta method).

    Parameters
    ----------
    rows : Predictions
        Predictions and truth.

    Returns
    -------
    Estimate
        The figure with its interval.
    """
    error, spread = (rows.labels - rows.values) ** 2, (rows.labels - rows.labels.mean()) ** 2
    if len(error) < 2 or not spread.mean():
        return Estimate(None)
    ratio = float(error.mean() / spread.mean())
    deviation = float((error - ratio * spread).std(ddof=1) / spread.mean()) / math.sqrt(len(error))
    return _rounded(1 - ratio, Z * deviation)


def mae(rows: Predictions) -> Estimate:
    """Return the mean absolute error.

    Parameters
    ----------
    rows : Predictions
        Predictions and truth.

    Returns
    -------
    Estimate
        The figure with its interval.
    """
    return mean(np.abs(rows.labels - rows.values), least=0.0)


def rmse(rows: Predictions) -> Estimate:
    """Return the root of the mean squared error, with the standard error of its square brought to the root (delta method).

    Parameters
    ----------
    rows : Predictions
        Predictions and truth.

    Returns
    -------
    Estimate
        The figure with its interval.
    """
    squares = (rows.labels - rows.values) ** 2
    value = math.sqrt(float(squares.mean()))
    if len(squares) < 2 or not value:
        return Estimate(_digits(value))
    return _rounded(value, Z * float(squares.std(ddof=1)) / math.sqrt(len(squares)) / (2 * value))


def deviance(rows: Predictions) -> Estimate:
    """Return the mean Poisson deviance.

    Parameters
    ----------
    rows : Predictions
        Predictions and truth.

    Returns
    -------
    Estimate
        The figure with its interval.
    """
    rate, truth = np.maximum(rows.values, LEAST), rows.labels
    logs = np.where(truth > 0, truth * np.log(np.maximum(truth, LEAST) / rate), 0.0)
    return mean(2 * (logs - (truth - rate)), least=0.0)


def below(rows: Predictions) -> Estimate:
    """Return the share of rows at or below the prediction, with Wilson's interval.

    Parameters
    ----------
    rows : Predictions
        Predictions and truth.

    Returns
    -------
    Estimate
        The figure with its interval.
    """
    return share(float((rows.labels <= rows.values).sum()), len(rows.labels))


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def _rounded(value: float, reach: float) -> Estimate:
    return Estimate(float(f"{value:.9g}"), _digits(value - reach), _digits(value + reach))
