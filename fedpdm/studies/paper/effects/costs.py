"""Measure costs, sparsity and properties of the algorithm: one number per seed, positive on the claimed side."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from fedpdm.studies.paper.effects.table import Effect, Table, points_of, results_of, uplink_of

__all__ = [
    "TOLERANCE",
    "ROUNDING",
    "FIT",
    "cost_falls",
    "cost_ratio",
    "half_of_two_vectors",
    "sparser",
    "exact",
    "fit_quality",
    "falls_like_one_over_t",
]

TOLERANCE = 0.01  # how far a cost may be off a claimed ratio
ROUNDING = 1e-6  # how far float32 models may differ that are equal but for the order of rounding
FIT = 0.9  # the least R^2 of a fit that counts as "falls like"


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
            costs = [uplink_of(table, panel, curve, value) for value in points_of(table, panel, curve)]
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
        two_vectors = 2 * uplink_of(table, panel, "top-k", 1.0)
        ratios = [value for value in points_of(table, panel, "top-k") if value < 1]
        excess = [uplink_of(table, panel, "top-k", r) / two_vectors / (0.5 * r) - 1 for r in ratios]
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
        share = uplink_of(table, panel, "FedPDM") / uplink_of(table, panel, "SCAFFOLD")
        return list(TOLERANCE - np.abs(share / 0.5 - 1))

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
        return np.array([result.get("nonzero_fraction", 1.0) for result in results_of(table, panel, label)])

    return lambda table: list(nonzeros(table, "gamma 0") - nonzeros(table, "gamma 0.5"))


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
    return lambda table: [ROUNDING - r.get("difference", math.inf) for r in results_of(table, variant, "ratios of 1")]


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
        results = results_of(table, variant, "stationarity")
        return [fit_quality(r["round"], r["stationarity"]) - FIT if "round" in r else -1.0 for r in results]

    return effect
