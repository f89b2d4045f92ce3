"""Intervals over persons, where test rows are not independent because several are about one person."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedpdm.metrics.intervals import Z

__all__ = ["over_persons"]

MOST_GROUPS = 50
OPEN = ("log_loss",)  # figures that have no upper limit of 1


def over_persons(found: dict[str, Any], evaluate: Callable[[np.ndarray], dict[str, Any]], units: np.ndarray) -> dict[str, Any]:
    """The figures with intervals that hold for persons: at least as wide as those over rows.

    Persons are dealt to up to 50 groups, and every figure is computed without each group in turn; the jackknife's standard
    error is $\\sqrt{\\frac{G-1}{G}\\sum_g (\\theta_g - \\bar\\theta)^2}$. It holds what rows of one person share. The points
    of calibration curves keep their intervals over rows.

    Parameters
    ----------
    found : dict
        Of all rows, as `fedpdm.metrics.evaluate` gives it.
    evaluate : callable
        The same of some rows: from [rows] bool.
    units : ndarray
        [rows] equal numbers for rows of one person.

    Returns
    -------
    dict
        The figures.
    """
    persons, place = np.unique(units, return_inverse=True)
    groups = min(MOST_GROUPS, len(persons))
    if groups < 2 or len(persons) == len(units):
        return found
    group = np.random.default_rng(0).permutation(len(persons)) % groups
    without = [evaluate(group[place] != left_out) for left_out in range(groups)]
    return _widened(found, without)


def _widened(found: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    result = dict(found)
    for key, entry in found.items():
        if isinstance(entry, dict) and "interval" in entry:
            result[key] = _figure(entry, [other.get(key, {}).get("value") for other in others], key not in OPEN)
        elif key == "classes":
            result[key] = [_widened(own, [other[key][k] for other in others]) for k, own in enumerate(entry)]
    return result


def _figure(entry: dict[str, Any], values: list[float | None], closed: bool) -> dict[str, Any]:
    known = np.array([value for value in values if value is not None])
    value, interval = entry["value"], entry["interval"]
    if value is None or interval is None or len(known) < 2:
        return entry
    reach = Z * float(np.sqrt((len(known) - 1) / len(known) * np.sum((known - known.mean()) ** 2)))
    low, high = min(interval[0], max(value - reach, 0.0)), max(interval[1], value + reach)
    return entry | {"interval": [float(f"{low:.6g}"), float(f"{min(high, 1.0) if closed else high:.6g}")]}
