r"""How many directions of a public basis a run uses (`data.basis_size = "auto"`): the rule of docs/features.md.

Rows behind a basis have norm 1. Of k directions, direction j holds the share $e_j = \lambda_j/(\lambda_1 + \dots + \lambda_k)$
of a row's square, with $\lambda$ the spectrum of the public rows after half whitening. A class with 1/m of the rows pulls its
weight along direction j by about $\sqrt{p_j e_j}/m$, where $p_j$ is the share of the variance that lies between classes. The
noise of all rounds together moves that weight by about 1/A, with $A = \mu n$ for one client (`strength`). A direction pays if
its pull is the stronger one, $p_j e_j \ge (m/A)^2$ up to a factor. The means of m classes span m - 1 directions, so $p_j$ grows
with m, and later directions tell less about classes; with $p_j \propto m\, e_j$ the last direction that pays has

$$e_k \ge c\,\sqrt m/A.$$
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpdm.choices.words import PRIVATE_BASIS
from fedpdm.config import Config
from fedpdm.data.basis import MOST, spectrum
from fedpdm.data.features import basis_of, has_public_basis, map_name, options_of, with_basis_chosen, without_bias
from fedpdm.data.federation import Federation
from fedpdm.data.prepare import build_federation
from fedpdm.data.schema import Schema
from fedpdm.setup.budget import after_schema
from fedpdm.setup.defaults import Sizes, in_cohorts, signal

__all__ = ["PRIVATE_DIRECTIONS", "directions", "federate", "strength", "with_directions"]

FACTOR, FEWEST = 0.5, 10  # fitted on made-up images and training images of four sets: benchmarks/fit_directions.py
PRIVATE_DIRECTIONS = 200  # of a private basis, whose spectrum nobody knows before


def directions(found: float, classes: int, variances: np.ndarray) -> int:
    """Return how many of the first directions pay for their noise.

    Parameters
    ----------
    found : float
        A, from `strength`; infinite without privacy.
    classes : int
        Number of classes; a number to learn counts as two.
    variances : ndarray
        The spectrum of the basis, from `fedpdm.data.basis.spectrum`.

    Returns
    -------
    int
        At least ten, if there are as many.

    Examples
    --------
    >>> falling = np.arange(1, 401) ** -0.7
    >>> [directions(found, 10, falling) for found in (30.0, 100.0, 1000.0, np.inf)]
    [10, 27, 226, 400]
    """
    shares = variances / np.cumsum(variances)
    pays = np.flatnonzero(shares >= FACTOR * max(classes, 2) ** 0.5 / found)
    return min(max(int(pays[-1]) + 1 if len(pays) else 0, FEWEST), len(variances), MOST)


def strength(config: Config, slots: np.ndarray, classes: int, schema: Schema | None = None) -> float:
    r"""Return $A = \mu/\sqrt{\sum_i w_i^2/n_i^2}$: how many times the noise of the whole run one row's gradient would be.

    It is the signal of docs/defaults.md times the number of features.

    Parameters
    ----------
    config : Config
        The settings, with the budget.
    slots : ndarray
        Every client's public number of rows, or persons.
    classes : int
        Number of classes.
    schema : Schema, optional
        Its cost is taken off the budget.

    Returns
    -------
    float
        A; infinite without the sound mechanism.
    """
    if config.privacy.mechanism != "sound":
        return np.inf
    left = after_schema(config, schema.cost if schema else None).privacy
    assert left.epsilon is not None
    sizes = in_cohorts(config, Sizes(slots.astype(float), MOST + 1, classes))
    return sizes.features * signal(sizes, left.epsilon, left.delta, left.relation, left.clients_per_unit)


def _rule(config: Config, slots: np.ndarray, classes: int, feature_names: Sequence[str], schema: Schema | None) -> int:
    name = map_name(config.data.features, feature_names)
    options = with_basis_chosen(name, options_of(config.data)).replace(basis_size=MOST)
    basis = basis_of(name, tuple(without_bias(feature_names)), options)
    return directions(strength(config, slots, classes, schema), classes, spectrum(basis))


def with_directions(
    config: Config, slots: np.ndarray, classes: int, feature_names: Sequence[str], schema: Schema | None = None
) -> Config:
    """Replace data.basis_size="auto" by a number, if there is a basis.

    Parameters
    ----------
    config, slots, classes, schema
        As in `strength`.
    feature_names : sequence of str
        The columns before the map.

    Returns
    -------
    Config
        The settings.
    """
    data = config.data
    if data.basis_size != "auto":
        return config
    if data.basis == PRIVATE_BASIS:
        size = PRIVATE_DIRECTIONS
    elif has_public_basis(data, feature_names):
        size = _rule(config, slots, classes, feature_names, schema)
    else:
        return config
    return config.model_copy(update={"data": data.model_copy(update={"basis_size": size})})


def federate(config: Config, data_dir: Path | None = None, progress: bool = True) -> Federation:
    """Load, map and assign the clients' examples, with as many directions of a public basis as the rule gives.

    Parameters
    ----------
    config, data_dir, progress
        As in `fedpdm.data.prepare.build_federation`.

    Returns
    -------
    Federation
        The clients' examples; `fedpdm.setup.resolve.resolve` writes the number of directions into the settings.
    """
    return build_federation(config, data_dir, progress, _rule)
