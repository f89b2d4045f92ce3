"""One round at the client and at the server: the functions that an engine calls.

    client_round: solve locally | privacy boundary | update own state -> message -> select -> values
    cohort_round: every member solves | privacy boundary: shares, sum | the cohort's state -> message
    server_round: element-wise mean -> prox -> next global model

All three are pure. The simulator maps `client_round` over clients; a deployment calls it for one client. Random keys come
from (seed, round, client), so a result does not depend on the engine.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.base import Algorithm, Broadcast, Reports
from fedpdm.algorithms.local import Examples, LocalInfo, LocalPlan, solve, step_size_at, travel
from fedpdm.compression.links import Links, Packed, pack, select
from fedpdm.draws import fold_in, split
from fedpdm.privacy.band import Band
from fedpdm.privacy.mechanism import Mechanism, Release, Released, no_privacy
from fedpdm.problem.losses import restricted
from fedpdm.problem.objective import Problem, concave_gradient

__all__ = ["Setup", "ClientResult", "Solved", "Stage", "client_round", "cohort_round", "open_cohort", "server_round"]
__all__ += ["client_key", "make_message", "message_noise", "solve_locally", "travel_at"]


class Setup(NamedTuple):
    """The choices that client and server agree on before training."""

    problem: Problem
    algorithm: Algorithm
    local: LocalPlan
    privacy: Mechanism = no_privacy()
    links: Links = Links()
    band: Band | None = None  # what the server holds messages against; None: nothing


class ClientResult(NamedTuple):
    """The result of a client's round."""

    state: Any  # what the client keeps
    packed: Packed  # what leaves the client
    local_model: Array  # x_i, noised in the sound mechanism; a simulator uses it for diagnostics
    info: LocalInfo
    cost: Array  # (sensitivity / noise)^2 of what was released
    noise: Array  # standard deviation of the noise in the message's model vector

    @property
    def message(self) -> Any:
        return self.packed.message


class Stage(Protocol):
    """The way a part of `client_round` is run: `(name, function) -> function` with the same arguments."""

    def __call__(self, name: str, function: Any, /) -> Any: ...


def _as_it_is(name: str, function: Any) -> Any:
    return function


def client_key(seed: int | Array, round_index: int | Array, client: int | Array) -> Array:
    """Return the client's key of this round.

    Parameters
    ----------
    seed, round_index, client : int or Array
        The three numbers that determine the key.

    Returns
    -------
    Array
        A JAX key.
    """
    return fold_in(fold_in(jax.random.key(seed), round_index), client)


def travel_at(setup: Setup, round_index: Array | int, steps: Array | int) -> Array:
    """Return how far the local steps of a round can move; see `fedpdm.algorithms.local.travel`.

    Parameters
    ----------
    setup : Setup
        Gives the weight of the proximal term and the step sizes.
    round_index, steps : Array or int
        The round and its number of local steps.

    Returns
    -------
    Array
        The length, a scalar.
    """
    return travel(setup.algorithm.weight, step_size_at(setup.local, round_index), jnp.asarray(steps))


class Solved(NamedTuple):
    """The private local solution and the public facts about it: everything that the privacy boundary gets."""

    x: Array
    info: LocalInfo
    release: Release
    step_cost: Array | float  # privacy cost of the noise that the steps contain
    choice_key: Array


def solve_locally(
    setup: Setup, examples: Examples, state: Any, broadcast: Broadcast, round_index: Any, key: Array, support: Array | None
) -> Solved:
    """Run the part of a round that sees data.

    Parameters
    ----------
    setup, examples, state, broadcast, round_index, key, support
        As in `client_round`.

    Returns
    -------
    Solved
        The private solution and its public facts.
    """
    algorithm, privacy, problem, x0 = setup.algorithm, setup.privacy, setup.problem, broadcast.x0
    batch_key, noise_key, choice_key = split(key, 3)
    step_size = step_size_at(setup.local, round_index)
    linear_term = algorithm.linear_term(state, broadcast)
    slope = jnp.linalg.norm(linear_term + problem.beta * concave_gradient(x0))
    release = Release(step_size, examples.slots, jnp.int32(setup.local.steps), slope, noise_key)
    gradient_noise, step_cost = privacy.gradient_noise(release) if privacy.gradient_noise else (None, 0.0)
    if support is not None:
        problem = problem._replace(loss=restricted(problem.loss, x0, support, setup.links.radius))
    x, info = solve(
        problem,
        setup.local,
        examples,
        x0,
        linear_term,
        algorithm.weight if broadcast.weight is None else broadcast.weight,
        step_size,
        batch_key,
        gradient_noise,
        support,
        algorithm.metric,
    )
    return Solved(x, info, release, step_cost, choice_key)


