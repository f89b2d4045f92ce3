"""What an example of each class counts."""

from collections.abc import Callable

import numpy as np

from fedpdm.config import Config
from fedpdm.data.federation import Federation, mask
from fedpdm.errors import ConfigError
from fedpdm.problem.losses import Loss, with_class_weights

__all__ = ["balanced_weights", "weighted_loss"]


def weighted_loss(config: Config, make_loss: Callable[..., Loss], federation: Federation | None = None) -> Callable[..., Loss]:
    """The loss of the settings with the weights that they name; without a federation they must be numbers."""
    weights = config.problem.class_weights
    if weights is None:
        return make_loss
    if weights == "balanced":
        if federation is None:
            raise ConfigError(
                'problem.class_weights="balanced" counts the classes of all rows, which nobody sees in a deployment: give '
                "weights, for instance problem.class_weights=[0.1, 1.0]"
            )
        weights = balanced_weights(federation)
    if federation and len(weights) != federation.classes:
        raise ConfigError(
            f"problem.class_weights has {len(weights)} weights, but there are {federation.classes} classes: give one for each"
        )
    return lambda **options: with_class_weights(make_loss(**options), weights)


def balanced_weights(federation: Federation) -> list[float]:
    """n/(classes times n_k), as scikit-learn has them; n counts rows, or persons. A class without rows has weight 1."""
    real = mask(federation.sizes, federation.max_size)
    each = None if federation.weights is None else federation.weights[real]
    counts = np.bincount(federation.labels[real], each, minlength=federation.classes).astype(np.float64)
    return [float(counts.sum() / (np.count_nonzero(counts) * count)) if count else 1.0 for count in counts]
