"""What an algorithm is: a few pure functions around the one local solver, and the table of all of them.

Every algorithm lets a client work on

    min over x of   f_i(x) + <v_i, x> + (w/2) ||x - x0||^2

and differs in the linear term v_i, the weight w, what a client keeps, and what the server does with the messages.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array

from fedpdm.problem.penalties import Penalty

__all__ = ["Algorithm", "Reports", "element_wise_mean", "replace_rows"]

# What a client or the server keeps is up to the algorithm: any pytree of arrays.
type_of_state = Any


class Reports(NamedTuple):
    """The messages of one round as the server sees them, stacked over the participants."""

    messages: Array  # [participants, *model]
    clients: Array  # [participants], which client each message is from
    present: Array  # [participants] bool: False where no valid message arrived


class LinearTermFn(Protocol):
    """The v_i of the local problem, from what the client keeps."""

    def __call__(self, client_state: type_of_state, /) -> Array: ...


class ClientUpdateFn(Protocol):
    """From the local solution to the client's next state and its message."""

    def __call__(self, client_state: type_of_state, x0: Array, x: Array, /) -> tuple[type_of_state, Array]: ...


class ServerUpdateFn(Protocol):
    """From the round's reports to the server's next state. `server_state.x0` is the global model."""

    def __call__(self, server_state: type_of_state, reports: Reports, penalty: Penalty, /) -> type_of_state: ...


class Algorithm(NamedTuple):
    """A federated algorithm as pure functions (see the module's docstring).

    A new one is one file that makes this tuple, and one line in `fedpdm.algorithms.ALGORITHMS`.
    """

    name: str
    weight: float
    init_client: Callable[[Array], type_of_state]
    init_server: Callable[[Array, int], type_of_state]
    linear_term: LinearTermFn
    client_update: ClientUpdateFn
    server_update: ServerUpdateFn


def _like(flags: Array, values: Array) -> Array:
    return flags.reshape(flags.shape + (1,) * (values.ndim - flags.ndim))


def element_wise_mean(values: Array, present: Array) -> Array:
    """Mean over the participants that are present; zero where there is none.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> element_wise_mean(jnp.array([[1.0], [3.0], [9.0]]), jnp.array([True, True, False])).tolist()
    [2.0]
    """
    flags = _like(present, values)
    count = jnp.maximum(jnp.sum(flags, axis=0), 1)
    return jnp.sum(jnp.where(flags, values, 0.0), axis=0) / count


def replace_rows(table: Array, clients: Array, rows: Array, present: Array) -> Array:
    """`table` with the rows of the clients that are present replaced."""
    return table.at[clients].set(jnp.where(_like(present, rows), rows, table[clients]))
