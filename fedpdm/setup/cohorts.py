"""From settings to cohorts that share their noise, and the settings that do not fit them."""

import numpy as np

from fedpdm.choices import ALGORITHMS
from fedpdm.config import Config
from fedpdm.errors import ConfigError
from fedpdm.participation import cohorts_per_round, fair_share, largest_cohort
from fedpdm.privacy.shared_noise import Sharing
from fedpdm.privacy.sums import Cohort, make_cohort
from fedpdm.setup.budget import releases_first

__all__ = ["SEVERAL", "cohort_of", "cohorts_in_a_round", "even_share", "most_members", "require_client_unit", "sharing_of"]

SEVERAL = 3  # cohorts in a round, of which one can be held against the others


def cohorts_in_a_round(config: Config) -> int:
    """Return how many cohorts take part in a round.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    int
        The number; at least 1.
    """
    size, clients = config.cohorts.size, config.data.clients  # size 0: all clients are one cohort
    return cohorts_per_round(config.rounds.participants or clients, size) if size else 1


def cohort_of(config: Config, clients: int) -> Cohort:
    """Return the cohort of these settings.

    Parameters
    ----------
    config : Config
        The settings.
    clients : int
        Number of clients.

    Returns
    -------
    Cohort
        The cohort.
    """
    c = config.cohorts
    size = c.size or clients
    if size > clients:
        raise ConfigError(f"cohorts.size={size} is more than the {clients} clients: lower it, or set 0 for all of them.")
    return make_cohort(size, c.colluding, c.dropouts)


def most_members(config: Config, cohort: Cohort) -> int:
    """Return the most members that a sum of these settings can have.

    Parameters
    ----------
    config : Config
        The settings.
    cohort : Cohort
        Their cohort.

    Returns
    -------
    int
        The number of members.
    """
    return largest_cohort(config.data.clients, cohort.members, config.cohorts.members == "fixed")


def require_client_unit(config: Config) -> None:
    """Refuse settings that do not go with a guarantee for whole clients.

    Parameters
    ----------
    config
        With privacy.unit=client.
    """
    if config.privacy.trust != "cohorts":
        raise ConfigError(
            'privacy.unit="client" needs privacy.trust="cohorts": a message that hides all of a client tells nothing, only a '
            "sum of many does."
        )
    if config.privacy.mode != "auto" or releases_first(config) or config.data.unit_column:
        raise ConfigError(
            'privacy.unit="client" cuts what a whole client contributes: leave privacy.mode on "auto", and data.standardise, '
            "a private basis and data.unit_column out, which are about single examples and persons."
        )


def even_share(config: Config, cohort: Cohort | None) -> int:
    """Return the participations of a client if clients, or whole cohorts, take turns evenly.

    Parameters
    ----------
    config : Config
        The settings.
    cohort : Cohort or None
        The cohort, if cohorts share the noise.

    Returns
    -------
    int
        The number of participations.
    """
    r, clients = config.rounds, config.data.clients
    how = {"rounds": r.total, "all_first": r.all_first}
    if cohort is None:
        return fair_share(clients=clients, participants=r.participants, **how)
    count = cohorts_per_round(r.participants, cohort.members)
    if config.cohorts.members == "fixed":
        there = max(1, clients // cohort.members)
        return fair_share(clients=there, participants=min(count, there), **how)
    return fair_share(clients=clients, participants=min(count * cohort.members, clients), **how)


def sharing_of(config: Config, sizes: np.ndarray, dimension: int, mode: str) -> Sharing:
    """Return how these settings share the noise.

    Parameters
    ----------
    config : Config
        The settings.
    sizes : ndarray
        The public sizes of all clients.
    dimension : int
        Coordinates of a contribution.
    mode : str
        privacy.mode.

    Returns
    -------
    Sharing
        The cohort and its lattice.

    Raises
    ------
    ConfigError
        If Theorem S1 does not cover the settings.
    """
    name, c = config.algorithm.name, config.cohorts
    cohort = cohort_of(config, len(sizes))
    if c.members == "new" and not ALGORITHMS.row(name).stateless:
        stateless = ", ".join(row.name for row in ALGORITHMS.values() if row.stateless)
        raise ConfigError(
            f'cohorts.members="new" does not fit algorithm.name={name}, which keeps a state from round to round: a new cohort '
            "has none, and with states of single members a server could remove noise by changing the cohort "
            f'(docs/secure-sums.md, section 5). Use "fixed", or one of {stateless}.'
        )
    if c.members == "new" and config.rounds.sampling != "cycle":
        raise ConfigError(
            f'cohorts.members="new" with rounds.sampling={config.rounds.sampling} would invite members whose participations '
            "are used up, and their sums would stay closed: set rounds.sampling=cycle."
        )
    if c.compare and (there := cohorts_in_a_round(config)) < SEVERAL:
        raise ConfigError(
            f"cohorts.compare=true holds the sums of a round against each other, and a round has {there}: it takes {SEVERAL}. "
            "Lower cohorts.size, raise rounds.participants, or leave cohorts.compare out."
        )
    if mode == "every-step":
        raise ConfigError(
            'privacy.mode="every-step" adds noise in every local step, which would need a secure sum in every step: use '
            "linearised (with local.batch_size=0), or another mode."
        )
    k = config.compression
    if k.uplink < 1 and k.kind not in ("shared-randk", "public-topk"):
        raise ConfigError(
            f"compression.kind={k.kind} lets every member choose its coordinates: they have no common sum, and the choice "
            "would reveal a single member. Use shared-randk or public-topk, or compression.uplink=1.0."
        )
    whole = config.privacy.unit == "client"
    counted = np.ones(len(sizes)) if whole else np.asarray(sizes)  # sizes are a client's own affair where it is the unit
    return Sharing(cohort, most_members(config, cohort), c.budget, dimension, counted, c.bits, c.scale, c.reach, whole)
