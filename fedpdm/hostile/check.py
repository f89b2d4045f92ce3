"""The server's check of a message: could an honest client have sent it?

From a message and from what the client said before, the server computes the released local solution and the public point around
which an honest one lies. Their distance has limits (`fedpdm.privacy.band`). Everything here is public, pure and can be mapped.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.base import Broadcast
from fedpdm.privacy.band import Band, chi_most, limits, radius, rounding_in_sums
from fedpdm.problem.local_plan import step_size_at
from fedpdm.problem.objective import concave_gradient
from fedpdm.rounds import Setup, travel_at

__all__ = ["STRIKES", "Verdict", "check_message", "data_part", "largest_of", "next_state", "public_point", "reason"]

STRIKES = 3  # refusals after which a client is left out: an honest one gets there once in 10^18 tries
FLOAT32 = 1e-5  # relative error of the vectors that are subtracted
AGREE = 1e-3  # relative difference of the two vectors of a message that belong together
STEEPEST = 0.65  # of the non-convex term: 3 sqrt(3)/8, rounded up
WORST_HALF, WORST_BYTE = 2.0**-11, 1.01 / 254  # relative error of float16, and of int8 relative to the largest value


class Verdict(NamedTuple):
    """The finding on one message: it is accepted if `least <= distance <= most` and `apart <= together`."""

    distance: Array  # of the released solution from the public point
    least: Array
    most: Array
    apart: Array  # distance of the message's other vectors from what its model vector implies
    together: Array

    @property
    def accepted(self) -> Array:
        """Whether an honest client could have sent it; False for NaN."""
        inside = (self.distance >= self.least) & (self.distance <= self.most)
        return inside & (self.apart <= self.together)


def reason(verdict: Verdict) -> str:
    """Name the test that failed, the value and the limit.

    Parameters
    ----------
    verdict : Verdict
        The finding on one message.

    Returns
    -------
    str
        One sentence behind the name of the test.
    """
    distance, least, most, apart, together = (float(value) for value in verdict)
    if not distance <= most:
        return f"far: Its distance from the public point is {distance:.6g}; an honest client's is at most {most:.6g}."
    if not distance >= least:
        return f"noise: Its distance from the public point is {distance:.6g}; with its noise it is at least {least:.6g}."
    return f"parts: Its vectors contradict each other by {apart:.6g}; rounding explains at most {together:.6g}."


def largest_of(vector: Array) -> Array:
    """The largest absolute value, NaN if there is one. Two plain reductions cost a fraction of one over absolute values.

    Parameters
    ----------
    vector : Array
        Any numbers.

    Returns
    -------
    Array
        The value.
    """
    return jnp.maximum(jnp.max(vector), -jnp.min(vector))


def public_point(setup: Setup, band: Band, round_index: Any, broadcast: Broadcast, state: Any, support: Array | None) -> Array:
    """Where a client with a zero data gradient ends: a function of what it said before and of what it was sent.

    Parameters
    ----------
    setup, band : Setup, Band
        The settings, and the public facts about every local solve.
    round_index, broadcast : int, Broadcast
        The round and its broadcast.
    state : tree
        The client's state, as its messages tell it.
    support : Array or None
        The coordinates of the round.

    Returns
    -------
    Array
        The point.
    """
    x0, beta, algorithm = broadcast.x0, setup.problem.beta, setup.algorithm
    if band.mode == "client":  # what a client moves is cut around the model that it was sent
        return x0
    linear = algorithm.linear_term(state, broadcast)

    def direction(x: Array) -> Array:
        slope = linear + beta * concave_gradient(x) if beta else linear
        if setup.problem.penalty_by == "subgradient":
            slope = slope + jax.grad(setup.problem.penalty.value)(x)
        return slope if support is None else jnp.where(support, slope, 0.0)

    if band.mode == "certified" and not beta:
        return x0 - direction(x0) / algorithm.weight
    if band.mode == "linearised" or not beta:
        return x0 - travel_at(setup, round_index, band.steps) * direction(x0)
    step = step_size_at(setup.local, round_index)
    return jax.lax.fori_loop(0, band.steps, lambda _, x: x - step * (direction(x) + algorithm.weight * (x - x0)), x0)


def data_part(
    setup: Setup, band: Band, round_index: Any, broadcast: Broadcast, state: Any, message: Any, support: Array | None
) -> Array:
    """How far, and in which direction, a released solution is from its public point: what the rows did, plus noise.

    Parameters
    ----------
    setup, band, round_index, broadcast, state, support
        As in `public_point`.
    message : tree
        What arrived.

    Returns
    -------
    Array
        The difference, zero outside the support.
    """
    solution = setup.algorithm.solution
    assert solution is not None
    away = solution(message, state, broadcast) - public_point(setup, band, round_index, broadcast, state, support)
    return away if support is None else jnp.where(support, away, 0.0)


def check_message(
    setup: Setup,
    band: Band,
    round_index: Array | int,
    broadcast: Broadcast,
    state: Any,
    message: Any,
    sent: Any,
    sigma: Array,
    support: Array | None = None,
) -> Verdict:
    """Judge one client's message.

    Parameters
    ----------
    setup, band : Setup, Band
        The settings, and what is public about every local solve.
    round_index, broadcast : int, Broadcast
        The round, and what the client was sent.
    state : tree
        The client's state as its earlier messages tell it (`next_state`).
    message, sent : tree
        What arrived, and which coordinates (None: all).
    sigma : Array
        Standard deviation of the noise in the local solution.
    support : Array, optional
        The coordinates of the round, where all clients share them.

    Returns
    -------
    Verdict
        The finding.
    """
    algorithm, links, x0 = setup.algorithm, setup.links, broadcast.x0
    solution = algorithm.solution
    assert solution is not None
    mask = None if sent is None else algorithm.model_vector(sent)
    if forgets(setup, state, sent):
        return _without_memory(setup, band, round_index, broadcast, message, mask, sigma)
    point = public_point(setup, band, round_index, broadcast, state, support)
    step, distance_of = step_size_at(setup.local, round_index), travel_at(setup, round_index, band.steps)
    slope = jnp.linalg.norm(algorithm.linear_term(state, broadcast) + setup.problem.beta * concave_gradient(x0))
    reach = radius(band, step, slope)
    if band.mode == "certified" and setup.problem.beta:
        reach = reach + _residual(setup, broadcast, state, point) / band.curvature.lowest
    x = solution(message, state, broadcast)
    _, again = algorithm.client_update(state, broadcast, x, distance_of)
    _, central = algorithm.client_update(state, broadcast, point, distance_of)
    away = x - point if mask is None else jnp.where(mask, x - point, 0.0)
    count = x0.size if mask is None else jnp.sum(mask)
    noise = sigma / step if band.mode == "every-step" else sigma
    chosen_of = x0.size if links.kind == "noisy-topk" and mask is not None else None
    gain, middle = algorithm.model_vector(algorithm.gain(distance_of)), algorithm.model_vector(central)
    # together: a reduction costs little more over several vectors than over one
    distance, spot, central_length = jnp.sqrt(jnp.sum(jnp.stack([away, point, middle]) ** 2, axis=(1, 2)))
    length = central_length + gain * chi_most(x0.size, reach, sigma, band.failure)
    largest = largest_of(middle) + gain * _largest(reach, sigma, x0.size)
    coarse = _coarse(links.values, algorithm.model_vector(message), largest, length, gain * sigma, count) / gain
    # The dual that the server computes is off by about the last rounding: each message halves what is left of earlier ones.
    times = 2 if jax.tree.leaves(state) else 1
    slack = FLOAT32 * (jnp.linalg.norm(x0) + spot) + coarse * times
    coordinates = links.count(x0.size) if links.has_support else x0.size
    rounding = rounding_in_sums(band, coordinates)
    found = limits(band, reach, noise, step, count, chosen_of=chosen_of, slack=slack, rounding=rounding)
    return Verdict(distance, *found, *_agreement(setup, message, again, sent, mask))


def forgets(setup: Setup, state: Any, sent: Any) -> bool:
    """Whether the client's state moves where nothing is sent, so that the server cannot know it."""
    keeps = bool(jax.tree.leaves(state))
    return sent is not None and not setup.links.has_support and keeps and setup.algorithm.state_vector is None


