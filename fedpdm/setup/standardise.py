"""What every client releases about its features before training, and the map of the features that follows from it."""

import numpy as np

from fedpdm.choices.words import PRIVATE_BASIS
from fedpdm.config import Config
from fedpdm.data.directions import Directions
from fedpdm.data.features import directions_in
from fedpdm.data.federation import Federation
from fedpdm.data.ragged import Ragged, real_rows, stacked
from fedpdm.data.standard import exact_standard
from fedpdm.errors import ConfigError
from fedpdm.privacy.basis_release import basis_release, cut_rows
from fedpdm.privacy.first_release import FirstRelease, Map, simulated_release
from fedpdm.privacy.standard_release import means_release, standardised_rows
from fedpdm.setup.budget import after_schema, standard_multiplier
from fedpdm.setup.cohorts import cohort_of

__all__ = ["standardised", "training_rows"]


def standardised(config: Config, federation: Federation) -> Federation:
    """Standardise the features of a federation, or project them onto a private basis, if the settings ask for it.

    `federation.standard` describes how. Under the sound mechanism it comes from a noised release
    (`fedpdm.privacy.first_release`), and training rows are cut to norm 1 after it. Test rows are not cut: the saved model is
    for the original features (`Standard.fold`), of any norm.

    Parameters
    ----------
    config, federation
        The settings and the clients' rows.

    Returns
    -------
    Federation
        The standardised rows, or the same federation.
    """
    if federation.standard is not None:
        return federation
    if config.data.basis == PRIVATE_BASIS:
        width = len(federation.feature_names)
        return _released(config, federation, basis_release(width, 1.0, min(directions_in(config.data), width)))
    if not config.data.standardise:
        return federation
    if config.privacy.mechanism == "none":
        return with_standard(federation, exact_standard(federation))
    if config.privacy.mechanism != "sound" or federation.schema is None or config.data.features != "raw":
        raise ConfigError(
            'data.standardise=true with privacy needs privacy.mechanism="sound", a table with a schema and '
            'data.features="raw", because the release needs features in [0, 1]: set data.standardise=false.'
        )
    return _released(config, federation, means_release(federation.feature_names, config.data.standard_shrink))


def _released(config: Config, federation: Federation, release: FirstRelease) -> Federation:
    """Release, and map the rows; without a mechanism the release has no noise."""
    private, cost = config.privacy.mechanism == "sound", federation.schema.cost if federation.schema else None
    z = standard_multiplier(after_schema(config, cost)) if private else 0.0
    clients = [federation.features[i, :size] for i, size in enumerate(federation.sizes)]
    counts, slots = federation.weights, federation.slots.astype(float)
    weights = None if counts is None else [counts[i, :size].astype(float) for i, size in enumerate(federation.sizes)]
    honest = [cohort_of(config, federation.clients).honest] * federation.clients if _shares_noise(config) else None
    moments = simulated_release(release, clients, slots, z, config.seed, weights, honest)
    return with_standard(federation, release.map_of(moments), cut=private)


def _shares_noise(config: Config) -> bool:
    """Whether members of a cohort share the noise of a private basis: only the sum is seen, and the budget is for it."""
    p = config.privacy
    sums = p.trust == "cohorts" and config.cohorts.budget == "sum" and p.clients_per_unit == 1
    return sums and config.data.basis == PRIVATE_BASIS


def training_rows(found: Map, rows: np.ndarray) -> np.ndarray:
    """Map rows for a private training, and cut each one by itself to norm 1.

    Parameters
    ----------
    found : Standard or Directions
        Any map.
    rows : ndarray
        [rows, features].

    Returns
    -------
    ndarray
        The rows as training sees them.
    """
    return cut_rows(found.apply(rows)) if isinstance(found, Directions) else standardised_rows(found, rows)


def with_standard(federation: Federation, standard: Map, cut: bool = False) -> Federation:
    """Map the rows, and with `cut` shorten training rows to norm 1; padding stays zero."""
    rows = real_rows(federation.features, federation.sizes)
    rows = training_rows(standard, rows) if cut else standard.apply(rows)
    places = np.split(np.arange(len(rows)), np.cumsum(federation.sizes)[:-1])
    ragged = isinstance(federation.features, Ragged)
    features = Ragged(rows, federation.sizes) if ragged else stacked(places, rows, ragged)
    test = standard.apply_in_use(federation.test_features)
    mapped = federation._replace(features=features, test_features=test, standard=standard)
    if isinstance(standard, Directions):
        names = tuple(f"direction {place}" for place in range(standard.directions.shape[1]))
        before = {"original_names": federation.feature_names, "original_test": federation.test_features}
        mapped = mapped._replace(feature_names=names, **before)
    if federation.validation is None or isinstance(standard, Directions):  # saved models are tested before the basis
        return mapped
    return mapped._replace(validation=(standard.apply_in_use(federation.validation[0]), federation.validation[1]))
