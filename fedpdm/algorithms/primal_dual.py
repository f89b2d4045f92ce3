"""FedPDM: the primal-dual method of Algorithm 1, without its noise (that is the privacy boundary's work)."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.aggregate import Aggregator, element_wise_mean, remembered
from fedpdm.algorithms.base import Algorithm, Broadcast, Reports, hear, replace_rows, shared_sum
from fedpdm.choices import SERVER_RULE
from fedpdm.errors import ConfigError
from fedpdm.problem.metric import prox_in_metric
from fedpdm.problem.penalties import Penalty

__all__ = ["fedpdm", "ClientState", "ServerState", "balanced"]

BALANCING_ROUNDS = 50  # rho is fixed after these, so that results for a fixed rho hold from then on
TINY = 1e-12
UNBALANCED, STEP, RANGE = 2.0, 2.0, 50.0  # ratio that changes rho; largest factor of one round, and of all rounds


class ClientState(NamedTuple):
    """A client keeps its dual vector lambda_i."""

    dual: Array  # lambda_i


class ServerState(NamedTuple):
    """The server keeps the global model, and with some rules a row per client."""

    x0: Array
    memory: Array  # one row per client: y_i ("cached"), lambda_i ("dual-memory"), or no row at all ("participants")
    mean: Array  # of the memory over all N; an update of it costs as much as the round's participants
    share: Array  # 1/N
    rho: Array | None = None  # of the next round, if it adapts
    round: Array | None = None  # rounds so far, if rho adapts
    heard: Array | None = None  # see `remembered`; None: the memory is simply averaged


def fedpdm(
    *,
    rho: float,
    server_rule: str = str(SERVER_RULE.default),
    adaptive: bool = False,
    metric: Array | None = None,
    aggregate: Aggregator = element_wise_mean,
) -> Algorithm:
    r"""Federated primal-dual method.

    The augmented Lagrangian is

    $$\frac1N\sum_i \big[f_i(x_i) + \lambda_i^\top(x_0 - x_i) + \frac\rho2\|x_0 - x_i\|^2\big] + h(x_0).$$

    A client minimises over its $x_i$ (so $v_i = -\lambda_i$, $w = \rho$), moves its dual and sends one vector:

    $$\lambda_i \leftarrow \lambda_i + \rho (x_0 - x_i), \qquad y_i = x_i - \lambda_i/\rho.$$

    The server minimises over $x_0$: $x_0 = \mathrm{prox}_{h/\rho}(u)$, where $u$ follows the server rule:

    - "participants": mean of $y_i$ over the round's participants (the paper);
    - "cached": mean over all N of the last $y_i$ that each client sent;
    - "dual-memory": mean of $x_i$ over the participants, minus the mean of $\lambda_i$ over all N, divided by $\rho$.
      The server recomputes both from $y_i$ alone: $\lambda_i' = (\lambda_i + \rho (x_0 - y_i))/2$. If a coordinate is not
      sent, the server's memory of it falls behind the client's dual; each later message halves the distance.

    With full participation the three are the same.

    Clients with shares $p_i$ of the objective (`Reports.shares`) replace $1/N$ by $p_i$ above, so every mean becomes one
    with these weights; the clients' own part stays as it is (docs/algorithms.md).

    `adaptive` lets the server change $\rho$ after a round, for "dual-memory" and full participation: see `balanced`. The
    duals are those of the problem itself, not divided by $\rho$, so they stay as they are.

    A `metric` M measures distances by $\langle v, v M\rangle$: $\rho M$ takes the place of $\rho$ in the dual's step,
    $(\rho M)^{-1}$ that of $1/\rho$ in y, and the prox is the one in this metric. With the features' own second moments it
    undoes their correlations, as a change of variables would, and leaves the coordinates of the penalty as they are.

    An `aggregate` takes the place of every mean over clients; that over all N is then over those that were heard.

    Parameters
    ----------
    rho : float
        Weight of the proximal term, above 0.
    server_rule : str
        One of the three rules above.
    adaptive : bool
        Whether the server changes rho.
    metric : Array, optional
        The matrix M [features, features]. None: the identity.
    aggregate : Aggregator
        How the server combines vectors.

    Returns
    -------
    Algorithm
        The algorithm.

    References
    ----------
    Li, Huang, Wang, Chi, Quek: "Privacy-preserving Federated Primal-Dual Learning for Non-convex and Non-smooth Problems with
    Model Sparsification", Algorithm 1.
    """
    _check(rho, server_rule, adaptive)
    whole_table = aggregate is not element_wise_mean and server_rule != "participants"
    distances = _Distances(metric, None if metric is None else jnp.linalg.inv(metric))

    def init_client(x0: Array) -> ClientState:
        return ClientState(jnp.zeros_like(x0))

    def init_server(x0: Array, clients: int) -> ServerState:
        changing = (jnp.float32(rho), jnp.int32(0)) if adaptive else ()
        rows = 0 if server_rule == "participants" else clients
        start = x0 if server_rule == "cached" else jnp.zeros_like(x0)
        return ServerState(x0, jnp.broadcast_to(start, (rows, *x0.shape)), start, jnp.float32(1 / clients), *changing)._replace(
            heard=jnp.zeros(clients) if whole_table else None
        )

    def linear_term(state: ClientState, broadcast: Broadcast) -> Array:
        return -state.dual

    def client_update(state: ClientState, broadcast: Broadcast, x: Array, travel: Array) -> tuple[ClientState, Array]:
        weight = rho if broadcast.weight is None else broadcast.weight
        dual = state.dual + weight * distances.forth(broadcast.x0 - x)
        return ClientState(dual), x - distances.back(dual) / weight

    def solution(y: Array, state: ClientState, broadcast: Broadcast) -> Array:
        return (y + broadcast.x0 + distances.back(state.dual) / rho) / 2

    def told(state: ClientState, broadcast: Broadcast, y: Array) -> ClientState:
        return ClientState((state.dual + rho * distances.forth(broadcast.x0 - y)) / 2)

    def server_update(state: ServerState, reports: Reports, penalty: Penalty) -> ServerState:
        y, arrived, shares = reports.messages, reports.arrived(), reports.shares
        if server_rule == "participants":
            return state._replace(x0=distances.prox(penalty, aggregate(y, arrived, shares), 1 / rho, state.x0))
        weight = rho if state.rho is None else state.rho
        known = state.memory[reports.clients]
        news = y if server_rule == "cached" else (known + weight * distances.forth(state.x0 - y)) / 2
        memory = replace_rows(state.memory, reports.clients, news, arrived)
        heard = None if state.heard is None else hear(state.heard, reports, state.share)
        if heard is None:
            mean = state.mean + shared_sum(news - known, arrived, state.share, shares)
        else:
            mean = aggregate(memory, heard > 0, heard) if server_rule == "cached" else remembered(aggregate, memory, heard)
        x = y if server_rule == "cached" else y + distances.back(news) / weight
        u = mean if server_rule == "cached" else aggregate(x, arrived, shares) - distances.back(mean) / weight
        x0 = distances.prox(penalty, u, 1 / weight, state.x0)
        after = state._replace(x0=x0, memory=memory, mean=mean, heard=heard)
        if state.rho is None or state.round is None:
            return after
        residuals = relative_residuals(
            x, news, distances.forth(x0 - state.x0), x0, state.rho, lambda v: aggregate(v, reports.present, shares)
        )
        return after._replace(rho=balanced(state.rho, rho, state.round, *residuals), round=state.round + 1)

    def placed(
        state: ServerState, x0: Array, gradients: Array, mean: Callable[[Array], Array]
    ) -> tuple[ServerState, ClientState]:
        return state._replace(x0=x0, memory=gradients, mean=mean(gradients)), ClientState(gradients)

    return Algorithm(
        "fedpdm",
        rho,
        init_client,
        init_server,
        linear_term,
        client_update,
        server_update,
        broadcast=lambda state: Broadcast(state.x0, weight=state.rho),
        metric=metric,
        server_table="memory",
        whole_table=whole_table,
        solution=None if adaptive else solution,
        told=None if adaptive else told,
        gain=lambda travel: 2.0,  # y = x - lambda/rho, and lambda moves by -rho when x moves by 1
        placed=placed if server_rule == "dual-memory" and not whole_table else None,
    )


def _check(rho: float, server_rule: str, adaptive: bool) -> None:
    if not rho > 0:
        raise ConfigError(f"Expected algorithm.rho={rho} > 0: it is the weight of the proximal term.")
    if server_rule not in SERVER_RULE.values:
        raise ConfigError(f"Unknown algorithm.server_rule={server_rule!r}: choose one of {', '.join(SERVER_RULE.values)}.")
    if adaptive and server_rule != "dual-memory":
        raise ConfigError(
            f'algorithm.adaptive=true needs the clients\' duals at the server: set algorithm.server_rule="dual-memory" '
            f"(it is {server_rule!r})."
        )


class _Distances(NamedTuple):
    """Distances in a metric M, or plain ones where it is None."""

    metric: Array | None
    inverse: Array | None

    def forth(self, v: Array) -> Array:
        return v if self.metric is None else v @ self.metric

    def back(self, v: Array) -> Array:
        return v if self.inverse is None else v @ self.inverse

    def prox(self, penalty: Penalty, u: Array, step: Array | float, near: Array) -> Array:
        return penalty.prox(u, step) if self.metric is None else prox_in_metric(penalty, u, step, self.metric, near)


def relative_residuals(
    x: Array, duals: Array, move: Array, after: Array, rho: Array, mean: Callable[[Array], Array]
) -> tuple[Array, Array]:
    r"""Measure how far a round is from consensus and from rest, relative to the size of models and duals (Wohlberg, 2017).

    Primal: root of the mean of $\|x_i - x_0\|^2$ over that of the models; dual: $\rho \|x_0' - x_0\|$ over that of the duals.

    References
    ----------
    Wohlberg: "ADMM penalty parameter selection by residual balancing", 2017.
    """

    def size(vectors: Array) -> Array:
        return jnp.sqrt(mean(jnp.sum(vectors**2, axis=tuple(range(1, vectors.ndim)))))

    primal = size(x - after) / jnp.maximum(jnp.maximum(size(x), jnp.linalg.norm(after)), TINY)
    return primal, rho * jnp.linalg.norm(move) / jnp.maximum(size(duals), TINY)


def balanced(rho: Array, start: float, round_index: Array, primal: Array, dual: Array) -> Array:
    """Return the next rho: larger if the models disagree, smaller if x0 still moves.

    If the two residuals differ by a factor of 4 or more, rho moves by the root of their ratio, by a factor of 2 at most. It
    stays within 50 times the first rho, and is fixed after 50 rounds.

    Parameters
    ----------
    rho, start : Array, float
        The present rho and the first one.
    round_index : Array
        Rounds so far.
    primal, dual : Array
        The two figures of `relative_residuals`.

    Returns
    -------
    Array
        The next rho.

    References
    ----------
    Wohlberg: "ADMM penalty parameter selection by residual balancing", 2017.
    """
    ratio = jnp.sqrt(primal / jnp.maximum(dual, TINY))
    moves = ((ratio >= UNBALANCED) | (ratio <= 1 / UNBALANCED)) & (round_index < BALANCING_ROUNDS)
    moved = jnp.clip(rho * jnp.clip(ratio, 1 / STEP, STEP), start / RANGE, start * RANGE)
    return jnp.where(moves, moved, rho)