def _residual(setup: Setup, broadcast: Broadcast, state: Any, point: Array) -> Array:
    """The gradient's norm of the problem without data at the point that stands for its minimiser."""
    pull = setup.algorithm.weight * (point - broadcast.x0) + setup.problem.beta * concave_gradient(point)
    return jnp.linalg.norm(pull + setup.algorithm.linear_term(state, broadcast))


def _largest(reach: Array, sigma: Array, size: int) -> Array:
    """A value that no coordinate of an honest vector exceeds, with probability 1e-6 at most."""
    return reach + sigma * jnp.sqrt(2 * jnp.log(2e6 * size))


def _coarse(kind: str, vector: Array, honest: Array, length: Array, sigma: Array, count: Any) -> Array:
    """What the rounding of values on the wire can move an honest vector by.

    Parameters
    ----------
    kind : str
        The setting compression.values.
    vector : Array
        What arrived. An int8 step follows from its largest value, which helps an attacker up to the honest limit only.
    honest, length : Array
        The largest value, and the norm, that an honest vector can have.
    sigma, count
        Standard deviation of the noise in it, and its coordinates.
    """
    if kind == "float32":
        return jnp.zeros(())
    half = WORST_HALF * length + 2.0**-25 * jnp.sqrt(jnp.float32(vector.size))
    if kind == "float16":
        return half
    each = WORST_BYTE * jnp.minimum(largest_of(vector), honest)
    if kind == "auto":
        each = jnp.minimum(each, sigma / 4)
    return jnp.maximum(each * jnp.sqrt(jnp.asarray(count, jnp.float32)), 0.0 if kind == "int8" else half)


