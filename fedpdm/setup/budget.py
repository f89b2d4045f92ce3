"""How a budget is divided: what the schema took, what means and deviations take, and what is left for training."""

from fedpdm.config import Config
from fedpdm.data.schema import Cost
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import noise_multiplier_for

__all__ = ["after_schema", "standard_multiplier"]


def after_schema(config: Config, cost: Cost | None) -> Config:
    """The settings with the budget that a schema has left for training: (epsilon, delta) of the two add up."""
    if cost is None:
        return config
    p = config.privacy
    epsilon, delta = (p.epsilon or 0.0) - cost.epsilon, p.delta - cost.delta
    if p.relation != "add-remove" or epsilon <= 0 or delta <= 0:
        raise ConfigError(
            f"The schema was read off the rows with epsilon={cost.epsilon:g}, delta={cost.delta:g} (add-remove), which must be "
            f"below privacy.epsilon={p.epsilon}, privacy.delta={p.delta:g}, with privacy.relation=add-remove: raise the budget."
        )
    return config.model_copy(update={"privacy": p.model_copy(update={"epsilon": epsilon, "delta": delta})})


def standard_multiplier(config: Config) -> float:
    """The noise multiplier of the release of means and deviations: its share of the budget, as one Gaussian release.

    A person with rows at q clients is in q of them, which counts as q releases.
    """
    p = config.privacy
    assert p.epsilon is not None
    return noise_multiplier_for(p.epsilon, p.delta, p.clients_per_unit, p.relation) / p.standard_share**0.5