def make_message(
    setup: Setup,
    state: Any,
    broadcast: Broadcast,
    round_index: Any,
    solved: Solved,
    solution: Released,
    support: Array | None,
) -> ClientResult:
    """Run the part of a round after the boundary. Only the paper's mechanism uses private values of `solved`.

    Parameters
    ----------
    setup, state, broadcast, round_index, support
        As in `client_round`.
    solved : Solved
        What the boundary got.
    solution : Released
        The local solution behind the boundary.

    Returns
    -------
    ClientResult
        The client's next state and its message.
    """
    algorithm, privacy = setup.algorithm, setup.privacy
    x = solution.value if support is None else jnp.where(support, solution.value, broadcast.x0)
    steps = jnp.int32(setup.local.steps) if privacy.mechanism == "sound" else solved.info.steps
    distance = travel_at(setup, round_index, steps)
    gain = algorithm.gain(distance)
    new_state, message = algorithm.client_update(state, broadcast, x, distance)
    released = privacy.release_message(message, solved.release._replace(steps=solved.info.steps, gain=gain))
    sent = select(setup.links, message, released.value, algorithm.silent(broadcast), support, solved.choice_key)
    if sent is not None and algorithm.state_vector:
        told = algorithm.state_vector(sent)
        new_state = jax.tree.map(lambda new, old: jnp.where(told, new, old), new_state, state)
    noise = jax.tree.map(lambda factor: factor * (solution.noise + released.noise), gain)
    packed = pack(setup.links, released.value, sent, noise)
    cost = solved.step_cost + solution.cost + released.cost
    return ClientResult(new_state, packed, x, solved.info, cost, jnp.asarray(algorithm.model_vector(noise)))


def message_noise(setup: Setup, examples: float, round_index: int) -> float:
    """Return the standard deviation of the noise in each coordinate of a message's model vector.

    Parameters
    ----------
    setup : Setup
        The settings.
    examples : float
        The client's public size.
    round_index : int
        The round, from 0; all local steps are taken.

    Returns
    -------
    float
        The standard deviation, behind the gain of the message; 0 without noise.
    """
    steps, nothing = jnp.int32(setup.local.steps), jnp.zeros(1)
    gain = setup.algorithm.gain(travel_at(setup, round_index, steps))
    step_size = step_size_at(setup.local, round_index)
    release = Release(step_size, jnp.float32(examples), steps, jnp.float32(0.0), jax.random.key(0), gain)
    stages = setup.privacy.release(nothing, release), setup.privacy.release_message(nothing, release)
    return float(setup.algorithm.model_vector(gain)) * sum(float(stage.noise) for stage in stages)


def client_round(
    setup: Setup,
    examples: Examples,
    state: Any,
    broadcast: Broadcast,
    round_index: Array | int,
    key: Array,
    support: Array | None = None,
    stage: Stage = _as_it_is,
) -> ClientResult:
    """Run one client's part of a round.

    Parameters
    ----------
    setup : Setup
        The choices that client and server agree on.
    examples : Examples
        The client's rows.
    state : pytree
        The client's state before the round.
    broadcast : Broadcast
        The server's message.
    round_index : int or Array
        The number of the round.
    key : Array
        The client's key of this round (`client_key`).
    support : Array, optional
        The coordinates of the round, from `fedpdm.compression.links.shared_support`.
    stage : Stage
        How the parts before and after the privacy boundary are run. A simulator traces all three together; a real client
        compiles the two parts and draws its noise between them, on the host.

    Returns
    -------
    ClientResult
        The next state, the message, and figures for the record.
    """
    solved = stage("solve", solve_locally)(setup, examples, state, broadcast, round_index, key, support)
    # The privacy boundary of the sound mechanism: the code below this line uses released values only.
    solution = setup.privacy.release(solved.x, solved.release)
    solved = solved._replace(x=solution.value)
    return stage("message", make_message)(setup, state, broadcast, round_index, solved, solution, support)


