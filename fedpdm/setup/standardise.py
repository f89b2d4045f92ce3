"""Centre and scale the features of a federation before training, with or without privacy."""

import numpy as np

from fedpdm.config import Config
from fedpdm.data.federation import Federation, mask
from fedpdm.data.standard import Standard, exact_standard

__all__ = ["standardised"]


def standardised(config: Config, federation: Federation) -> Federation:
    """The federation with its features standardised, if the settings ask for it; `federation.standard` says how.

    The model of the federation is one of standardised features; `Standard.fold` makes it one of the features as they were.
    """
    if not config.data.standardise or federation.standard is not None:
        return federation
    return with_standard(federation, exact_standard(federation))


def with_standard(federation: Federation, standard: Standard) -> Federation:
    """The same rows, mapped; padding stays zero."""
    real = mask(federation.sizes, federation.max_size)[:, :, None]
    features = np.where(real, standard.apply(federation.features), 0.0).astype(np.float32)
    return federation._replace(features=features, test_features=standard.apply(federation.test_features), standard=standard)
