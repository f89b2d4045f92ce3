"""One round, from both sides: all that an engine calls.

    client_round: solve locally -> update own state -> message
    server_round: aggregate -> prox -> next global model

Both are pure. The simulator maps `client_round` over clients; a deployment calls it for one client. Random keys come
from (seed, round, client), so a result does not depend on the engine.
"""

from typing import Any, NamedTuple

import jax
from jax import Array

from fedpdm.algorithms.base import Algorithm, Reports
from fedpdm.algorithms.local import Examples, LocalInfo, LocalPlan, solve, step_size_at
from fedpdm.problem.objective import Problem

__all__ = ["Setup", "ClientResult", "client_round", "server_round", "client_key", "sample_participants"]


class Setup(NamedTuple):
    """What client and server agree on before training."""

    problem: Problem
    algorithm: Algorithm
    local: LocalPlan


class ClientResult(NamedTuple):
    state: Any  # what the client keeps
    message: Array  # what leaves the client
    local_model: Array  # x_i, which never leaves the client; a simulator uses it for diagnostics
    info: LocalInfo


def client_key(seed: int | Array, round_index: int | Array, client: int | Array) -> Array:
    """The client's key of this round. Client numbers are shifted by one: 0 is the server's own draw."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), round_index), client + 1)


def sample_participants(seed: int | Array, round_index: int | Array, clients: int, participants: int) -> Array:
    """`participants` different clients of `clients`, uniformly without replacement."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), round_index), 0)
    return jax.random.permutation(key, clients)[:participants]


def client_round(
    setup: Setup, examples: Examples, state: Any, x0: Array, round_index: Array | int, key: Array
) -> ClientResult:
    """One client's part of a round."""
    algorithm = setup.algorithm
    x, info = solve(
        setup.problem,
        setup.local,
        examples,
        x0,
        algorithm.linear_term(state),
        algorithm.weight,
        step_size_at(setup.local, round_index),
        key,
    )
    state, message = algorithm.client_update(state, x0, x)
    return ClientResult(state, message, x, info)


def server_round(setup: Setup, server_state: Any, reports: Reports) -> Any:
    """The server's part of a round."""
    return setup.algorithm.server_update(server_state, reports, setup.problem.penalty)
