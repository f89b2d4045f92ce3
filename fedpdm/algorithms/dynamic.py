"""FedDyn (Acar et al., 2021): dynamic regularisation."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.aggregate import Aggregator, element_wise_mean, remembered
from fedpdm.algorithms.base import Algorithm, Broadcast, Reports, hear, replace_rows, shared_sum
from fedpdm.errors import ConfigError
from fedpdm.problem.penalties import Penalty

__all__ = ["feddyn", "ClientState", "ServerState"]


class ClientState(NamedTuple):
    """A client keeps the slope h_i."""

    slope: Array  # h_i, the gradient of f_i where the client last ended


class ServerState(NamedTuple):
    """The server keeps the global model, the mean slope h, and 1/N."""

    x0: Array
    slope: Array  # h
    share: Array  # 1/N
    memory: Array | None = None  # h_i of every client, if they are not simply averaged
    heard: Array | None = None  # see `remembered`


def feddyn(*, alpha: float, aggregate: Aggregator = element_wise_mean) -> Algorithm:
    r"""Federated learning with dynamic regularisation (FedDyn).

    A client works on $f_i(x) - \langle h_i, x\rangle + \frac\alpha2\|x - x_0\|^2$ (so $v_i = -h_i$, $w = \alpha$), moves
    $h_i \leftarrow h_i - \alpha (x_i - x_0)$ and sends $x_i$. The server:

    $$h \leftarrow h - \frac\alpha N \sum_{i \in S} (x_i - x_0), \qquad
      x_0 \leftarrow \mathrm{prox}_{h/\alpha}\Big(\frac1K \sum_{i \in S} x_i - \frac h\alpha\Big),$$

    where the sum for h is divided by all N clients, not by the participants, and the prox is of the penalty (not of the
    vector h). With dense messages it is FedPDM with the server rule "dual-memory" and $\rho = \alpha$.

    With another `aggregate` than the mean it takes the place of both means, and the server keeps every $h_i$, which it knows
    from the messages.

    Parameters
    ----------
    alpha : float
        Weight of the proximal term, above 0.
    aggregate : Aggregator
        How the server combines vectors.

    Returns
    -------
    Algorithm
        The algorithm.

    References
    ----------
    Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated learning based on dynamic regularization", ICLR 2021.
    """
    plain = aggregate is element_wise_mean
    if not alpha > 0:
        raise ConfigError(f"Expected algorithm.alpha={alpha} > 0: it is the weight of the proximal term.")

    def init_client(x0: Array) -> ClientState:
        return ClientState(jnp.zeros_like(x0))

    def init_server(x0: Array, clients: int) -> ServerState:
        rows = () if plain else (jnp.zeros((clients, *x0.shape)), jnp.zeros(clients))
        return ServerState(x0, jnp.zeros_like(x0), jnp.float32(1 / clients), *rows)

    def linear_term(state: ClientState, broadcast: Broadcast) -> Array:
        return -state.slope

    def client_update(state: ClientState, broadcast: Broadcast, x: Array, travel: Array) -> tuple[ClientState, Array]:
        return ClientState(state.slope - alpha * (x - broadcast.x0)), x

    def server_update(state: ServerState, reports: Reports, penalty: Penalty) -> ServerState:
        x, arrived = reports.messages, reports.arrived()
        memory, heard = state.memory, state.heard
        if memory is None or heard is None:
            shares = None if reports.shares is None else alpha * reports.shares
            slope = state.slope - shared_sum(x - state.x0, arrived, alpha * state.share, shares)
        else:
            memory = replace_rows(memory, reports.clients, memory[reports.clients] - alpha * (x - state.x0), arrived)
            heard = hear(heard, reports, state.share)
            slope = remembered(aggregate, memory, heard)
        x0 = penalty.prox(aggregate(x, arrived, reports.shares) - slope / alpha, 1 / alpha)
        return ServerState(x0, slope, state.share, memory, heard)

    return Algorithm(
        "feddyn",
        alpha,
        init_client,
        init_server,
        linear_term,
        client_update,
        server_update,
        state_vector=lambda message: message,
        server_table=None if plain else "memory",
        whole_table=not plain,
        solution=lambda message, state, broadcast: message,
        told=lambda state, broadcast, message: ClientState(state.slope - alpha * (message - broadcast.x0)),
    )
