"""FedDR (Tran-Dinh et al., 2021): randomised Douglas-Rachford splitting."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.aggregate import Aggregator, element_wise_mean
from fedpdm.algorithms.base import Algorithm, Broadcast, Reports, hear, replace_rows, shared_sum
from fedpdm.errors import ConfigError
from fedpdm.problem.penalties import Penalty

__all__ = ["feddr", "ClientState", "ServerState"]


class ClientState(NamedTuple):
    """A client keeps the centre of its proximal term and its last solution."""

    centre: Array  # y_i
    solution: Array  # x_i


class ServerState(NamedTuple):
    """The server keeps the global model, and the last message of every client with their mean."""

    x0: Array
    memory: Array  # 2 x_i - y_i of every client
    mean: Array  # of the memory over all N
    share: Array  # 1/N
    heard: Array | None = None  # see `fedpdm.algorithms.aggregate.remembered`; None: the memory is simply averaged


def feddr(*, rho: float, relaxation: float = 1.95, aggregate: Aggregator = element_wise_mean) -> Algorithm:
    r"""Federated Douglas-Rachford splitting (FedDR).

    A client of the round moves the centre of its proximal term, solves, and sends the reflection of the solution:

    $$y_i \leftarrow y_i + \alpha (x_0 - x_i), \qquad
      x_i \leftarrow \arg\min_x f_i(x) + \frac\rho2 \|x - y_i\|^2, \qquad \hat x_i = 2 x_i - y_i.$$

    In the form of all algorithms here $w = \rho$ and $v_i = \rho (x_0 - y_i)$ with the new $y_i$. The server takes the mean
    over the last message of ALL N clients:

    $$x_0 \leftarrow \mathrm{prox}_{h/\rho}\Big(\frac1N \sum_{i=1}^N \hat x_i\Big).$$

    With $\alpha = 1$ it is FedPDM with the server rule "cached": then $\rho (y_i - x_i)$ is the dual $\lambda_i$, and
    $\hat x_i = x_i - \lambda_i/\rho$. A larger $\alpha$ is over-relaxation. All clients begin with $x_i = y_i = x_0$, so a
    first round of all clients is the start of the published algorithm. A client sends $\hat x_i$ and not its change, because
    the server knows the last one. In the sound mechanism $x_i$ is the released one, so both vectors of the state are
    functions of released values.

    Parameters
    ----------
    rho : float
        Weight of the proximal term, above 0: one over the paper's eta.
    relaxation : float
        The paper's alpha, above 0 and below 2. Its experiments use 1.95.
    aggregate : Aggregator
        How the server combines vectors.

    Returns
    -------
    Algorithm
        The algorithm.

    References
    ----------
    Tran-Dinh, Pham, Phan, Nguyen: "FedDR: randomized Douglas-Rachford splitting algorithms for nonconvex federated composite
    optimization", NeurIPS 2021, Algorithm 1.
    """
    plain = aggregate is element_wise_mean
    if not rho > 0:
        raise ConfigError(f"Expected algorithm.rho={rho} > 0: it is the weight of the proximal term.")
    if not 0 < relaxation < 2:
        raise ConfigError(f"Expected 0 < algorithm.relaxation={relaxation} < 2: beyond it the splitting does not contract.")

    def init_client(x0: Array) -> ClientState:
        return ClientState(x0, x0)

    def init_server(x0: Array, clients: int) -> ServerState:
        memory = jnp.broadcast_to(x0, (clients, *x0.shape))
        return ServerState(x0, memory, x0, jnp.float32(1 / clients), None if plain else jnp.zeros(clients))

    def centre(state: ClientState, broadcast: Broadcast) -> Array:
        return state.centre + relaxation * (broadcast.x0 - state.solution)

    def linear_term(state: ClientState, broadcast: Broadcast) -> Array:
        return rho * (broadcast.x0 - centre(state, broadcast))

    def client_update(state: ClientState, broadcast: Broadcast, x: Array, travel: Array) -> tuple[ClientState, Array]:
        y = centre(state, broadcast)
        return ClientState(y, x), 2 * x - y

    def solution(message: Array, state: ClientState, broadcast: Broadcast) -> Array:
        return (message + centre(state, broadcast)) / 2

    def told(state: ClientState, broadcast: Broadcast, message: Array) -> ClientState:
        return ClientState(centre(state, broadcast), solution(message, state, broadcast))

    def server_update(state: ServerState, reports: Reports, penalty: Penalty) -> ServerState:
        news, arrived, known = reports.messages, reports.arrived(), state.memory[reports.clients]
        memory = replace_rows(state.memory, reports.clients, news, arrived)
        if state.heard is None:
            heard, mean = None, state.mean + shared_sum(news - known, arrived, state.share, reports.shares)
        else:
            heard = hear(state.heard, reports, state.share)
            mean = aggregate(memory, heard > 0, heard)
        return ServerState(penalty.prox(mean, 1 / rho), memory, mean, state.share, heard)

    return Algorithm(
        "feddr",
        rho,
        init_client,
        init_server,
        linear_term,
        client_update,
        server_update,
        server_table="memory",
        whole_table=not plain,
        solution=solution,
        told=told,
        gain=lambda travel: 2.0,  # the centre does not depend on the new solution
    )
