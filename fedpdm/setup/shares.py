"""How much each client counts in the objective."""

import numpy as np

from fedpdm.config import Config
from fedpdm.data.federation import Federation
from fedpdm.errors import ConfigError
from fedpdm.privacy.plan import Plan

__all__ = ["shares_of", "precisions"]


def shares_of(config: Config, federation: Federation, plan: Plan | None = None) -> np.ndarray | None:
    """Every client's share p_i of the objective, which add up to 1; None: 1/N each.

    By rows n_i without privacy, and by the precision of what a client says with it: see `precisions`.
    """
    if config.problem.weights == "clients":
        return None
    if config.privacy.trust == "cohorts":
        raise ConfigError(
            'problem.weights="rows" does not go with privacy.trust="cohorts", whose sums count clients alike: use "clients".'
        )
    sizes = federation.slots.astype(np.float64)
    if plan is not None:
        sizes = precisions(sizes, federation.classes * federation.features.shape[2], plan.training_mu())
    return (sizes / sizes.sum()).astype(np.float32)


def precisions(sizes: np.ndarray, coordinates: int, mu: float) -> np.ndarray:
    r"""n^2/(n + d/mu^2): the inverse variance of a client's mean gradient over all of training, up to a factor.

    Rows of norm C at most have a mean with variance up to $C^2/n$. The noise of R participations with multiplier z, averaged
    over them, has $d z^2 C^2/(R n^2) = d C^2/(\mu^2 n^2)$. Weights in proportion to the inverse of the sum have the least
    variance of all, so a client can only lower it, whatever its size. With many rows they are those of central training,
    with few they fall like the square (docs/defaults.md).

    >>> precisions(np.array([20.0, 2000.0, 200000.0]), 100, 0.5).round(1).tolist()
    [1.0, 1666.7, 199600.8]
    """
    return sizes**2 / (sizes + coordinates / mu**2)
