"""Each client's share of the objective."""

import numpy as np

from fedpdm.config import Config
from fedpdm.privacy.first_release import SAMPLING
from fedpdm.privacy.plan import Plan

__all__ = ["shares_of", "precisions"]


def shares_of(config: Config, slots: np.ndarray, coordinates: int, plan: Plan | None = None) -> np.ndarray | None:
    """Return every client's share p_i of the objective; they add up to 1.

    Members of a cohort are weighed by rows in its sum, whose noise belongs to all of them, so cohorts are weighed by rows too.

    Parameters
    ----------
    config : Config
        The settings.
    slots : ndarray
        Every client's public number of rows, or persons.
    coordinates : int
        Of the model.
    plan : Plan, optional
        The plan of the sound mechanism. With it, shares follow the precision of a client's messages (`precisions`), else its
        rows.

    Returns
    -------
    ndarray or None
        The shares; None: 1/N each.
    """
    if config.problem.weights == "clients":
        return None
    sizes = slots.astype(np.float64)
    if plan is not None and plan.shared is None:
        sizes = precisions(sizes, coordinates, plan.training_mu())
    return (sizes / sizes.sum()).astype(np.float32)


def precisions(sizes: np.ndarray, coordinates: int, mu: float) -> np.ndarray:
    r"""Return n^2/(n/4 + d/mu^2): the inverse variance of a client's mean gradient over all of training, up to a factor.

    Rows of norm C at most have a mean with variance up to $C^2/n$, which counts with the factor `SAMPLING`, 1/4. The noise of
    R participations with multiplier z, averaged over them, has $d z^2 C^2/(R n^2) = d C^2/(\mu^2 n^2)$. Weights in proportion
    to the inverse of the sum have the smallest variance of all, so a client of any size can only lower it. With many rows
    they are those of central training, with few rows they fall like the square (docs/defaults.md).

    Parameters
    ----------
    sizes : ndarray
        n, the rows of every client.
    coordinates : int
        d, the coordinates of the model.
    mu : float
        $\mu$ of all participations of a client.

    Returns
    -------
    ndarray
        The precisions.

    Examples
    --------
    >>> precisions(np.array([20.0, 2000.0, 200000.0]), 100, 0.5).round(1).tolist()
    [1.0, 4444.4, 793650.8]
    """
    return sizes**2 / (SAMPLING * sizes + coordinates / mu**2)
