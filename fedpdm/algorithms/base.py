"""An algorithm: a few pure functions around the one local solver.

Every algorithm lets a client work on

    min over x of   f_i(x) + <v_i, x> + (w/2) ||x - x0||^2

and differs in the linear term v_i, the weight w, the state of a client, and the server's use of the messages.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.aggregate import element_wise_mean
from fedpdm.compression.exchange import Broadcast, Message, Reports, like
from fedpdm.problem.penalties import Penalty
from fedpdm.problem.sums import add_up

__all__ = ["Algorithm", "Broadcast", "Reports", "element_wise_mean", "shared_sum", "replace_rows", "hear"]

# The state of a client and of the server is any pytree of arrays: the algorithm decides.
State = Any


class LinearTermFn(Protocol):
    """The v_i of the local problem, from the client's state and the broadcast."""

    def __call__(self, client_state: State, broadcast: Broadcast, /) -> Array: ...


class ClientUpdateFn(Protocol):
    """Turn the local solution x into the client's next state and its message; `travel` is that of `Reports`."""

    def __call__(self, client_state: State, broadcast: Broadcast, x: Array, travel: Array, /) -> tuple[State, Message]: ...


class ServerUpdateFn(Protocol):
    """Turn the round's reports into the server's next state.

    `server_state.x0` is the model that the clients received; in the result it is the next global model.
    """

    def __call__(self, server_state: State, reports: Reports, penalty: Penalty, /) -> State: ...


class Algorithm(NamedTuple):
    """A federated algorithm as pure functions (see the module's docstring).

    A new algorithm is one file that makes this tuple, and one row of `fedpdm.choices.ALGORITHMS`.

    Attributes
    ----------
    name
        The name in the settings.
    init_client, init_server
        `x0 -> client_state` and `(x0, number of clients) -> server_state` at the start.
    linear_term, client_update, server_update
        The three steps of a round.
    weight
        The w of the local problem.
    broadcast
        `server_state -> Broadcast`.
    silent
        `broadcast -> message` of a client with nothing to report. A coordinate that is not sent counts as this value.
    gain
        `travel -> tree like a message`: how far each of its vectors moves when the local solution moves by 1.
    metric
        A symmetric positive definite M [features, features]: the proximal term is (w/2) <x - x0, (x - x0) M>. None: M = I.
    model_vector
        `tree like a message -> the vector that the next model is made of`. The coordinates of it that arrive decide where x0
        moves, and the engines report its noise.
    state_vector
        `tree like a message -> the vector that describes the client's state`, or None. With it, the client's state changes
        only at the coordinates that were sent. An algorithm needs it if its server adds up changes of the states, since a
        change that is not sent would be lost.
    server_table
        The field of the server's state that has one row per client, or None if there is none. It may have no rows at all. A
        simulator of many clients loads the participants' rows only, so `server_update` must find rows by `reports.clients`
        alone.
    whole_table
        `server_update` reads every row of the server's table, not only those of the participants.
    solution
        `(message, client_state, broadcast) -> the local solution x` that the message was made of, or None. Without it the
        server cannot compare messages with those of honest clients.
    told
        `(client_state, broadcast, message) -> client_state`: the client's next state, from its message alone. It goes with
        `solution`.
    placed
        `(server_state, x0, gradients, mean) -> server_state, client_states`: all clients agree on x0 and have these gradients
        there; `mean` is the one over clients. If x0 is optimal, rounds from there do not leave it. None: not known.
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
    whole_table: bool = False
    solution: Callable[[Message, State, Broadcast], Array] | None = None
    told: Callable[[State, Broadcast, Message], State] | None = None
    placed: Callable[[State, Array, Array, Callable[[Array], Array]], tuple[State, State]] | None = None


def shared_sum(values: Array, present: Array, share: Array, shares: Array | None = None) -> Array:
    """Add up the vectors of the participants that are present, each times its share of the objective.

    Parameters
    ----------
    values, present : Array
        [participants, ...] vectors, and which of their coordinates are present.
    share : Array
        The share of every client, 1/N, if `shares` is None.
    shares : Array, optional
        [participants] the share of each.

    Returns
    -------
    Array
        The sum, of the shape of one vector.
    """
    arrived = jnp.where(present, values, 0.0)
    return share * add_up(arrived) if shares is None else add_up(arrived, shares)


def replace_rows(table: Array, clients: Array, rows: Array, present: Array) -> Array:
    """Replace the rows (or their coordinates) of the clients that are present.

    Parameters
    ----------
    table : Array
        [clients, ...] one row per client.
    clients : Array
        [participants] the participants' rows in the table.
    rows, present : Array
        [participants, ...] new rows, and which clients or coordinates are present.

    Returns
    -------
    Array
        The new table.
    """
    if present.ndim == 1:  # a place behind the table is dropped; so nothing of the table is read
        return table.at[jnp.where(present, clients, len(table))].set(rows, mode="drop")
    return table.at[clients].set(jnp.where(like(present, rows), rows, table[clients]))


def hear(heard: Array, reports: Reports, share: Array) -> Array:
    """Update the shares of the clients that were heard (see `fedpdm.algorithms.aggregate.remembered`).

    Parameters
    ----------
    heard : Array
        [clients] before the round.
    reports : Reports
        The messages of the round.
    share : Array
        1/N, the share of a client without its own.

    Returns
    -------
    Array
        [clients] after the round.
    """
    shares = jnp.broadcast_to(share, reports.present.shape) if reports.shares is None else reports.shares
    return replace_rows(heard, reports.clients, shares, reports.present)
