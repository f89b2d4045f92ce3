"""The weights of classes in the loss."""

from collections.abc import Callable

import numpy as np

from fedpdm.config import Config
from fedpdm.data.federation import Federation, mask
from fedpdm.errors import ConfigError
from fedpdm.problem.losses import Loss, with_class_weights

__all__ = ["balanced_weights", "heaviest_weight", "weighted_loss"]


def weighted_loss(config: Config, make_loss: Callable[..., Loss], federation: Federation | None = None) -> Callable[..., Loss]:
    """Return the loss of the settings with its class weights.

    Parameters
    ----------
    config : Config
        The settings.
    make_loss : callable
        The factory of the loss.
    federation : Federation, optional
        The rows that "balanced" counts; without it weights must be numbers.

    Returns
    -------
    callable
        The factory of the weighted loss.
    """
    weights = config.problem.class_weights
    if weights is None:
        return make_loss
    if make_loss().target != "classes":
        raise ConfigError(f"problem.class_weights is for classes, but problem.loss={config.problem.loss} learns a number.")
    if weights == "balanced":
        if federation is None:
            raise ConfigError(
                'problem.class_weights="balanced" counts the classes of all rows, which a deployment cannot do: give '
                "weights, for instance problem.class_weights=[0.1, 1.0]"
            )
        weights = balanced_weights(federation)
    if federation and len(weights) != federation.classes:
        raise ConfigError(
            f"problem.class_weights has {len(weights)} weights, but there are {federation.classes} classes: give one for each"
        )
    return lambda **options: with_class_weights(make_loss(**options), weights)


def heaviest_weight(config: Config) -> float:
    """The largest weight that settings give a class, at least 1: it multiplies every bound on a gradient.

    Parameters
    ----------
    config : Config
        The settings; their weights are numbers, or there are none.

    Returns
    -------
    float
        The weight.
    """
    weights = config.problem.class_weights
    return max(1.0, *weights) if isinstance(weights, list) else 1.0


def balanced_weights(federation: Federation) -> list[float]:
    """Return n/(classes times n_k) for each class, as in scikit-learn.

    Parameters
    ----------
    federation : Federation
        The rows; n counts rows, or persons.

    Returns
    -------
    list of float
        The weights; a class without rows has weight 1.
    """
    real = mask(federation.sizes, federation.max_size)
    each = None if federation.weights is None else federation.weights[real]
    counts = np.bincount(federation.labels[real], each, minlength=federation.classes).astype(np.float64)
    return [float(counts.sum() / (np.count_nonzero(counts) * count)) if count else 1.0 for count in counts]
