"""Figures that need only a confusion matrix [true, predicted]; its counts need not be whole."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpdm.metrics.intervals import Estimate, mean_share, share
from fedpdm.metrics.predictions import plain

__all__ = ["balanced_share", "class_entries", "majority_share", "right_share", "whole_counts"]


def right_share(confusion: np.ndarray) -> Estimate:
    """Return the share of rows in the right class.

    Parameters
    ----------
    confusion : ndarray
        [true, predicted] rows.

    Returns
    -------
    Estimate
        The accuracy.
    """
    return share(float(np.trace(confusion)), float(confusion.sum()))


def majority_share(confusion: np.ndarray) -> Estimate:
    """Return the share of rows in the largest class.

    Parameters
    ----------
    confusion : ndarray
        [true, predicted] rows.

    Returns
    -------
    Estimate
        The share.
    """
    return share(float(confusion.sum(axis=1).max()), float(confusion.sum()))


def balanced_share(confusion: np.ndarray) -> Estimate:
    """Return the mean of the classes' recalls.

    Parameters
    ----------
    confusion : ndarray
        [true, predicted] rows.

    Returns
    -------
    Estimate
        The balanced accuracy.
    """
    return mean_share(_recalls(confusion))


def class_entries(confusion: np.ndarray, names: Sequence[str], areas: Sequence[Estimate]) -> list[dict[str, Any]]:
    """Return the figures of each class, as in summary.json.

    Parameters
    ----------
    confusion : ndarray
        [true, predicted] rows.
    names : sequence of str
        Names of the classes.
    areas : sequence of Estimate
        The AUC of each class.

    Returns
    -------
    list of dict
        Name, rows, recall, precision and AUC of each class.
    """
    true, called, hits = confusion.sum(axis=1), confusion.sum(axis=0), np.diag(confusion)
    return [
        {
            "name": str(name),
            "rows": _whole(true[k]),
            "recall": plain(recall),
            "precision": plain(share(float(hits[k]), float(called[k]))),
            "auc": plain(areas[k]),
        }
        for k, (name, recall) in enumerate(zip(names, _recalls(confusion), strict=True))
    ]


def whole_counts(confusion: np.ndarray) -> list[list[float | int]]:
    """Return the matrix as lists, with whole numbers as integers.

    Parameters
    ----------
    confusion : ndarray
        [true, predicted] rows.

    Returns
    -------
    list of list
        The rows of the matrix.
    """
    return [[_whole(cell) for cell in row] for row in confusion.tolist()]


def _recalls(confusion: np.ndarray) -> list[Estimate]:
    true, hits = confusion.sum(axis=1), np.diag(confusion)
    return [share(float(hits[k]), float(true[k])) for k in range(len(confusion))]


def _whole(value: float) -> float | int:
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")
