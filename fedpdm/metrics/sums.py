"""Metrics of numbers from bounded sums, for a client that may release noised sums but no single prediction.

Labels and predictions are shares of the label's range, in [0, 1]; predictions are cut to it. A row adds a bounded vector, so a
sum over rows can be released like the counts of `fedpdm.metrics.counts`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpdm.metrics.intervals import Z

__all__ = ["metrics_of_sums", "number_sums", "sums_sensitivity", "sums_size"]

LEAST = 1e-3  # the smallest predicted share in a deviance
DRAWS = 400  # of the noise, to see how far it moves a figure
EXTRA = ("deviance", "below")  # a loss has one of them, or none
FIXED = 6  # sums that every loss has


def _extra(metrics: Sequence[str]) -> str | None:
    return next((name for name in EXTRA if name in metrics), None)


def sums_size(metrics: Sequence[str], bins: int) -> int:
    """How many numbers a vector of `number_sums` has.

    Parameters
    ----------
    metrics : sequence of str
        The metrics of the loss.
    bins : int
        Bins of the calibration curve.

    Returns
    -------
    int
        The size.
    """
    return FIXED + (_extra(metrics) is not None) + 2 * bins


def sums_sensitivity(metrics: Sequence[str]) -> float:
    """How far one row moves the vector of `number_sums`, or all rows of a person whose weights add up to 1.

    Parameters
    ----------
    metrics : sequence of str
        The metrics of the loss.

    Returns
    -------
    float
        The root of 1 + 1 + 1 + 1 + 1/4 + 1/16 (the fixed sums), 1 (deviance or share below) and 1 + 1/4 (one bin).
    """
    return math.sqrt(4 + 1 / 4 + 1 / 16 + (_extra(metrics) is not None) + 1 + 1 / 4)


def number_sums(
    predicted: np.ndarray,
    labels: np.ndarray,
    metrics: Sequence[str],
    bins: int,
    largest: float = 1.0,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Add up what the figures of a number need; sums of several nodes are the sums of all their rows.

    Parameters
    ----------
    predicted, labels : ndarray
        [rows] shares of the label's range.
    metrics : sequence of str
        The metrics of the loss.
    bins : int
        Bins of the calibration curve, of equal width.
    largest : float
        Errors beyond this share of the range count as it.
    weights : ndarray, optional
        The weight of a row: 1/m for each of a person's m rows.

    Returns
    -------
    ndarray
        Rows; sizes of errors over `largest`, their squares and fourth powers; labels minus 1/2 and their squares; deviance or
        rows below; rows and labels minus 1/2 by bin of the prediction.

    Examples
    --------
    >>> number_sums(np.array([0.75]), np.array([0.25]), (), 2).tolist()
    [1.0, 0.5, 0.25, 0.0625, -0.25, 0.0625, 0.0, 1.0, 0.0, -0.25]
    """
    guess = np.clip(np.nan_to_num(np.asarray(predicted, np.float64), nan=0.5, posinf=1.0, neginf=0.0), 0, 1)
    truth = np.clip(np.asarray(labels, np.float64), 0, 1)
    each = np.ones(len(truth)) if weights is None else np.asarray(weights, np.float64)
    error, centred = np.minimum(np.abs(guess - truth) / largest, 1.0), truth - 0.5
    columns = [np.ones(len(truth)), error, error**2, error**4, centred, centred**2]
    if (extra := _extra(metrics)) == "deviance":
        rate = np.maximum(guess, LEAST)
        logs = np.where(truth > 0, truth * np.log(np.maximum(truth, LEAST**4) / rate), 0.0)
        columns.append(np.clip(2 * (logs - (truth - rate)), 0, 1))
    elif extra == "below":
        columns.append((truth <= guess) + 0.0)
    places = np.minimum((guess * bins).astype(np.int64), bins - 1)
    by_bin = [np.bincount(places, each * column, bins) for column in (np.ones(len(truth)), centred)]
    return np.concatenate([[float(each @ column) for column in columns], *by_bin])