def cohort_round(
    setup: Setup,
    members: Examples,
    present: Array,
    state: Any,
    broadcast: Broadcast,
    round_index: Array | int,
    keys: Array,
    support: Array | None = None,
    tamper: Callable[[Array, Array], Array] | None = None,
) -> ClientResult:
    """Run the round of a cohort whose members share the noise.

    The cohort is one virtual client, made from the members' sum alone.

    Parameters
    ----------
    setup
        A setup whose mechanism has `sums`.
    members
        The members' examples; `client` lists their rows in the arrays.
    present, keys
        Which members take part, and the key of each.
    state, broadcast, round_index, support
        Of the cohort, as in `client_round`.
    tamper
        `(contribution, member) -> contribution`, for simulated attackers inside the sum.

    Returns
    -------
    ClientResult
        The result of the virtual client.
    """
    sums, x0 = setup.privacy.sums, broadcast.x0
    assert sums is not None

    def add(carry: tuple[Array, ...], member: tuple[Array, Array, Array]) -> tuple[tuple[Array, ...], Solved]:
        words, weights, count, check = carry
        client, here, key = member
        own = members._replace(client=client)
        solved = solve_locally(setup, own, state, broadcast, round_index, key, support)
        # units, not rows: the bound of a contribution counts units
        moved, weight = sums.contribution(solved.x - x0, own.slots, solved.release)
        moved = moved if tamper is None else tamper(moved, client)
        # The privacy boundary of secure sums: a member's solution leaves as its share, and others see only the sum.
        share = sums.share(_gathered(moved, chosen), solved.release)
        words = words + jnp.where(here, share, jnp.uint32(0))
        # Whole numbers have no NaN, so a separate float carries the news of a solve that diverged.
        check = check + 0.0 * jnp.where(here, jnp.sum(solved.x), 0.0)
        return (words, weights + here * weight, count + here, check), solved._replace(x=jnp.float32(0.0))

    chosen = _chosen(setup, support)
    nothing = (
        jnp.zeros(x0.size if chosen is None else chosen.shape, jnp.uint32),
        jnp.float32(0.0),
        jnp.float32(0.0),
        jnp.float32(0.0),
    )
    (words, weight, count, check), each = jax.lax.scan(add, nothing, (members.client, present, keys))
    public = jax.tree.map(lambda leaf: leaf[0], each)
    return open_cohort(setup, words, (weight, count), public._replace(x=check), state, broadcast, round_index, support)


def _chosen(setup: Setup, support: Array | None) -> Array | None:
    """The places of the support's coordinates in a flat vector; None: all."""
    return None if support is None else jnp.nonzero(support.ravel(), size=setup.links.count(support.size))[0]


def _gathered(vector: Array, chosen: Array | None) -> Array:
    return vector.ravel() if chosen is None else vector.ravel()[chosen]


def open_cohort(
    setup: Setup,
    words: Array,
    of: tuple[Array, Array],
    public: Solved,
    state: Any,
    broadcast: Broadcast,
    round_index: Array | int,
    support: Array | None = None,
) -> ClientResult:
    """Turn the sum of a cohort's shares into its next state and message. Everything here is public.

    Parameters
    ----------
    words, of
        The sum; and the weights and the number of the members in it.
    public
        The public facts about the members' work. Its `x` is added; it is zero or NaN.
    setup, state, broadcast, round_index, support
        As in `cohort_round`.

    Returns
    -------
    ClientResult
        The result of the virtual client.
    """
    sums = setup.privacy.sums
    assert sums is not None
    opened, chosen, x0 = sums.opened(words, *of, public.release), _chosen(setup, support), broadcast.x0
    moved = opened.value if chosen is None else jnp.zeros(x0.size).at[chosen].set(opened.value)
    solution = opened._replace(value=x0 + moved.reshape(x0.shape) + public.x)
    return make_message(setup, state, broadcast, round_index, public._replace(x=solution.value), solution, support)


def server_round(setup: Setup, server_state: Any, broadcast: Broadcast, reports: Reports) -> Any:
    """Run the server's part of a round.

    Parameters
    ----------
    setup : Setup
        The choices that client and server agree on.
    server_state : pytree
        The server's state before the round.
    broadcast : Broadcast
        The message that the clients received.
    reports : Reports
        The clients' messages.

    Returns
    -------
    pytree
        The server's next state; its `x0` is the next global model.
    """
    whole = setup.problem.penalty
    # The prox of step 0 changes nothing. So runs whose clients take subgradients share the program of the others.
    share = 1.0 if setup.problem.penalty_by == "prox" else 0.0
    penalty = whole._replace(prox=lambda x, step: whole.prox(x, share * step))
    answer = setup.algorithm.server_update(server_state._replace(x0=broadcast.x0), reports, penalty)
    heard = jnp.any(reports.present)
    if setup.links.holds:
        heard = jnp.any(setup.algorithm.model_vector(reports.arrived()), axis=0)
    return answer._replace(x0=jnp.where(heard, answer.x0, server_state.x0))
