"""FedPDM: the primal-dual method of Algorithm 1, without its noise (that is the privacy boundary's work)."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.base import Algorithm, Broadcast, Reports, element_wise_mean, replace_rows
from fedpdm.choices import SERVER_RULE
from fedpdm.errors import ConfigError
from fedpdm.problem.penalties import Penalty

__all__ = ["fedpdm", "ClientState", "ServerState"]


class ClientState(NamedTuple):
    dual: Array  # lambda_i


class ServerState(NamedTuple):
    x0: Array
    memory: Array  # one row per client: y_i ("cached"), lambda_i ("dual-memory"), or no row at all ("participants")
    mean: Array  # of the memory over all N, kept up to date so that a round costs what its participants cost
    share: Array  # 1/N


def fedpdm(*, rho: float, server_rule: str = str(SERVER_RULE.default)) -> Algorithm:
    r"""Federated primal-dual method.

    The augmented Lagrangian is

    $$\frac1N\sum_i \big[f_i(x_i) + \lambda_i^\top(x_0 - x_i) + \frac\rho2\|x_0 - x_i\|^2\big] + h(x_0).$$

    A client minimises over its $x_i$ (so $v_i = -\lambda_i$, $w = \rho$), moves its dual and sends one vector:

    $$\lambda_i \leftarrow \lambda_i + \rho (x_0 - x_i), \qquad y_i = x_i - \lambda_i/\rho.$$

    The server minimises over $x_0$: $x_0 = \mathrm{prox}_{h/\rho}(u)$, where $u$ follows the server rule:

    - "participants": mean of $y_i$ over the round's participants (the paper);
    - "cached": mean over all N of the last $y_i$ that each client sent;
    - "dual-memory": mean of $x_i$ over the participants, minus the mean of $\lambda_i$ over all N, divided by $\rho$.
      The server recomputes both from $y_i$ alone: $\lambda_i' = (\lambda_i + \rho (x_0 - y_i))/2$. Where a coordinate is
      not sent its memory stays behind the client's own dual, and catches up by halves whenever it is.

    With full participation the three are the same.
    """
    if not rho > 0:
        raise ConfigError(f"Expected algorithm.rho={rho} > 0: it is the weight of the proximal term.")
    if server_rule not in SERVER_RULE.values:
        raise ConfigError(f"Unknown algorithm.server_rule={server_rule!r}: choose one of {', '.join(SERVER_RULE.values)}.")

    def init_client(x0: Array) -> ClientState:
        return ClientState(jnp.zeros_like(x0))

    def init_server(x0: Array, clients: int) -> ServerState:
        rows = 0 if server_rule == "participants" else clients
        start = x0 if server_rule == "cached" else jnp.zeros_like(x0)
        return ServerState(x0, jnp.broadcast_to(start, (rows, *x0.shape)), start, jnp.float32(1 / clients))

    def linear_term(state: ClientState, broadcast: Broadcast) -> Array:
        return -state.dual

    def client_update(state: ClientState, broadcast: Broadcast, x: Array, travel: Array) -> tuple[ClientState, Array]:
        dual = state.dual + rho * (broadcast.x0 - x)
        return ClientState(dual), x - dual / rho

    def server_update(state: ServerState, reports: Reports, penalty: Penalty) -> ServerState:
        y, arrived = reports.messages, reports.arrived()
        if server_rule == "participants":
            return state._replace(x0=penalty.prox(element_wise_mean(y, arrived), 1 / rho))
        known = state.memory[reports.clients]
        news = y if server_rule == "cached" else (known + rho * (state.x0 - y)) / 2
        memory = replace_rows(state.memory, reports.clients, news, arrived)
        mean = state.mean + state.share * jnp.sum(jnp.where(arrived, news - known, 0.0), axis=0)
        u = mean if server_rule == "cached" else element_wise_mean(y + news / rho, arrived) - mean / rho
        return ServerState(penalty.prox(u, 1 / rho), memory, mean, state.share)

    return Algorithm(
        "fedpdm",
        rho,
        init_client,
        init_server,
        linear_term,
        client_update,
        server_update,
        gain=lambda travel: 2.0,  # y = x - lambda/rho, and lambda moves by -rho when x moves by 1
    )
