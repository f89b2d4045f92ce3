"""Statistics of a few seeds: a mean with its interval, and a verdict."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

__all__ = ["Interval", "Verdict", "t_interval", "verdict", "trend"]

Verdict = Literal["holds", "does not hold", "undecided"]


class Interval(NamedTuple):
    """A mean and the limits of its confidence interval; one value alone has infinite limits."""

    mean: float
    low: float
    high: float


def t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Compute the mean of independent values with Student's t interval.

    Parameters
    ----------
    values : sequence of float
        One value per seed.
    confidence : float
        Confidence of the interval.

    Returns
    -------
    Interval
        Mean and limits; the limits of one value are infinite.

    Examples
    --------
    >>> mean, low, high = t_interval([1.0, 2.0, 3.0])
    >>> mean, round(low, 3), round(high, 3)
    (2.0, -0.484, 4.484)
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def verdict(interval: Interval) -> Verdict:
    """Decide whether an effect is above zero. It is decided only if the whole interval is on one side.

    Parameters
    ----------
    interval : Interval
        Interval of the effect.

    Returns
    -------
    str
        "holds", "does not hold" or "undecided".

    Examples
    --------
    >>> verdict(Interval(0.2, 0.1, 0.3)), verdict(Interval(0.2, -0.1, 0.5)), verdict(Interval(-0.2, -0.3, -0.1))
    ('holds', 'undecided', 'does not hold')
    """
    if interval.low > 0:
        return "holds"
    return "does not hold" if interval.high < 0 else "undecided"


def trend(values: Sequence[float]) -> float:
    """Compute the least-squares slope of values over their rank: the mean rise from one setting to the next.

    Parameters
    ----------
    values : sequence of float
        Values in the order of the settings.

    Returns
    -------
    float
        The slope.

    Examples
    --------
    >>> trend([0.1, 0.2, 0.3])
    0.1
    """
    ranks = np.arange(len(values)) - (len(values) - 1) / 2
    return round(float(ranks @ np.asarray(values) / (ranks @ ranks)), 12)
