"""Measure effects on the accuracy: one number per seed, positive on the claimed side.

Differences are paired: the same seed has the same initial point, participants and batches in every curve.
"""

from collections.abc import Sequence

import numpy as np

from fedpdm.studies.paper.effects.table import Effect, MissingCellError, Table, accuracy_of, curves_of, points_of
from fedpdm.studies.statistics import trend

__all__ = [
    "BASELINES",
    "over_curves",
    "over_points",
    "difference",
    "more_sensitive",
    "top_k_gap",
    "rises",
    "noise_costs",
    "more_robust",
    "element_wise",
]

BASELINES = ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn")


def _slopes(columns: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([trend(row) for row in np.stack(columns, axis=1)])


def _slope_over_points(table: Table, panel: str, curve: str) -> np.ndarray:
    return _slopes([accuracy_of(table, panel, curve, value) for value in points_of(table, panel, curve)])


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
        labels = [label for label in curves_of(panel) if (panel, label, None) in table]
        if len(labels) < 2:
            raise MissingCellError(panel)
        return list(sign * _slopes([accuracy_of(table, panel, label) for label in labels]))

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
    return lambda table: list(accuracy_of(table, panel, better) - accuracy_of(table, panel, worse))


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
    ratios = [value for value in points_of(table, panel, "rand-k") if value < 1]
    gaps = [accuracy_of(table, panel, "top-k", r) - accuracy_of(table, panel, "rand-k", r) for r in ratios]
    return np.mean(gaps, axis=0)


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
        labels = [label for label in curves_of(panel) if (panel, label, None) in table]
        if not labels:
            raise MissingCellError(panel)
        return list(np.mean([[rise(r.get("accuracy", [0.0])) for r in table[panel, label, None]] for label in labels], axis=0))

    return effect


def _cost_of_noise(table: Table, without: str, with_noise: str, label: str) -> np.ndarray:
    return accuracy_of(table, without, label) - accuracy_of(table, with_noise, label)


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
        labels = [label for label in curves_of(without) if (without, label, None) in table]
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
    return lambda table: list(accuracy_of(table, base, "top-k", 0.1) - accuracy_of(table, variant, "plain mean"))