def metrics_of_sums(
    vector: np.ndarray, low: float, high: float, metrics: Sequence[str], bins: int, largest: float = 1.0, deviation: float = 0.0
) -> dict[str, Any]:
    """Compute the figures of `evaluate_numbers` from sums, in the label's units, with intervals that hold the noise.

    Parameters
    ----------
    vector : ndarray
        Sums over nodes, with or without noise.
    low, high : float
        The label's bounds.
    metrics, bins, largest
        As in `number_sums`.
    deviation : float
        Standard deviation of the noise in one number of the vector.

    Returns
    -------
    dict
        The figures, as a summary stores them. What the noise hides has no value.
    """
    wide, hidden = high - low, 2 * deviation
    names = [name for name in ("mae", "rmse", "r2", _extra(metrics)) if name]
    values = _figures(vector, metrics, largest, hidden)
    rng = np.random.default_rng(0)
    draws = [_figures(vector + deviation * rng.normal(size=len(vector)), metrics, largest, hidden) for _ in range(DRAWS)]
    found: dict[str, Any] = {"rows": float(f"{vector[0]:.6g}"), "kind": "number"}
    for name in names:
        scale = wide if name in ("mae", "rmse", "deviance") else 1.0
        value, sampling = values.get(name, (None, 0.0))
        noise = float(np.std([draw[name][0] for draw in draws if name in draw])) if deviation and name in values else 0.0
        found[name] = _entry(value, math.hypot(sampling, noise), scale, name)
    found["calibration"] = _calibration(vector[-2 * bins :], bins, low, wide, deviation)
    return found


def _figures(vector: np.ndarray, metrics: Sequence[str], largest: float, hidden: float) -> dict[str, tuple[float, float]]:
    """Every figure with its standard error over rows; empty where noise hides the rows."""
    rows = float(vector[0])
    if rows <= max(hidden, 1.0):
        return {}
    size, square, fourth, label, label_square = (float(part) / rows for part in vector[1:FIXED])
    size, square, fourth = max(size, 0.0), max(square, 1e-12), max(fourth, 0.0)
    spread = label_square - label**2
    error = math.sqrt(max(fourth - square**2, 0.0) / rows) * largest**2  # of the mean square
    mean_square = square * largest**2
    found = {
        "mae": (size * largest, math.sqrt(max(square - size**2, 0.0) / rows) * largest),
        "rmse": (math.sqrt(mean_square), error / (2 * math.sqrt(mean_square))),
    }
    if spread * rows > hidden / 4:
        # the spread's own error: fourth powers of labels minus 1/2 are at most a quarter of their squares
        of_spread = math.sqrt(max(label_square / 4 - label_square**2, 0.0) / rows)
        found["r2"] = (1 - mean_square / spread, (error + mean_square / spread * of_spread) / spread)
    if (extra := _extra(metrics)) is not None:
        value = min(max(float(vector[FIXED]) / rows, 0.0), 1.0)
        found[extra] = (value, math.sqrt(value * (1 - value) / rows))  # the most that numbers in [0, 1] of this mean can have
    return found


def _entry(value: float | None, error: float, scale: float, name: str) -> dict[str, Any]:
    if value is None:
        return {"value": None, "interval": None}
    least = -math.inf if name == "r2" else 0.0
    most = 1.0 if name in ("r2", "below") else math.inf
    low, high = max(value - Z * error, least), min(value + Z * error, most)
    return {"value": float(f"{value * scale:.9g}"), "interval": [float(f"{end * scale:.6g}") for end in (low, high)]}


def _calibration(part: np.ndarray, bins: int, low: float, wide: float, deviation: float) -> list[dict[str, Any]]:
    """Mean labels by bin of the prediction, where the bin's rows stand out of the noise."""
    rows, labels, curve = part[:bins], part[bins:], []
    for place in np.flatnonzero(rows > max(4 * deviation, 0.5)):
        value = float(np.clip(labels[place] / rows[place] + 0.5, 0, 1))
        variance = value * (1 - value) / rows[place] + deviation**2 * (1 + (value - 0.5) ** 2) / rows[place] ** 2
        ends = [np.clip(value + side * Z * math.sqrt(variance), 0, 1) for side in (-1, 1)]
        middle, mean, bottom, top = (float(f"{low + wide * x:.6g}") for x in ((place + 0.5) / bins, value, *ends))
        curve.append({"rows": float(f"{rows[place]:.6g}"), "predicted": middle, "value": mean, "interval": [bottom, top]})
    return curve