def _agreement(setup: Setup, message: Any, again: Any, sent: Any, mask: Array | None) -> tuple[Array, Array]:
    """How far the other vectors of the message are from what its model vector implies, and how far rounding lets them be."""
    leaves, implied = jax.tree.leaves(message), jax.tree.leaves(again)
    if len(leaves) == 1:
        return jnp.zeros(()), jnp.zeros(())
    masks = [None] * len(leaves) if sent is None else jax.tree.leaves(sent)
    apart, together = jnp.zeros(()), jnp.zeros(())
    for here, there, own in zip(leaves, implied, masks, strict=True):
        both = jnp.ones(here.shape, bool) if own is None or mask is None else own & mask
        apart = apart + jnp.sum(jnp.where(both, here - there, 0.0) ** 2)
        size = jnp.linalg.norm(jnp.where(both, there, 0.0))
        largest = largest_of(there)
        coarse = {"float32": 0.0, "float16": WORST_HALF * 4 * size}.get(
            setup.links.values, 2 * WORST_BYTE * largest * jnp.sqrt(jnp.sum(both))
        )
        together = together + (AGREE * size + coarse) ** 2
    return jnp.sqrt(apart), jnp.sqrt(together)


def _without_memory(
    setup: Setup, band: Band, round_index: Any, broadcast: Broadcast, message: Any, mask: Array | None, sigma: Array
) -> Verdict:
    """The band of FedPDM's y around x0, where the dual is not known: it is bounded itself.

    $y - x_0 = ((1 - 2\\kappa) \\lambda - 2 (1 - \\kappa) \\bar g)/\\rho + 2 n$, and $\\lambda$ is a weighted mean of earlier
    $\\bar g$ plus $\\rho$ times noise that is forgotten at the rate $\\kappa$.
    """
    rho, x0 = setup.algorithm.weight, broadcast.x0
    kappa = 1 - rho * travel_at(setup, round_index, band.steps)
    widest = sigma * step_size_at(setup.local, 0) / step_size_at(setup.local, round_index)  # the noise of the first round
    slope = band.clip + STEEPEST * setup.problem.beta * jnp.sqrt(jnp.float32(x0.size))
    shift, memory = jnp.abs(1 - 2 * kappa), jnp.minimum(round_index + 1.0, 1 / jnp.maximum(1 - kappa**2, 1e-6))
    if band.mode == "certified":  # fewer steps are a larger kappa
        shift, memory = jnp.maximum(shift, 1.0), round_index + 1.0
    reach = (shift + 2 * (1 - kappa)) * slope / rho
    spread = jnp.sqrt(shift**2 * memory * widest**2 + 4 * sigma**2)
    if band.mode == "every-step":  # the noise of all steps, of which `sigma` is the last one's
        powers = (1 - rho * step_size_at(setup.local, round_index)) ** (2 * jnp.arange(band.steps))
        spread = spread * jnp.sqrt(jnp.sum(powers))
    most = reach + chi_most(x0.size, 0.0, spread, band.failure)
    y = setup.algorithm.model_vector(message)
    largest = largest_of(x0) + _largest(reach, spread, x0.size)
    coarse = _coarse(setup.links.values, y, largest, jnp.linalg.norm(x0) + most, 2 * sigma, x0.size)
    most = most * (1 + AGREE) + FLOAT32 * jnp.linalg.norm(x0) + coarse
    away = jnp.linalg.norm(y - x0 if mask is None else jnp.where(mask, y - x0, 0.0))
    inside = (rho * step_size_at(setup.local, 0) <= 1) & (band.mode != "every-step" or not setup.problem.beta)
    zero = jnp.zeros(())
    return Verdict(away, zero, jnp.where(inside, most, jnp.inf), zero, zero)


def next_state(setup: Setup, broadcast: Broadcast, state: Any, message: Any, sent: Any) -> Any:
    """A client's next state as its message tells it.

    Parameters
    ----------
    setup : Setup
        The settings.
    broadcast : Broadcast
        The broadcast of the round.
    state, message, sent : tree
        The state before, the message, and its mask (None: all coordinates).

    Returns
    -------
    tree
        The next state.
    """
    algorithm = setup.algorithm
    assert algorithm.told is not None
    news = algorithm.told(state, broadcast, message)
    if sent is None:
        return news
    vector = algorithm.state_vector or algorithm.model_vector
    return jax.tree.map(lambda new, old: jnp.where(vector(sent), new, old), news, state)
