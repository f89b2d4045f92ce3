"""How a budget is divided: the cost of the schema, of other releases, and the rest for training."""

from fedpdm.choices.words import PRIVATE_BASIS
from fedpdm.config import Config
from fedpdm.data.schema import Cost
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import noise_multiplier_for

__all__ = ["after_schema", "interval_multiplier", "releases_first", "standard_multiplier", "training_share"]


def releases_first(config: Config) -> bool:
    """Return whether every client releases something about its features before training.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    bool
        True for means and deviations (data.standardise), and for a private basis.
    """
    return config.data.standardise or config.data.basis == PRIVATE_BASIS


def after_schema(config: Config, cost: Cost | None) -> Config:
    """Return the settings with the budget that a schema has left for training; (epsilon, delta) of the two add up.

    Parameters
    ----------
    config : Config
        The settings, with the whole budget.
    cost : Cost or None
        The cost of the schema.

    Returns
    -------
    Config
        The settings, with the rest of the budget.

    Raises
    ------
    ConfigError
        If the schema has used up the budget.
    """
    if cost is None:
        return config
    p = config.privacy
    epsilon, delta = (p.epsilon or 0.0) - cost.epsilon, p.delta - cost.delta
    if p.relation != "add-remove" or epsilon <= 0 or delta <= 0:
        raise ConfigError(
            f"The schema was inferred from the rows with epsilon={cost.epsilon:g}, delta={cost.delta:g} (add-remove). Both "
            f"must be below privacy.epsilon={p.epsilon}, privacy.delta={p.delta:g}, with privacy.relation=add-remove: "
            "raise the budget."
        )
    return config.model_copy(update={"privacy": p.model_copy(update={"epsilon": epsilon, "delta": delta})})


def standard_multiplier(config: Config) -> float:
    """Return the noise multiplier of the release before training: its share of the budget, as one Gaussian release.

    A person with rows at q clients is in q of these releases.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    float
        z.
    """
    return _one_release(config, config.privacy.standard_share)


def interval_multiplier(config: Config) -> float:
    """The noise multiplier of the release of gradients and curvature, as `standard_multiplier`.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    float
        The multiplier z.
    """
    return _one_release(config, config.privacy.interval_share)


def training_share(config: Config) -> float:
    """The share of mu^2 that is left for training.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    float
        The share.
    """
    p, taken = config.privacy, 0.0
    if releases_first(config):
        taken += p.standard_share
    if config.metrics.intervals:
        taken += p.interval_share
    if not taken < 1:
        raise ConfigError(
            f"privacy.standard_share={p.standard_share:g} and privacy.interval_share={p.interval_share:g} leave nothing of the "
            "budget for training: lower them."
        )
    return 1 - taken


def _one_release(config: Config, share: float) -> float:
    p = config.privacy
    assert p.epsilon is not None
    return noise_multiplier_for(p.epsilon, p.delta, p.clients_per_unit, p.relation) / share**0.5
