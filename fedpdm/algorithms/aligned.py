"""A-FedPD (Sun et al., 2024), in a form that needs one broadcast: duals of absent clients follow the model."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.aggregate import Aggregator, element_wise_mean, remembered
from fedpdm.algorithms.base import Algorithm, Broadcast, Reports, hear, replace_rows, shared_sum
from fedpdm.errors import ConfigError
from fedpdm.problem.penalties import Penalty

__all__ = ["afedpd", "ClientState", "ServerState"]

ROUNDING = 4e-6  # two means that differ by less differ by the order of their sums; a zero costs no bytes


class ClientState(NamedTuple):
    """A client keeps its own part of the dual."""

    dual: Array  # u_i


class ServerState(NamedTuple):
    """The server keeps the global model, the mean of the aligned duals, and the mean of the clients' own parts."""

    x0: Array
    aligned: Array  # the mean of lambda_i over all N
    own: Array  # the mean of u_i over all N
    share: Array  # 1/N
    memory: Array | None = None  # u_i of every client, if they are not simply averaged
    heard: Array | None = None  # see `remembered`


def afedpd(*, rho: float, aggregate: Aggregator = element_wise_mean) -> Algorithm:
    r"""Federated primal-dual learning with aligned duals (A-FedPD), by broadcast.

    The published algorithm keeps every dual at the server. A participant works on
    $f_i(x) + \langle\lambda_i, x\rangle + \frac\rho2\|x - x_0\|^2$; then, with $\bar x$ the mean over the participants S,

    $$\lambda_i \leftarrow \lambda_i + \rho (x_i - x_0) \;\; (i \in S), \qquad
      \lambda_i \leftarrow \lambda_i + \rho (\bar x - x_0) \;\; (i \notin S), \qquad
      x_0 \leftarrow \mathrm{prox}_{h/\rho}\Big(\bar x + \frac{1}{\rho N}\sum_{i=1}^N \lambda_i\Big).$$

    The duals of absent clients move as if the client had reached $\bar x$, so they do not drift away from the model. Two
    facts follow by adding up. The mean dual moves by $\rho (\bar x - x_0)$ in every round. And $\lambda_i$ minus the mean
    changes only when client i takes part, by $\rho (x_i - \bar x)$.

    That change needs the $\bar x$ of a round that is not over when the client leaves it, so the published server sends each
    client its own dual. Here all clients get the same broadcast, and a client keeps its own part: $u_i \leftarrow u_i + \rho
    (x_i - x_0)$. The server knows the mean dual $\bar\lambda$ and the mean $\bar u$, and sends their difference:

    $$\lambda_i = u_i + (\bar\lambda - \bar u).$$

    The mean of these duals is the published one. A single dual differs from the published one: by the moves of the model in
    the rounds of this client, minus their mean over all clients. If all clients take part in every round, nothing differs,
    and both are FedPDM. In the sound mechanism $x_i$ is the released one, so $u_i$ is a function of released values.

    Parameters
    ----------
    rho : float
        Weight of the proximal term, above 0.
    aggregate : Aggregator
        How the server combines vectors. With another one than the mean the server keeps every $u_i$.

    Returns
    -------
    Algorithm
        The algorithm.

    References
    ----------
    Sun, Shen, Tao: "A-FedPD: aligning dual-drift is all federated primal-dual learning needs", NeurIPS 2024.
    """
    plain = aggregate is element_wise_mean
    if not rho > 0:
        raise ConfigError(f"Expected algorithm.rho={rho} > 0: it is the weight of the proximal term.")

    def init_client(x0: Array) -> ClientState:
        return ClientState(jnp.zeros_like(x0))

    def init_server(x0: Array, clients: int) -> ServerState:
        rows = () if plain else (jnp.zeros((clients, *x0.shape)), jnp.zeros(clients))
        return ServerState(x0, jnp.zeros_like(x0), jnp.zeros_like(x0), jnp.float32(1 / clients), *rows)

    def linear_term(state: ClientState, broadcast: Broadcast) -> Array:
        return state.dual + broadcast.extra

    def client_update(state: ClientState, broadcast: Broadcast, x: Array, travel: Array) -> tuple[ClientState, Array]:
        return told(state, broadcast, x), x

    def told(state: ClientState, broadcast: Broadcast, message: Array) -> ClientState:
        return ClientState(state.dual + rho * (message - broadcast.x0))

    def server_update(state: ServerState, reports: Reports, penalty: Penalty) -> ServerState:
        x, arrived = reports.messages, reports.arrived()
        mean = aggregate(x, arrived, reports.shares)
        aligned = state.aligned + jnp.where(jnp.any(arrived, axis=0), rho * (mean - state.x0), 0.0)
        memory, heard = state.memory, state.heard
        if memory is None or heard is None:
            shares = None if reports.shares is None else rho * reports.shares
            own = state.own + shared_sum(x - state.x0, arrived, rho * state.share, shares)
        else:
            memory = replace_rows(memory, reports.clients, memory[reports.clients] + rho * (x - state.x0), arrived)
            heard = hear(heard, reports, state.share)
            own = remembered(aggregate, memory, heard)
        return ServerState(penalty.prox(mean + aligned / rho, 1 / rho), aligned, own, state.share, memory, heard)

    def broadcast(state: ServerState) -> Broadcast:
        shift = state.aligned - state.own
        size = rho * jnp.abs(state.x0) + jnp.abs(state.aligned)
        return Broadcast(state.x0, jnp.where(jnp.abs(shift) > ROUNDING * size, shift, 0.0))

    return Algorithm(
        "afedpd",
        rho,
        init_client,
        init_server,
        linear_term,
        client_update,
        server_update,
        broadcast=broadcast,
        state_vector=lambda message: message,
        server_table=None if plain else "memory",
        whole_table=not plain,
        solution=lambda message, state, broadcast: message,
        told=told,
    )
