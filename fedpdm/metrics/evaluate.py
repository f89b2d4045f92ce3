"""All figures of a classifier: the metrics of the table, and the details of each class."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpdm.choices import METRICS, MetricChoice
from fedpdm.choices.registry import cause
from fedpdm.choices.words import BALANCED
from fedpdm.metrics.confusion import class_entries, whole_counts
from fedpdm.metrics.intervals import auc, share
from fedpdm.metrics.persons import over_persons
from fedpdm.metrics.predictions import Predictions, plain

__all__ = ["BALANCED", "BINS", "choose_threshold", "evaluate", "figures"]

BINS = 10  # of the calibration curve
_said: set[str] = set()  # figures are measured again and again, and a line is said once


def choose_threshold(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Choose the threshold on the second class's probability with the largest balanced accuracy on these rows.

    Parameters
    ----------
    probabilities, labels : ndarray
        [rows, 2] and [rows].

    Returns
    -------
    float or None
        The middle between two neighbouring probabilities; None if one of the two classes does not occur.
    """
    second, positive = np.asarray(probabilities[:, 1], np.float64), np.asarray(labels) == 1
    if probabilities.shape[1] != 2 or positive.all() or not positive.any():
        return None
    order = np.argsort(second, kind="stable")
    values, hits = second[order], positive[order]
    # with a threshold below values[i], rows i and later are predicted positive
    missed = np.concatenate([[0], np.cumsum(hits)]) / hits.sum()
    cleared = np.concatenate([[0], np.cumsum(~hits)]) / (~hits).sum()
    balanced = (1 - missed + cleared) / 2
    cuts = np.flatnonzero(np.concatenate([[True], np.diff(values) > 0, [True]]))  # between equal values there is no threshold
    best = int(cuts[np.argmax(balanced[cuts])])
    low, high = (0.0 if best == 0 else values[best - 1]), (1.0 if best == len(values) else values[best])
    return float((low + high) / 2)


def evaluate(
    probabilities: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    threshold: float | None = None,
    units: np.ndarray | None = None,
) -> dict[str, Any]:
    """Compute all figures of a classifier on test rows, as in summary.json; an interval is [low, high].

    Parameters
    ----------
    probabilities : ndarray
        [rows, classes].
    labels : ndarray
        [rows] true classes, numbered from 0.
    class_names : sequence of str
        Names of the classes.
    threshold : float, optional
        See `fedpdm.metrics.predicted`.
    units : ndarray, optional
        [rows] equal numbers for rows of one person: then intervals are over persons (`fedpdm.metrics.persons`).

    Returns
    -------
    dict
        The figures by name.

    Examples
    --------
    >>> found = evaluate(np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), np.array([0, 1, 1]), ["no", "yes"])
    >>> found["accuracy"]["value"], found["auc"]["value"], found["confusion"]
    (0.666666667, 1.0, [[1, 0], [1, 1]])
    """
    rows = Predictions(np.asarray(probabilities, np.float64), np.asarray(labels), threshold)
    shares, classes, confusion = rows.values, rows.values.shape[1], rows.confusion()
    areas = [auc(shares[:, k], rows.labels == k) for k in range(classes)]
    found = {
        "rows": len(shares),
        "threshold": threshold,
        **figures(rows, "classes"),
        "classes": class_entries(confusion, class_names, areas),
        "confusion": whole_counts(confusion),
        "calibration": [_calibration(shares[:, k], rows.labels == k) for k in ([1] if classes == 2 else range(classes))],
    }
    if units is None:
        return found
    return over_persons(found, lambda some: evaluate(shares[some], rows.labels[some], class_names, threshold), units)


def figures(rows: Predictions, target: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the metrics of the table that fit this kind of label, by their keys in summaries.

    Parameters
    ----------
    rows : Predictions
        Predictions and truth.
    target : str
        "classes" or "number".
    names : sequence of str
        The built-in metrics to measure; empty: all. Metrics of other packages are always measured.

    Returns
    -------
    dict
        Figures by key.
    """
    fitting = [metric for metric in METRICS.values() if metric.target == target]
    chosen = [metric for metric in fitting if not names or metric.name in names or metric.name not in METRICS.built_in]
    return {metric.key: found for metric in chosen if (found := _measured(metric, rows)) is not None}


def _measured(metric: MetricChoice, rows: Predictions) -> Any:
    """The figure; None, and one line, if a metric of another package fails: that must not cost a model that is trained."""
    if metric.name in METRICS.built_in:
        return plain(metric.factory()(rows))
    try:
        return plain(metric.factory()(rows))
    except Exception as error:  # any fault of another package
        words = f"the metric {metric.name!r} is left out, because it failed: {cause(error)}"
        if words not in _said:
            _said.add(words)
            print(f"fedpdm: {words}", file=sys.stderr)
        return None


def _calibration(probability: np.ndarray, positive: np.ndarray) -> list[dict[str, Any]]:
    """Return, for each tenth of the probabilities that has rows, their mean and how often the class was right."""
    bins = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], probability)
    return [
        {
            "rows": int(own.sum()),
            "predicted": float(f"{probability[own].mean():.6g}"),
            **plain(share(positive[own].sum(), own.sum())),
        }
        for own in (bins == b for b in range(BINS))
        if own.any()
    ]
