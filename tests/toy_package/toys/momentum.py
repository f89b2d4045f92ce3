"""FedAvg with momentum at the server."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.base import Algorithm, Broadcast, Reports, element_wise_mean
from fedpdm.problem.penalties import Penalty


class ServerState(NamedTuple):
    x0: Array
    velocity: Array


def momentum(*, decay: float) -> Algorithm:
    def init_client(x0: Array) -> tuple[()]:
        return ()

    def init_server(x0: Array, clients: int) -> ServerState:
        return ServerState(x0, jnp.zeros_like(x0))

    def linear_term(state: tuple[()], broadcast: Broadcast) -> Array:
        return 0 * broadcast.x0

    def client_update(state: tuple[()], broadcast: Broadcast, x: Array, travel: Array) -> tuple[tuple[()], Array]:
        return (), x

    def server_update(state: ServerState, reports: Reports, penalty: Penalty) -> ServerState:
        velocity = decay * state.velocity + element_wise_mean(reports.messages, reports.arrived()) - state.x0
        return ServerState(penalty.prox(state.x0 + velocity, reports.travel), velocity)

    return Algorithm("momentum", 0.0, init_client, init_server, linear_term, client_update, server_update)
