"""Settings as they run: every number that depends on the data is filled in, once, before anything is built."""

from fedpdm.choices import LOSSES, spelled
from fedpdm.choices.words import PRIVATE_BASIS
from fedpdm.config import Config
from fedpdm.data.features import DIRECTION
from fedpdm.data.federation import Federation
from fedpdm.errors import ConfigError
from fedpdm.setup.defaults import by_rule, sizes_of
from fedpdm.setup.directions import PRIVATE_DIRECTIONS

__all__ = ["directions_of_federation", "resolve", "with_loss"]


def resolve(config: Config, federation: Federation | None = None) -> Config:
    """Fill in the numbers of clients and participants for 0 and "column", and the settings of the rule.

    Resolved settings do not change again, so a resumed run has the same ones.

    Parameters
    ----------
    config : Config
        The settings as they were written.
    federation : Federation, optional
        The clients of a simulation. Without it (a deployment) `data.clients` is the number of clients.

    Returns
    -------
    Config
        The resolved settings.
    """
    column = federation is not None and config.data.partition == "column"
    clients = federation.clients if federation is not None and column else config.data.clients
    participants = config.rounds.participants or clients
    if participants > clients:
        raise ConfigError(
            f"rounds.participants={participants} is more than the {clients} clients of {config.data.name}: lower it, or set "
            "rounds.participants=0 for all of them"
        )
    named = federation.schema.client if federation is not None and federation.schema else None
    data = config.data.model_copy(update={"clients": clients, "client_column": named or config.data.client_column})
    rounds = config.rounds.model_copy(update={"participants": participants})
    config = config.model_copy(update={"data": data, "rounds": rounds})
    if federation is None:
        return config
    config = directions_of_federation(config, federation)
    cost = federation.schema.cost if federation.schema else None
    return by_rule(with_loss(config, federation.kind), sizes_of(federation), cost)


def directions_of_federation(config: Config, federation: Federation) -> Config:
    """Replace data.basis_size="auto" by the number of directions that the clients' rows have, or are going to have.

    Parameters
    ----------
    config : Config
        The settings.
    federation : Federation
        The clients' rows after the map, from `fedpdm.setup.directions.federate`.

    Returns
    -------
    Config
        The settings with a number, if there is a basis.
    """
    found = sum(name.startswith(DIRECTION) for name in federation.feature_names)
    if config.data.basis == PRIVATE_BASIS:
        found = PRIVATE_DIRECTIONS
    if config.data.basis_size != "auto" or not found:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"basis_size": found})})


AUTO = {"classes": "softmax", "number": "squared", "time": "piecewise-exponential"}
WORDS = {"classes": "one of several classes", "number": "a number", "time": "a time to an event"}


def with_loss(config: Config, kind: str) -> Config:
    """The settings with the loss that "auto" stands for; a loss for another kind of label is refused.

    Parameters
    ----------
    config : Config
        The settings.
    kind : str
        What the label is: "classes", "number" or "time".

    Returns
    -------
    Config
        The settings with a loss.
    """
    p = config.problem
    if p.loss == "auto":
        return config.model_copy(update={"problem": p.model_copy(update={"loss": AUTO[kind]})})
    if (row := LOSSES.row(p.loss)).target != kind:
        fit = spelled([row.name for row in LOSSES.values() if row.target == kind])
        raise ConfigError(f"problem.loss={row.name} does not go with a label that is {WORDS[kind]}: use {fit}.")
    return config
