"""Figures that a confusion matrix [true, predicted] alone gives; its counts need not be whole."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpdm.metrics.intervals import Estimate, mean_share, share
from fedpdm.metrics.predictions import plain

__all__ = ["balanced_share", "class_entries", "majority_share", "right_share", "whole_counts"]


def right_share(confusion: np.ndarray) -> Estimate:
    """Return the share of rows in the right class."""
    return share(float(np.trace(confusion)), float(confusion.sum()))


def majority_share(confusion: np.ndarray) -> Estimate:
    """Return the share of rows in the largest class."""
    return share(float(confusion.sum(axis=1).max()), float(confusion.sum()))


def balanced_share(confusion: np.ndarray) -> Estimate:
    """Return the mean of the classes' recalls."""
    return mean_share(_recalls(confusion))


def class_entries(confusion: np.ndarray, names: Sequence[str], areas: Sequence[Estimate]) -> list[dict[str, Any]]:
    """Return each class's name, rows, recall, precision and AUC (`areas`), as a summary keeps them."""
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
    """Return the matrix as lists, whole numbers as such."""
    return [[_whole(cell) for cell in row] for row in confusion.tolist()]


def _recalls(confusion: np.ndarray) -> list[Estimate]:
    true, hits = confusion.sum(axis=1), np.diag(confusion)
    return [share(float(hits[k]), float(true[k])) for k in range(len(confusion))]


def _whole(value: float) -> float | int:
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")
