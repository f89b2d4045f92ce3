"""What an algorithm is: a few pure functions around the one local solver.

Every algorithm lets a client work on

    min over x of   f_i(x) + <v_i, x> + (w/2) ||x - x0||^2

and differs in the linear term v_i, the weight w, what a client keeps, and what the server does with the messages.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.compression.exchange import Broadcast, Message, Reports, like
from fedpdm.problem.penalties import Penalty

__all__ = ["Algorithm", "Broadcast", "Reports", "element_wise_mean", "shared_sum", "replace_rows"]

# What a client or the server keeps is up to the algorithm: any pytree of arrays.
State = Any


class LinearTermFn(Protocol):
    """The v_i of the local problem, from what the client keeps and what it was sent."""

    def __call__(self, client_state: State, broadcast: Broadcast, /) -> Array: ...


class ClientUpdateFn(Protocol):
    """From the local solution x to the client's next state and its message; `travel` is that of `Reports`."""

    def __call__(self, client_state: State, broadcast: Broadcast, x: Array, travel: Array, /) -> tuple[State, Message]: ...


class ServerUpdateFn(Protocol):
    """From the round's reports to the server's next state.

    `server_state.x0` is the model that the clients were sent; in the answer it is the next global model.
    """

    def __call__(self, server_state: State, reports: Reports, penalty: Penalty, /) -> State: ...


class Algorithm(NamedTuple):
    """A federated algorithm as pure functions (see the module's docstring).

    A new one is one file that makes this tuple, and one row of `fedpdm.choices.ALGORITHMS`.

    Attributes
    ----------
    weight
        The w of the local problem.
    broadcast
        `server_state -> Broadcast`.
    silent
        `broadcast -> message` of a client that has nothing to say; what a coordinate that is not sent stands for.
    gain
        `travel -> tree like a message`: how far each of its vectors moves when the local solution moves by 1.
    metric
        A symmetric positive definite M [features, features]: the proximal term is (w/2) <x - x0, (x - x0) M>. None: M = I.
    model_vector
        `tree like a message -> its vector that the next model is made of`: its coordinates that arrive decide where x0 moves,
        and its noise is what the engines report.
    state_vector
        `tree like a message -> its vector that tells of the client's state`, or None. With it, the state stays as it is where
        that vector was not sent: a must where the server adds up what it hears of the states, as what it does not hear would
        be lost for good.
    server_table
        The field of the server's state that has one row per client, or None if there is none. It may have no rows at all. A
        simulator of many clients brings in the participants' rows only, so `server_update` must address rows by
        `reports.clients` alone.
    """

    name: str
    weight: float
    init_client: Callable[[Array], State]
    init_server: Callable[[Array, int], State]
    linear_term: LinearTermFn
    client_update: ClientUpdateFn
    server_update: ServerUpdateFn
    broadcast: Callable[[State], Broadcast] = lambda server_state: Broadcast(server_state.x0)
    silent: Callable[[Broadcast], Message] = lambda broadcast: broadcast.x0
    gain: Callable[[Array], Message] = lambda travel: 1.0
    metric: Array | None = None
    model_vector: Callable[[Message], Array] = lambda message: jax.tree.leaves(message)[0]
    state_vector: Callable[[Message], Array] | None = None
    server_table: str | None = None


def element_wise_mean(values: Array, present: Array, shares: Array | None = None) -> Array:
    """Mean over the participants that are present, coordinate by coordinate if so told; zero where there is none.

    With `shares` it is the mean with these weights.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> element_wise_mean(jnp.array([[1.0], [3.0], [9.0]]), jnp.array([True, True, False])).tolist()
    [2.0]
    """
    flags = like(present, values)
    if shares is not None:
        weights = jnp.where(flags, like(shares, values), 0.0)
        total = jnp.sum(weights, axis=0)
        return jnp.sum(weights * jnp.where(flags, values, 0.0), axis=0) / jnp.where(total > 0, total, 1.0)
    count = jnp.maximum(jnp.sum(flags, axis=0), 1)
    return jnp.sum(jnp.where(flags, values, 0.0), axis=0) / count


def shared_sum(values: Array, present: Array, share: Array, shares: Array | None = None) -> Array:
    """Sum over the participants that are present, each times its share of the objective: `share` = 1/N, or its own."""
    if shares is None:
        return share * jnp.sum(jnp.where(present, values, 0.0), axis=0)
    return jnp.sum(like(shares, values) * jnp.where(present, values, 0.0), axis=0)


def replace_rows(table: Array, clients: Array, rows: Array, present: Array) -> Array:
    """`table` with the rows (or the coordinates) of the clients that are present replaced."""
    return table.at[clients].set(jnp.where(like(present, rows), rows, table[clients]))
