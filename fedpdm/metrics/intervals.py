"""Intervals over test rows. All are at 95 % and in closed form, so they do not depend on a seed.

| figure | method |
|---|---|
| shares (accuracy, recall, precision, majority rate) | Wilson's score interval |
| balanced accuracy | the recalls' Wilson limits, combined (method of variance estimates recovery) |
| AUC | DeLong's variance; if that is 0, Wilson's for as many rows as the rarer side has |
| means over rows (log loss, Brier score) | normal, with the standard error of the mean |

They treat rows as independent (`fedpdm.metrics.persons` does not) and the model as fixed: they do not include the variation
between training runs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Estimate", "auc", "mean", "mean_auc", "mean_share", "share"]

Z = 1.959963984540054  # of 95 %, both sides


class Estimate(NamedTuple):
    """A figure and its 95 % interval; None if the rows do not define it."""

    value: float | None
    low: float | None = None
    high: float | None = None


def share(hits: float, rows: float) -> Estimate:
    """Estimate a share of rows, with Wilson's interval.

    Parameters
    ----------
    hits, rows : float
        The rows that count, and all rows.

    Returns
    -------
    Estimate
        The share.

    References
    ----------
    Wilson: "Probable inference, the law of succession, and statistical inference", JASA 1927.

    Examples
    --------
    >>> share(9, 10)
    Estimate(value=0.9, low=0.59585, high=0.982124)
    """
    if rows <= 0:
        return Estimate(None)
    value = min(max(hits / rows, 0.0), 1.0)
    middle = (value + Z**2 / (2 * rows)) / (1 + Z**2 / rows)
    reach = Z / (1 + Z**2 / rows) * math.sqrt(value * (1 - value) / rows + Z**2 / (4 * rows**2))
    return _rounded(value, max(middle - reach, 0.0), min(middle + reach, 1.0))


def mean_share(shares: Sequence[Estimate]) -> Estimate:
    """Estimate the mean of independent shares; the squares of the distances to their limits add up.

    Parameters
    ----------
    shares : sequence of Estimate
        The shares.

    Returns
    -------
    Estimate
        Their mean.
    """
    known = [(s.value, s.low, s.high) for s in shares if s.value is not None and s.low is not None and s.high is not None]
    if len(known) < len(shares) or not known:
        return Estimate(None)
    values, lows, highs = np.array(known).T
    value, count = float(values.mean()), len(known)
    below, above = (float(np.sqrt(np.sum((values - limits) ** 2))) / count for limits in (lows, highs))
    return _rounded(value, max(value - below, 0.0), min(value + above, 1.0))


def mean(values: np.ndarray, least: float = -math.inf) -> Estimate:
    """Estimate a mean over rows.

    Parameters
    ----------
    values : ndarray
        [rows].
    least : float
        The smallest value that a row can have; the interval ends there.

    Returns
    -------
    Estimate
        The mean, with a normal interval.
    """
    value = float(values.mean())
    if len(values) < 2:
        return Estimate(_digits(value))
    error = Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return _rounded(value, max(value - error, least), value + error)


def auc(scores: np.ndarray, positive: np.ndarray) -> Estimate:
    """Estimate the chance that a positive row has a larger score than a negative one; ties count one half.

    Parameters
    ----------
    scores, positive : ndarray
        [rows] scores, and whether the row is positive.

    Returns
    -------
    Estimate
        The AUC.

    References
    ----------
    DeLong, DeLong, Clarke-Pearson: "Comparing the areas under two or more correlated receiver operating characteristic curves",
    Biometrics 1988.
    """
    found = _placements(scores, positive)
    if found is None:
        return Estimate(None)
    inside, outside = found
    variance = sum(side.var(ddof=1) / len(side) if len(side) > 1 else 0.25 for side in found)
    return _auc_estimate(float(inside.mean()), variance, min(len(inside), len(outside)))


def mean_auc(scores: np.ndarray, labels: np.ndarray) -> Estimate:
    """Estimate the mean over classes of each one's AUC against the rest.

    A row's influence on each of the AUCs is added up before it is squared, as the classes share their rows.

    Parameters
    ----------
    scores, labels : ndarray
        [rows, classes] scores, and [rows] true classes.

    Returns
    -------
    Estimate
        The mean AUC.
    """
    rows, classes = scores.shape
    influence, values, fewest = np.zeros(rows), [], rows
    for k in range(classes):
        positive = labels == k
        found = _placements(scores[:, k], positive)
        if found is None:
            return Estimate(None)
        value = float(found[0].mean())
        values.append(value)
        fewest = min(fewest, len(found[0]), len(found[1]))
        for side, own in ((positive, found[0]), (~positive, found[1])):
            influence[side] += (own - value) / math.sqrt(max(len(own) - 1, 1) * len(own)) / classes
    return _auc_estimate(float(np.mean(values)), float((influence**2).sum()), fewest)


def _placements(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return DeLong's components: for every positive row the share of negative ones below it, and the reverse."""
    inside, outside = int(positive.sum()), int((~positive).sum())
    if not inside or not outside:
        return None
    scores = np.asarray(scores, np.float64)
    ranks = _ranks(scores)
    above = (ranks[positive] - _ranks(scores[positive])) / outside
    below = 1 - (ranks[~positive] - _ranks(scores[~positive])) / inside
    return above, below


def _ranks(values: np.ndarray) -> np.ndarray:
    """Give every value its rank from 1 on; equal values share their mean rank. (SciPy's own takes a second to import.)

    >>> _ranks(np.array([5.0, 1.0, 5.0, 7.0])).tolist()
    [2.5, 1.0, 2.5, 4.0]
    """
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def _auc_estimate(value: float, variance: float, fewest: int) -> Estimate:
    if variance <= 0:
        return share(value * fewest, fewest)._replace(value=_digits(value))
    reach = Z * math.sqrt(variance)
    return _rounded(value, max(value - reach, 0.0), min(value + reach, 1.0))


def _digits(value: float) -> float:
    return float(f"{value:.9g}")


def _rounded(value: float, low: float, high: float) -> Estimate:
    return Estimate(_digits(value), float(f"{low:.6g}"), float(f"{high:.6g}"))
