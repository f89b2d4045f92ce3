"""From settings to cohorts that share their noise, and what is refused with them."""

import numpy as np

from fedpdm.choices import ALGORITHMS
from fedpdm.config import Config
from fedpdm.errors import ConfigError
from fedpdm.participation import cohorts_per_round, fair_share
from fedpdm.privacy.shared_noise import Sharing
from fedpdm.privacy.sums import Cohort, make_cohort

__all__ = ["cohort_of", "even_share", "sharing_of"]


def cohort_of(config: Config, clients: int) -> Cohort:
    """The cohort that these settings ask for."""
    c = config.cohorts
    size = c.size or clients
    if size > clients:
        raise ConfigError(f"cohorts.size={size} is more than the {clients} clients: lower it, or set 0 for all of them.")
    return make_cohort(size, c.colluding, c.dropouts)


def even_share(config: Config, cohort: Cohort | None) -> int:
    """Participations of a client when clients, or whole cohorts, take turns evenly."""
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
    """How these settings share the noise; a ConfigError where Theorem S1 does not cover them."""
    name, c = config.algorithm.name, config.cohorts
    cohort = cohort_of(config, len(sizes))
    if c.members == "new" and not ALGORITHMS.row(name).stateless:
        stateless = ", ".join(row.name for row in ALGORITHMS.values() if row.stateless)
        raise ConfigError(
            f'cohorts.members="new" does not go with algorithm.name={name}, which keeps a state from round to round: a cohort '
            "that exists once has none, and states of single members let a server take noise back by changing the cohort "
            f'(docs/secure-sums.md, section 5): use "fixed", or one of {stateless}.'
        )
    if c.members == "new" and config.rounds.sampling != "cycle":
        raise ConfigError(
            f'cohorts.members="new" with rounds.sampling={config.rounds.sampling} would invite members whose participations '
            "are used up, and their sums would stay closed: set rounds.sampling=cycle."
        )
    if mode == "every-step":
        raise ConfigError(
            'privacy.mode="every-step" noises every local step, which would take a secure sum in every step: use '
            "linearised (with local.batch_size=0), or another mode."
        )
    k = config.compression
    if k.uplink < 1 and k.kind not in ("shared-randk", "public-topk"):
        raise ConfigError(
            f"compression.kind={k.kind} lets every member send coordinates of its own: they have no common sum, and which ones "
            "they are would show a single member. Use shared-randk or public-topk, or compression.uplink=1.0."
        )
    return Sharing(cohort, c.budget, dimension, np.asarray(sizes), c.bits, c.scale)
