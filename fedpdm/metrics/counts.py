"""Metrics from counts, for a client that may release noised counts but no single prediction."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpdm.metrics.confusion import balanced_share, class_entries, majority_share, right_share, whole_counts
from fedpdm.metrics.intervals import Estimate
from fedpdm.metrics.predictions import confusion_matrix, plain, predicted

__all__ = ["Counts", "count", "metrics_of_counts"]

BINS = 20
LEAST = 1e-3  # the smallest probability of a bin in a log loss


class Counts(NamedTuple):
    """Test rows, counted. One row is in one cell of `confusion` and in one cell per class of `histograms`.

    So adding or removing a row changes `confusion` by 1 in one cell, and `histograms` by 1 in as many cells as there are
    classes: its distance is 1 + classes in the sum of absolute values, sqrt(1 + classes) in the Euclidean norm.

    Attributes
    ----------
    confusion : ndarray
        [classes, classes] rows by true and predicted class.
    histograms : ndarray
        [classes, 2, bins]: of class k, the rows of other classes (0) and of its own (1) by its probability.
    """

    confusion: np.ndarray
    histograms: np.ndarray


def count(probabilities: np.ndarray, labels: np.ndarray, threshold: float | None = None, bins: int = BINS) -> Counts:
    """Count the rows. The sum of several nodes' counts is the count of all their rows.

    Parameters
    ----------
    probabilities : ndarray
        [rows, classes].
    labels : ndarray
        [rows] true classes, numbered from 0.
    threshold : float, optional
        See `fedpdm.metrics.evaluate.predicted`.
    bins : int
        Bins of the histograms.

    Returns
    -------
    Counts
        The counts.
    """
    shares, classes = np.asarray(probabilities, np.float64), probabilities.shape[1]
    places = np.clip((shares * bins).astype(np.int64), 0, bins - 1)
    confusion = confusion_matrix(labels, predicted(shares, threshold), classes)
    histograms = np.zeros((classes, 2, bins), np.int64)
    for k in range(classes):
        np.add.at(histograms[k], ((labels == k).astype(int), places[:, k]), 1)
    return Counts(confusion, histograms)


def metrics_of_counts(counts: Counts, class_names: Sequence[str], deviation: float = 0.0) -> dict[str, Any]:
    """Compute the figures of `fedpdm.metrics.evaluate` as far as counts allow.

    A probability counts as the middle of its bin, so AUC, log loss and Brier score compare values that are off by at most a
    bin's width. Counts may carry noise: negative ones count as 0. Intervals are those of counts without noise; `noise_share`
    gives the size of the noise relative to the counts.

    Parameters
    ----------
    counts : Counts
        Sums over nodes, with or without noise.
    class_names : sequence of str
        Names of the classes.
    deviation : float
        Standard deviation of the noise in one cell.

    Returns
    -------
    dict
        As in `evaluate`, with `noise_share`.
    """
    confusion = np.maximum(np.asarray(counts.confusion, np.float64), 0)
    cells = np.maximum(np.asarray(counts.histograms, np.float64), 0)
    classes, _, bins = cells.shape
    middle = (np.arange(bins) + 0.5) / bins
    areas = [_area(cells[k, 0], cells[k, 1]) for k in range(classes)]
    own = cells[:, 1].sum(axis=0)
    errors = (cells[:, 0] * middle**2 + cells[:, 1] * (1 - middle) ** 2).sum(axis=1)
    rows = confusion.sum()
    known = [area for area in areas if area is not None]
    return {
        "rows": float(rows),
        "accuracy": plain(right_share(confusion)),
        "majority_rate": plain(majority_share(confusion)),
        "balanced_accuracy": plain(balanced_share(confusion)),
        "classes": class_entries(confusion, class_names, [Estimate(area) for area in areas]),
        "confusion": whole_counts(confusion),
        "auc": plain(Estimate((areas[1] if classes == 2 else float(np.mean(known))) if len(known) == classes else None)),
        "log_loss": plain(Estimate(_ratio(-(own * np.log(np.maximum(middle, LEAST))).sum(), own.sum()))),
        "brier": plain(Estimate(_ratio(errors[1] if classes == 2 else errors.sum(), rows))),
        "calibration": [_curve(cells[k, 0], cells[k, 1], middle) for k in ([1] if classes == 2 else range(classes))],
        "noise_share": _ratio(deviation * confusion.size**0.5, rows),
    }


def _area(others: np.ndarray, own: np.ndarray) -> float | None:
    """Return the AUC of binned scores: rows in one bin are ties."""
    if not others.sum() or not own.sum():
        return None
    below = np.cumsum(others) - others / 2
    return float((own * below).sum() / (own.sum() * others.sum()))


def _curve(others: np.ndarray, own: np.ndarray, middle: np.ndarray) -> list[dict[str, Any]]:
    both = others + own
    return [
        {"rows": float(both[b]), "predicted": float(middle[b]), "value": float(own[b] / both[b]), "interval": None}
        for b in np.flatnonzero(both > 0)
    ]


def _ratio(value: float, rows: float) -> float | None:
    return float(value / rows) if rows > 0 else None
