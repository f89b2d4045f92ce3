"""Measure the claimed effects: pure functions from results to one number per seed, positive on the claimed side.

Differences are paired: the same seed has the same initial point, participants and batches in every curve. The accuracy of a run
is that of its last model; a run that diverged counts as accuracy 0.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpdm.studies.paper.figures import Key, panels
from fedpdm.studies.statistics import trend

__all__ = [
    "Table",
    "Effect",
    "MissingCellError",
    "BASELINES",
    "TOLERANCE",
    "ROUNDING",
    "FIT",
    "over_curves",
    "over_points",
    "difference",
    "more_sensitive",
    "top_k_gap",
    "cost_falls",
    "cost_ratio",
    "half_of_two_vectors",
    "rises",
    "noise_costs",
    "more_robust",
    "sparser",
    "element_wise",
    "exact",
    "fit_quality",
    "falls_like_one_over_t",
]

# The results of every point, one per seed
Table = Mapping[Key, Sequence[Mapping[str, Any]]]
Effect = Callable[[Table], list[float]]

BASELINES = ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn")
TOLERANCE = 0.01  # how far a cost may be off a claimed ratio
ROUNDING = 1e-6  # how far float32 models may differ that are equal but for the order of rounding
FIT = 0.9  # the least R^2 of a fit that counts as "falls like"


class MissingCellError(Exception):
    """A claim needs a point that was not run."""


def _results(table: Table, panel: str, curve: str, value: float | None = None) -> Sequence[Mapping[str, Any]]:
    if (panel, curve, value) not in table:
        raise MissingCellError(f"{panel}, {curve}, {value}")
    return table[panel, curve, value]


def _accuracy(table: Table, panel: str, curve: str, value: float | None = None) -> np.ndarray:
    return np.array([result.get("last", 0.0) for result in _results(table, panel, curve, value)])


def _uplink(table: Table, panel: str, curve: str, value: float | None = None) -> np.ndarray:
    results = _results(table, panel, curve, value)
    return np.array([result["uplink_bytes"][-1] if "uplink_bytes" in result else np.nan for result in results])


def _curves(panel: str) -> list[str]:
    return next([curve.label for curve in p.curves] for p in panels() if p.name == panel)


def _points(table: Table, panel: str, curve: str) -> list[float]:
    """The x values of a curve that were run."""
    points = sorted(value for name, label, value in table if (name, label) == (panel, curve) and value is not None)
    if len(points) < 2:
        raise MissingCellError(f"{panel}, {curve}")
    return points


def _slopes(columns: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([trend(row) for row in np.stack(columns, axis=1)])


def _slope_over_points(table: Table, panel: str, curve: str) -> np.ndarray:
    return _slopes([_accuracy(table, panel, curve, value) for value in _points(table, panel, curve)])


def over_curves(panel: str, sign: float) -> Effect:
    """Trend of the accuracy over the curves of a panel, in their order; at least two of them must have run.

    Parameters
    ----------
    panel : str
        Name of a panel, such as "fig4b".
    sign : float
        1 if the accuracy should rise, -1 if it should fall.

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """

    def effect(table: Table) -> list[float]:
        labels = [label for label in _curves(panel) if (panel, label, None) in table]
        if len(labels) < 2:
            raise MissingCellError(panel)
        return list(sign * _slopes([_accuracy(table, panel, label) for label in labels]))

    return effect


def over_points(panel: str, curve: str) -> Effect:
    """Trend of the accuracy over the points of a curve.

    Parameters
    ----------
    panel : str
        Name of a panel, such as "fig4b".
    curve : str
        Label of the curve.

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """
    return lambda table: list(_slope_over_points(table, panel, curve))


def difference(panel: str, better: str, worse: str) -> Effect:
    """Accuracy of one curve minus that of another.

    Parameters
    ----------
    panel : str
        Name of a panel, such as "fig4b".
    better, worse : str
        Labels of the curves.

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """
    return lambda table: list(_accuracy(table, panel, better) - _accuracy(table, panel, worse))


def more_sensitive(figure: str) -> Effect:
    """Trend on MNIST minus the trend on Adult, both with top-k.

    Parameters
    ----------
    figure : str
        Name of a figure with panels a (Adult) and b (MNIST).

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """
    return lambda table: list(
        _slope_over_points(table, f"{figure}b", "top-k") - _slope_over_points(table, f"{figure}a", "top-k")
    )


def top_k_gap(table: Table, panel: str) -> np.ndarray:
    """Accuracy of top-k minus that of rand-k, averaged over the ratios below 1.

    Parameters
    ----------
    table : Table
        Results of every point, one per seed.
    panel : str
        Name of a panel, such as "fig4b".

    Returns
    -------
    ndarray
        One number per seed.
    """
    ratios = [value for value in _points(table, panel, "rand-k") if value < 1]
    gaps = [_accuracy(table, panel, "top-k", r) - _accuracy(table, panel, "rand-k", r) for r in ratios]
    return np.mean(gaps, axis=0)


def cost_falls(panel: str) -> Effect:
    """Smallest step of the uplink cost from one ratio to the next larger one, relative to the dense cost.

    Parameters
    ----------
    panel : str
        Name of a panel, such as "fig4b".

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """

    def effect(table: Table) -> list[float]:
        steps = []
        for curve in ("top-k", "rand-k"):
            costs = [_uplink(table, panel, curve, value) for value in _points(table, panel, curve)]
            steps += [(more - less) / costs[-1] for less, more in itertools.pairwise(costs)]
        return list(np.min(steps, axis=0))

    return effect


def cost_ratio(panel: str) -> Effect:
    """Tolerance minus the largest deviation of the uplink cost from half of alpha_U of sending two vectors.

    Parameters
    ----------
    panel : str
        Name of a panel, such as "fig4b".

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """

    def effect(table: Table) -> list[float]:
        two_vectors = 2 * _uplink(table, panel, "top-k", 1.0)
        ratios = [value for value in _points(table, panel, "top-k") if value < 1]
        excess = [_uplink(table, panel, "top-k", r) / two_vectors / (0.5 * r) - 1 for r in ratios]
        return list(TOLERANCE - np.max(np.abs(excess), axis=0))

    return effect


def half_of_two_vectors(panel: str) -> Effect:
    """Tolerance minus the deviation of FedPDM's uplink cost from half of SCAFFOLD's.

    Parameters
    ----------
    panel : str
        Name of a panel, such as "fig4b".

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """

    def effect(table: Table) -> list[float]:
        share = _uplink(table, panel, "FedPDM") / _uplink(table, panel, "SCAFFOLD")
        return list(TOLERANCE - np.abs(share / 0.5 - 1))

    return effect


def rises(panel: str) -> Effect:
    """Mean of the last quarter of the accuracies minus that of the first quarter, averaged over the curves.

    Parameters
    ----------
    panel : str
        Name of a panel, such as "fig4b".

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """

    def rise(curve: Sequence[float]) -> float:
        quarter = max(1, len(curve) // 4)
        return float(np.mean(curve[-quarter:]) - np.mean(curve[:quarter]))

    def effect(table: Table) -> list[float]:
        labels = [label for label in _curves(panel) if (panel, label, None) in table]
        if not labels:
            raise MissingCellError(panel)
        return list(np.mean([[rise(r.get("accuracy", [0.0])) for r in table[panel, label, None]] for label in labels], axis=0))

    return effect


def _cost_of_noise(table: Table, without: str, with_noise: str, label: str) -> np.ndarray:
    return _accuracy(table, without, label) - _accuracy(table, with_noise, label)


def noise_costs(without: str, with_noise: str) -> Effect:
    """Accuracy that noise costs, averaged over the curves.

    Parameters
    ----------
    without, with_noise : str
        Names of the panels without and with noise.

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """

    def effect(table: Table) -> list[float]:
        labels = [label for label in _curves(without) if (without, label, None) in table]
        if not labels:
            raise MissingCellError(without)
        return list(np.mean([_cost_of_noise(table, without, with_noise, label) for label in labels], axis=0))

    return effect


def more_robust(without: str, with_noise: str) -> Effect:
    """Accuracy that noise costs the baselines on average, minus what it costs FedPDM.

    Parameters
    ----------
    without, with_noise : str
        Names of the panels without and with noise.

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """

    def effect(table: Table) -> list[float]:
        others = [_cost_of_noise(table, without, with_noise, label) for label in BASELINES]
        return list(np.mean(others, axis=0) - _cost_of_noise(table, without, with_noise, "FedPDM"))

    return effect


def sparser(panel: str) -> Effect:
    """Share of non-zeros without a penalty minus that with gamma = 0.5.

    Parameters
    ----------
    panel : str
        Name of a panel, such as "fig4b".

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """

    def nonzeros(table: Table, label: str) -> np.ndarray:
        return np.array([result.get("nonzero_fraction", 1.0) for result in _results(table, panel, label)])

    return lambda table: list(nonzeros(table, "gamma 0") - nonzeros(table, "gamma 0.5"))


def element_wise(base: str, variant: str) -> Effect:
    """Accuracy with the element-wise mean minus that with a plain mean, at a ratio of 0.1.

    Parameters
    ----------
    base : str
        Name of the panel with the element-wise mean.
    variant : str
        Name of the variant.

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """
    return lambda table: list(_accuracy(table, base, "top-k", 0.1) - _accuracy(table, variant, "plain mean"))


def exact(variant: str) -> Effect:
    """Rounding tolerance minus the difference between Algorithm 2 with ratios of 1 and Algorithm 1.

    Parameters
    ----------
    variant : str
        Name of the variant.

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """
    return lambda table: [ROUNDING - r.get("difference", math.inf) for r in _results(table, variant, "ratios of 1")]


def fit_quality(rounds: Sequence[int], measure: Sequence[float]) -> float:
    """Compute R^2 of the fit a/T + c to the running mean of a measure.

    Parameters
    ----------
    rounds : sequence of int
        The rounds T.
    measure : sequence of float
        The measure in these rounds.

    Returns
    -------
    float
        R^2, or -1 if the running mean does not fall (a <= 0).

    Examples
    --------
    >>> fit_quality([1, 2, 4], [4.0, 0.0, 0.0]) > 0.9, fit_quality([1, 2, 4], [1.0, 2.0, 3.0])
    (True, -1.0)
    """
    running = np.cumsum(measure) / np.arange(1, len(measure) + 1)
    columns = np.stack([1 / np.asarray(rounds, float), np.ones(len(rounds))], axis=1)
    solution = np.linalg.lstsq(columns, running, rcond=None)[0]
    left, all_of_it = np.sum((running - columns @ solution) ** 2), np.sum((running - running.mean()) ** 2)
    return float(1 - left / all_of_it) if solution[0] > 0 and all_of_it > 0 else -1.0


def falls_like_one_over_t(variant: str) -> Effect:
    """`fit_quality` of the stationarity measure minus the least quality that counts.

    Parameters
    ----------
    variant : str
        Name of the variant.

    Returns
    -------
    Effect
        Function from results to one number per seed, positive on the claimed side.
    """

    def effect(table: Table) -> list[float]:
        results = _results(table, variant, "stationarity")
        return [fit_quality(r["round"], r["stationarity"]) - FIT if "round" in r else -1.0 for r in results]

    return effect
