"""Every figure that a board asks for, from probabilities and true classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpdm.metrics.intervals import Estimate, auc, mean, mean_auc, mean_share, share

__all__ = ["BALANCED", "BINS", "choose_threshold", "evaluate", "predicted", "shares_of"]

BALANCED = "balanced-accuracy"  # what a threshold can be chosen for
BINS = 10  # of the calibration curve
LEAST = 1e-15  # a probability of 0 would cost infinitely much; log losses count at least this


def predicted(probabilities: np.ndarray, threshold: float | None = None) -> np.ndarray:
    """The class of every row: the likeliest one, or of two classes the second where its probability reaches the threshold.

    >>> predicted(np.array([[0.8, 0.2], [0.4, 0.6]]), threshold=0.15).tolist()
    [1, 1]
    """
    if threshold is None:
        return probabilities.argmax(axis=1)
    return (probabilities[:, 1] >= threshold).astype(np.int64)


def choose_threshold(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """The threshold on the second class's probability with the largest balanced accuracy on these rows.

    It lies in the middle between two neighbouring probabilities. None if one of the two classes does not occur.
    """
    second, positive = np.asarray(probabilities[:, 1], np.float64), np.asarray(labels) == 1
    if probabilities.shape[1] != 2 or positive.all() or not positive.any():
        return None
    order = np.argsort(second, kind="stable")
    values, hits = second[order], positive[order]
    # with a threshold below values[i], rows i and later are called positive
    missed = np.concatenate([[0], np.cumsum(hits)]) / hits.sum()
    cleared = np.concatenate([[0], np.cumsum(~hits)]) / (~hits).sum()
    balanced = (1 - missed + cleared) / 2
    cuts = np.flatnonzero(np.concatenate([[True], np.diff(values) > 0, [True]]))  # between equal values there is no threshold
    best = int(cuts[np.argmax(balanced[cuts])])
    low, high = (0.0 if best == 0 else values[best - 1]), (1.0 if best == len(values) else values[best])
    return float((low + high) / 2)


def evaluate(
    probabilities: np.ndarray, labels: np.ndarray, class_names: Sequence[str], threshold: float | None = None
) -> dict[str, Any]:
    """All figures of a classifier on test rows, as a summary keeps them; an interval is [low, high].

    Parameters
    ----------
    probabilities : ndarray
        [rows, classes].
    labels : ndarray
        [rows] true classes, numbered from 0.
    class_names : sequence of str
        What they are called.
    threshold : float, optional
        See `predicted`.

    Examples
    --------
    >>> found = evaluate(np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), np.array([0, 1, 1]), ["no", "yes"])
    >>> found["accuracy"]["value"], found["auc"]["value"], found["confusion"]
    (0.666666667, 1.0, [[1, 0], [1, 1]])
    """
    shares, labels = np.asarray(probabilities, np.float64), np.asarray(labels)
    rows, classes = shares.shape
    confusion = np.bincount(labels * classes + predicted(shares, threshold), minlength=classes**2).reshape(classes, classes)
    true = shares[np.arange(rows), labels]
    one_hot = np.eye(classes)[labels]
    brier = ((shares - one_hot) ** 2).sum(axis=1)
    areas = [auc(shares[:, k], labels == k) for k in range(classes)]
    found: dict[str, Any] = {
        "rows": rows,
        "threshold": threshold,
        **shares_of(confusion, class_names),
        "auc": _plain(areas[1] if classes == 2 else mean_auc(shares, labels)),
        "log_loss": _plain(mean(-np.log(np.clip(true, LEAST, 1)))),
        # of two classes the usual one: the second class's alone, half of the sum over both
        "brier": _plain(mean(brier / 2 if classes == 2 else brier)),
        "calibration": [_calibration(shares[:, k], labels == k) for k in ([1] if classes == 2 else range(classes))],
    }
    for entry, area in zip(found["classes"], areas, strict=True):
        entry["auc"] = _plain(area)
    return found


def shares_of(confusion: np.ndarray, class_names: Sequence[str]) -> dict[str, Any]:
    """The figures that a confusion matrix [true, predicted] alone gives."""
    matrix = np.asarray(confusion, np.float64)
    total, true, called, hits = matrix.sum(), matrix.sum(axis=1), matrix.sum(axis=0), np.diag(matrix)
    recalls = [share(hits[k], true[k]) for k in range(len(matrix))]
    precisions = [share(hits[k], called[k]) for k in range(len(matrix))]
    return {
        "accuracy": _plain(share(hits.sum(), total)),
        "balanced_accuracy": _plain(mean_share(recalls)),
        "majority_rate": _plain(share(true.max(), total)),
        "classes": [
            {"name": str(name), "rows": _whole(true[k]), "recall": _plain(recalls[k]), "precision": _plain(precisions[k])}
            for k, name in enumerate(class_names)
        ],
        "confusion": [[_whole(cell) for cell in row] for row in matrix.tolist()],
    }


def _calibration(probability: np.ndarray, positive: np.ndarray) -> list[dict[str, Any]]:
    """Per tenth of the probabilities that has rows: their mean, and how often the class was right."""
    bins = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], probability)
    return [
        {
            "rows": int(own.sum()),
            "predicted": float(f"{probability[own].mean():.6g}"),
            **_plain(share(positive[own].sum(), own.sum())),
        }
        for own in (bins == b for b in range(BINS))
        if own.any()
    ]


def _whole(value: float) -> float | int:
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")


def _plain(estimate: Estimate) -> dict[str, Any]:
    interval = None if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]
    return {"value": estimate.value, "interval": interval}
