"""Statistics of a few seeds: a mean with its interval, and a verdict."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

__all__ = ["Interval", "Verdict", "t_interval", "verdict", "half_width", "trend"]

Verdict = Literal["holds", "does not hold", "no difference", "undecided"]


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
    half = half_width(float(np.std(values, ddof=1)), len(values), confidence)
    return Interval(mean, mean - half, mean + half)


def half_width(spread: float, count: int, confidence: float) -> float:
    """Compute half the width of Student's t interval.

    Parameters
    ----------
    spread : float
        Standard deviation of the values.
    count : int
        How many values there are, at least 2.
    confidence : float
        Confidence of the interval.

    Returns
    -------
    float
        The distance from the mean to each limit.

    Examples
    --------
    >>> round(half_width(1.0, 3, 0.95), 3)
    2.484
    """
    return float(stdtrit(count - 1, (1 + confidence) / 2)) * spread / math.sqrt(count)


def verdict(interval: Interval, margin: float | None = None) -> Verdict:
    """Decide whether an effect is above zero. It is decided only if the whole interval is on one side, or close to zero.

    Parameters
    ----------
    interval : Interval
        Interval of the effect.
    margin : float, optional
        An interval that reaches zero and lies within this distance of it is no difference; None: there is no such verdict.

    Returns
    -------
    str
        "holds", "does not hold", "no difference" or "undecided".

    Examples
    --------
    >>> verdict(Interval(0.2, 0.1, 0.3)), verdict(Interval(0.2, -0.1, 0.5)), verdict(Interval(-0.2, -0.3, -0.1))
    ('holds', 'undecided', 'does not hold')
    >>> verdict(Interval(0.001, -0.001, 0.003), margin=0.005)
    'no difference'
    """
    if interval.low > 0:
        return "holds"
    if interval.high < 0:
        return "does not hold"
    within = margin is not None and -margin <= interval.low and interval.high <= margin
    return "no difference" if within else "undecided"


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
