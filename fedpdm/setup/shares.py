"""How much each client counts in the objective."""

import numpy as np

from fedpdm.config import Config
from fedpdm.data.federation import Federation
from fedpdm.errors import ConfigError

__all__ = ["shares_of"]


def shares_of(config: Config, federation: Federation) -> np.ndarray | None:
    """Every client's share p_i of the objective, which add up to 1; None: 1/N each."""
    if config.problem.weights == "clients":
        return None
    if config.privacy.trust == "cohorts":
        raise ConfigError(
            'problem.weights="rows" does not go with privacy.trust="cohorts", whose sums count clients alike: use "clients".'
        )
    sizes = federation.slots.astype(np.float64)
    return (sizes / sizes.sum()).astype(np.float32)
