"""A simulated round of cohorts that share their noise: gather the members, add up their shares, make a virtual client."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.algorithms.base import Broadcast
from fedpdm.compression.sizes import HEADER_BYTES
from fedpdm.engines.simulation.state import DeviceData, Schedule, SimulationState, Who
from fedpdm.participation import cohort_table
from fedpdm.rounds import ClientResult, Setup, client_key, cohort_round

__all__ = ["CohortRound", "cohort_rows", "share_bytes", "state_rows", "work_of_cohorts"]


class CohortRound(NamedTuple):
    """The results of a round's cohorts."""

    result: ClientResult  # stacked over cohorts
    opened: Array  # [cohorts]: whether enough members took part; otherwise the sum stays closed
    first: Array  # [cohorts]: one member of each, which names it


def state_rows(schedule: Schedule, clients: int) -> int:
    """Return the number of states: one per client, or one per cohort.

    Parameters
    ----------
    schedule, clients
        The schedule, and the number of clients.

    Returns
    -------
    int
        The number of states.
    """
    return max(1, clients // schedule.cohort_size) if schedule.cohort_size else clients


def cohort_rows(schedule: Schedule, clients: int, chosen: np.ndarray) -> np.ndarray:
    """Return the states of the cohorts in some rounds.

    Parameters
    ----------
    schedule, clients
        The schedule, and the number of clients.
    chosen : ndarray
        [rounds, cohorts * members] clients.

    Returns
    -------
    ndarray
        [rounds, cohorts] rows of the states.
    """
    table, _ = cohort_table(clients, schedule.cohort_size, schedule.seed)
    if schedule.fixed_cohorts:
        cohort_of = np.zeros(clients, np.int32)
        cohort_of[table] = np.arange(len(table))[:, None]
        return cohort_of[chosen[:, :: table.shape[1]]]
    # If all clients take part, cohorts are like fixed ones; otherwise every cohort has its smallest size.
    width = table.shape[1] if chosen.shape[1] == table.size else schedule.cohort_size
    return np.zeros((len(chosen), chosen.shape[1] // width), np.int32)


def work_of_cohorts(
    setup: Setup,
    t: Array,
    state: SimulationState,
    seed: Array,
    who: Who,
    data: DeviceData,
    broadcast: Broadcast,
    support: Array | None,
    tamper: Callable[[Array, Array], Array] | None = None,
) -> CohortRound:
    """Let every cohort of the round do its part.

    Parameters
    ----------
    setup, t, state, seed, data
        As in `fedpdm.engines.simulation.one_round.one_round`.
    who : Who
        `who.rows` has a row per cohort, the rest of `who` one per member.
    broadcast, support
        The server's message, and the coordinates of the round.
    tamper : callable, optional
        As in `cohort_round`.

    Returns
    -------
    CohortRound
        The results.
    """
    sums = setup.privacy.sums
    assert sums is not None
    members, present, blocks = (part.reshape(len(who.rows), -1) for part in (who.clients, who.present, who.blocks))

    def work(cohort: tuple[Any, ...]) -> ClientResult:
        clients, here, places, own = cohort
        keys = jax.vmap(lambda client: client_key(seed, t, client))(clients)
        examples = data.examples(places)
        return cohort_round(setup, examples, here, own, broadcast, t, keys, support, tamper)

    own = jax.tree.map(lambda leaf: leaf[who.rows], state.clients)
    result = jax.lax.map(work, (members, present, blocks, own))  # one cohort after the other, to save memory
    return CohortRound(result, jnp.sum(present, axis=1) >= sums.cohort.least, members[:, 0])


def share_bytes(setup: Setup, size: int) -> int:
    """Return the bytes of one member's masked share, without keys and shares of keys, which depend only on the cohort.

    Parameters
    ----------
    setup : Setup
        The setup.
    size : int
        Coordinates of the model.

    Returns
    -------
    int
        The bytes.
    """
    sums, links = setup.privacy.sums, setup.links
    assert sums is not None
    count = links.count(size) if links.has_support else size
    return HEADER_BYTES + -(-count * sums.lattice.bits // 8)
