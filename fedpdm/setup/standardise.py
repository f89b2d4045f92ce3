"""Centre and scale the features of a federation before training, with or without privacy."""

import numpy as np

from fedpdm.config import Config
from fedpdm.data.federation import Federation
from fedpdm.data.ragged import Ragged, real_rows, stacked
from fedpdm.data.standard import Standard, exact_standard
from fedpdm.errors import ConfigError
from fedpdm.privacy.standard_release import release_moments, standard_from, standardised_rows
from fedpdm.setup.budget import after_schema, standard_multiplier

__all__ = ["standardised"]


def standardised(config: Config, federation: Federation) -> Federation:
    """Standardise the features of a federation, if the settings ask for it; `federation.standard` describes how.

    Under the sound mechanism, means and deviations are a noised release (`fedpdm.privacy.standard_release`), and training rows
    are cut to norm 1 after it. Test rows are not cut: the saved model is for the original features (`Standard.fold`), of any
    norm.

    Parameters
    ----------
    config, federation
        The settings and the clients' rows.

    Returns
    -------
    Federation
        The standardised rows, or the same federation.
    """
    if not config.data.standardise or federation.standard is not None:
        return federation
    if config.privacy.mechanism == "none":
        return with_standard(federation, exact_standard(federation))
    if config.privacy.mechanism != "sound" or federation.schema is None or config.data.features != "raw":
        raise ConfigError(
            'data.standardise=true with privacy needs privacy.mechanism="sound", a table with a schema and '
            'data.features="raw", because the release needs features in [0, 1]: set data.standardise=false.'
        )
    clients = [federation.features[i, :size] for i, size in enumerate(federation.sizes)]
    z = standard_multiplier(after_schema(config, federation.schema.cost))
    counts = federation.weights
    weights = None if counts is None else [counts[i, :size].astype(float) for i, size in enumerate(federation.sizes)]
    names, slots = federation.feature_names, federation.slots.astype(float)
    moments = release_moments(clients, slots, names, z, config.seed, weights)
    return with_standard(federation, standard_from(moments, federation.feature_names), cut=True)


def with_standard(federation: Federation, standard: Standard, cut: bool = False) -> Federation:
    """Map the rows, and with `cut` shorten training rows to norm 1; padding stays zero."""
    rows = real_rows(federation.features, federation.sizes)
    rows = standardised_rows(standard, rows) if cut else standard.apply(rows)
    places = np.split(np.arange(len(rows)), np.cumsum(federation.sizes)[:-1])
    ragged = isinstance(federation.features, Ragged)
    features = Ragged(rows, federation.sizes) if ragged else stacked(places, rows, ragged)
    mapped = federation._replace(features=features, test_features=standard.apply(federation.test_features), standard=standard)
    if federation.validation is None:
        return mapped
    return mapped._replace(validation=(standard.apply(federation.validation[0]), federation.validation[1]))
