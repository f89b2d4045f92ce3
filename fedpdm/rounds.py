"""One round, from both sides: all that an engine calls.

    client_round: solve locally | privacy boundary | update own state -> message
    server_round: aggregate -> prox -> next global model

Both are pure. The simulator maps `client_round` over clients; a deployment calls it for one client. Random keys come
from (seed, round, client), so a result does not depend on the engine.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.base import Algorithm, Reports
from fedpdm.algorithms.local import Examples, LocalInfo, LocalPlan, solve, step_size_at
from fedpdm.privacy.mechanism import Privacy, Release, no_privacy
from fedpdm.problem.objective import Problem, concave_gradient

__all__ = ["Setup", "ClientResult", "client_round", "server_round", "client_key"]


class Setup(NamedTuple):
    """What client and server agree on before training."""

    problem: Problem
    algorithm: Algorithm
    local: LocalPlan
    privacy: Privacy = no_privacy()


class ClientResult(NamedTuple):
    state: Any  # what the client keeps
    message: Array  # what leaves the client
    local_model: Array  # x_i, noised in the sound mechanism; a simulator uses it for diagnostics
    info: LocalInfo
    cost: Array  # (sensitivity / noise)^2 of what was released


def client_key(seed: int | Array, round_index: int | Array, client: int | Array) -> Array:
    """The client's key of this round."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), round_index), client)


def client_round(setup: Setup, examples: Examples, state: Any, x0: Array, round_index: Array | int, key: Array) -> ClientResult:
    """One client's part of a round."""
    algorithm, privacy = setup.algorithm, setup.privacy
    batch_key, noise_key = jax.random.split(key)
    step_size = step_size_at(setup.local, round_index)
    size = examples.sizes[examples.client]
    linear_term = algorithm.linear_term(state)
    slope = jnp.linalg.norm(linear_term + setup.problem.beta * concave_gradient(x0))
    release = Release(step_size, size, jnp.int32(setup.local.steps), slope, noise_key)
    gradient_noise, step_cost = privacy.gradient_noise(release) if privacy.gradient_noise else (None, 0.0)
    x, info = solve(
        setup.problem,
        setup.local,
        examples,
        x0,
        linear_term,
        algorithm.weight,
        step_size,
        batch_key,
        gradient_noise,
    )
    # The privacy boundary of the sound mechanism: below this line nothing but released values is used.
    x, solution_cost = privacy.release_solution(x, release)
    state, message = algorithm.client_update(state, x0, x)
    message, message_cost = privacy.release_message(message, release._replace(steps=info.steps))
    return ClientResult(state, message, x, info, step_cost + solution_cost + message_cost)


def server_round(setup: Setup, server_state: Any, reports: Reports) -> Any:
    """The server's part of a round."""
    return setup.algorithm.server_update(server_state, reports, setup.problem.penalty)
