"""The model and the state that a simulation begins with."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.compression.links import first_downlink
from fedpdm.data.federation import Federation
from fedpdm.engines.simulation.cohorts import state_rows
from fedpdm.engines.simulation.judging import traces, watches
from fedpdm.engines.simulation.measures import LINKS
from fedpdm.engines.simulation.state import Schedule, SimulationState, initial_model, server_rows
from fedpdm.engines.simulation.steadiness import contrasts
from fedpdm.rounds import Setup

__all__ = ["first_model", "first_rows", "first_state"]


def first_model(setup: Setup, federation: Federation, seed: Any, scale: float) -> Array:
    """Return the model that training begins at: the loss's own, or random numbers.

    Parameters
    ----------
    setup, federation
        The setup and the clients' examples.
    seed : int or Array
        The seed of the run.
    scale : float
        Standard deviation of the random numbers.

    Returns
    -------
    Array
        The model.
    """
    initial = setup.problem.loss.initial
    return initial() if initial else initial_model(seed, (federation.classes, federation.features.shape[2]), scale)


def first_rows(setup: Setup, federation: Federation, seed: Any, scale: float) -> dict[str, Any]:
    """Return the state of one client before it takes part: see `rows_of`.

    Parameters
    ----------
    setup, federation, seed, scale
        As in `first_model`.

    Returns
    -------
    dict
        The client's state, and its rows of the server's table.
    """
    x0, algorithm = first_model(setup, federation, seed, scale), setup.algorithm
    rows = server_rows(algorithm, algorithm.init_server(x0, 1))
    return {"clients": algorithm.init_client(x0), "server": {name: table[0] for name, table in rows.items()}}


def first_state(setup: Setup, schedule: Schedule, clients: int, stored: bool, x0: Array) -> SimulationState:
    """Return the state at the beginning. Compile this function, so that rows that are cut off again never exist.

    Parameters
    ----------
    setup, schedule, clients
        The settings, and the number of clients.
    stored : bool
        Whether the rows of clients are in a store, not in the state.
    x0 : Array
        The model at the beginning.

    Returns
    -------
    SimulationState
        The state.
    """
    algorithm = setup.algorithm
    rows = state_rows(schedule, clients)
    stays = 0 if stored else rows
    server = algorithm.init_server(x0, rows)
    return SimulationState(
        server._replace(**{name: table[:stays] for name, table in server_rows(algorithm, server).items()}),
        clients=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (stays, *leaf.shape)), algorithm.init_client(x0)),
        local_models=jnp.broadcast_to(x0, (clients if schedule.measures_stationarity else 0, *x0.shape)),
        tail_sum=jnp.zeros_like(x0),
        tail_signs=jnp.zeros((2, *contrasts(x0).shape), jnp.int32),
        spent=jnp.zeros(clients),
        downlink=first_downlink(algorithm.broadcast(server), clients),
        noise=jnp.float32(0.0),
        traffic=jnp.zeros((len(LINKS), 2), jnp.int32),
        stored=jnp.int32(0),
        strikes=jnp.zeros(clients, jnp.int32) if watches(setup, schedule.attack) else None,
        evidence=jnp.zeros(clients) if traces(setup, schedule.fixed_cohorts) else None,
    )
