"""SCAFFOLD (Karimireddy et al., 2020), option II: control variates that correct the clients' drift."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.aggregate import Aggregator, element_wise_mean, remembered
from fedpdm.algorithms.base import Algorithm, Broadcast, Reports, hear, replace_rows, shared_sum
from fedpdm.problem.penalties import Penalty

__all__ = ["scaffold", "ClientState", "ServerState", "Message"]


class ClientState(NamedTuple):
    """A client keeps its control variate c_i."""

    control: Array  # c_i


class ServerState(NamedTuple):
    """The server keeps the global model, the common control variate c, and 1/N."""

    x0: Array
    control: Array  # c
    share: Array  # 1/N
    memory: Array | None = None  # c_i of every client, if they are not simply averaged
    heard: Array | None = None  # see `remembered`


class Message(NamedTuple):
    """A client sends its model and the change of its control variate."""

    x: Array
    change: Array  # c_i' - c_i


def scaffold(*, aggregate: Aggregator = element_wise_mean) -> Algorithm:
    r"""SCAFFOLD with server step 1.

    A client steps along $\nabla f_i(x) - c_i + c$ (so $v_i = c - c_i$, $w = 0$), then

    $$c_i' = c_i - c + \frac{x_0 - x_i}{\eta Q}, \qquad \text{sends } x_i \text{ and } c_i' - c_i.$$

    The server takes the mean of $x_i$ over the participants, and moves c by the changes over ALL N clients:

    $$x_0 \leftarrow \mathrm{prox}_{\eta Q h}\Big(\frac1K \sum_{i \in S} x_i\Big), \qquad
      c \leftarrow c + \frac1N \sum_{i \in S} (c_i' - c_i).$$

    Both vectors travel in both directions. In the sound mechanism $x_i$ is the released one, so the control variates are
    functions of released values.

    With another `aggregate` than the mean it takes the place of both means, and the server keeps every $c_i$, which it knows
    from the changes: a sum of aggregated changes would wander away from the clients' own control variates.

    Parameters
    ----------
    aggregate : Aggregator
        How the server combines vectors.

    Returns
    -------
    Algorithm
        The algorithm.

    References
    ----------
    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: stochastic controlled averaging for federated learning",
    ICML 2020.
    """
    plain = aggregate is element_wise_mean

    def init_client(x0: Array) -> ClientState:
        return ClientState(jnp.zeros_like(x0))

    def init_server(x0: Array, clients: int) -> ServerState:
        rows = () if plain else (jnp.zeros((clients, *x0.shape)), jnp.zeros(clients))
        return ServerState(x0, jnp.zeros_like(x0), jnp.float32(1 / clients), *rows)

    def linear_term(state: ClientState, broadcast: Broadcast) -> Array:
        return broadcast.extra - state.control

    def client_update(state: ClientState, broadcast: Broadcast, x: Array, travel: Array) -> tuple[ClientState, Message]:
        change = (broadcast.x0 - x) / travel - broadcast.extra
        return ClientState(state.control + change), Message(x, change)

    def server_update(state: ServerState, reports: Reports, penalty: Penalty) -> ServerState:
        arrived = reports.arrived()
        x0 = penalty.prox(aggregate(reports.messages.x, arrived.x, reports.shares), reports.travel)
        change = reports.messages.change
        if state.memory is None or state.heard is None:
            moved = shared_sum(change, arrived.change, state.share, reports.shares)
            return state._replace(x0=x0, control=state.control + moved)
        memory = replace_rows(state.memory, reports.clients, state.memory[reports.clients] + change, arrived.change)
        heard = hear(state.heard, reports, state.share)
        return ServerState(x0, remembered(aggregate, memory, heard), state.share, memory, heard)

    return Algorithm(
        "scaffold",
        0.0,
        init_client,
        init_server,
        linear_term,
        client_update,
        server_update,
        broadcast=lambda server_state: Broadcast(server_state.x0, server_state.control),
        silent=lambda broadcast: Message(broadcast.x0, jnp.zeros_like(broadcast.x0)),
        gain=lambda travel: Message(jnp.float32(1.0), 1 / travel),
        model_vector=lambda message: message.x,
        state_vector=lambda message: message.change,
        server_table=None if plain else "memory",
        whole_table=not plain,
        solution=lambda message, state, broadcast: message.x,
        told=lambda state, broadcast, message: ClientState(state.control + message.change),
    )
