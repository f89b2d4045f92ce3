"""The results that effects are computed from, and how to read them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedpdm.studies.paper.figures import Key, panels

__all__ = [
    "Table",
    "Effect",
    "MissingCellError",
    "FirstSeeds",
    "LastQuarter",
    "results_of",
    "accuracy_of",
    "uplink_of",
    "curves_of",
    "points_of",
]

# The results of every point, one per seed
Table = Mapping[Key, Sequence[Mapping[str, Any]]]
Effect = Callable[[Table], list[float]]


class FirstSeeds(Mapping[Key, Sequence[Mapping[str, Any]]]):
    """A view of a table that shows the first seeds of every point, and remembers which points were read.

    Points can have different numbers of seeds; an effect needs the same seeds of all its points.
    """

    def __init__(self, table: Table, seeds: int):
        self._table, self._seeds = table, seeds
        self.read: set[Key] = set()

    def __getitem__(self, key: Key) -> Sequence[Mapping[str, Any]]:
        results = self._table[key][: self._seeds]
        self.read.add(key)
        return results

    def __iter__(self) -> Iterator[Key]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


class LastQuarter(FirstSeeds):
    """The same view, with the mean accuracy of the last quarter of the measured rounds in place of the last accuracy.

    A run that kept no curve raises `MissingCellError`.
    """

    def __getitem__(self, key: Key) -> Sequence[Mapping[str, Any]]:
        return [_with_mean(result, key) for result in super().__getitem__(key)]


def _with_mean(result: Mapping[str, Any], key: Key) -> Mapping[str, Any]:
    if "last" not in result:  # a run that diverged, or one that measures something else
        return result
    curve = result.get("accuracy")
    if not curve:
        raise MissingCellError(f"{key} has no curve")
    return {**result, "last": float(np.mean(curve[-max(1, len(curve) // 4) :]))}


class MissingCellError(Exception):
    """A claim needs a point that was not run."""


def results_of(table: Table, panel: str, curve: str, value: float | None = None) -> Sequence[Mapping[str, Any]]:
    """Return the results of a point, or raise `MissingCellError`.

    Parameters
    ----------
    table : Table
        Results of every point, one per seed.
    panel, curve : str
        Name of the panel and label of the curve.
    value : float, optional
        The point of the x axis, where it is a setting.

    Returns
    -------
    list of results
        One result per seed.
    """
    if (panel, curve, value) not in table:
        raise MissingCellError(f"{panel}, {curve}, {value}")
    return table[panel, curve, value]


def accuracy_of(table: Table, panel: str, curve: str, value: float | None = None) -> np.ndarray:
    """Return the accuracies of a point's last models; a run that diverged counts as 0.

    Parameters
    ----------
    table : Table
        Results of every point, one per seed.
    panel, curve : str
        Name of the panel and label of the curve.
    value : float, optional
        The point of the x axis, where it is a setting.

    Returns
    -------
    ndarray
        One number per seed.
    """
    return np.array([result.get("last", 0.0) for result in results_of(table, panel, curve, value)])


def uplink_of(table: Table, panel: str, curve: str, value: float | None = None) -> np.ndarray:
    """Return the bytes that clients sent at a point; not a number where a run diverged.

    Parameters
    ----------
    table : Table
        Results of every point, one per seed.
    panel, curve : str
        Name of the panel and label of the curve.
    value : float, optional
        The point of the x axis, where it is a setting.

    Returns
    -------
    ndarray
        One number per seed.
    """
    results = results_of(table, panel, curve, value)
    return np.array([result["uplink_bytes"][-1] if "uplink_bytes" in result else np.nan for result in results])


def curves_of(panel: str) -> list[str]:
    """List the curves of a panel.

    Parameters
    ----------
    panel : str
        Name of the panel.

    Returns
    -------
    list of str
        Their labels.
    """
    return next([curve.label for curve in p.curves] for p in panels() if p.name == panel)


def points_of(table: Table, panel: str, curve: str) -> list[float]:
    """List the x values of a curve that were run, or raise `MissingCellError` if there are fewer than two.

    Parameters
    ----------
    table : Table
        Results of every point, one per seed.
    panel, curve : str
        Name of the panel and label of the curve.

    Returns
    -------
    list of float
        The values in their order.
    """
    points = sorted(value for name, label, value in table if (name, label) == (panel, curve) and value is not None)
    if len(points) < 2:
        raise MissingCellError(f"{panel}, {curve}")
    return points
