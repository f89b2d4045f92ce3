"""Simulated attackers: what they do to their rows, to their solutions, or to their noise.

An attacker follows the protocol in everything but its attack, so its messages are well formed. It is for seeing what settings
withstand, never for a deployment.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.algorithms.base import Broadcast
from fedpdm.data.federation import Federation
from fedpdm.data.ragged import Ragged
from fedpdm.hostile.check import Verdict, public_point
from fedpdm.privacy.mechanism import Release, Released
from fedpdm.rounds import ClientResult, Setup, Solved, Stage, make_message

__all__ = ["ON_ROWS", "Attack", "attackers_of", "poisoned", "member_tamper", "tampered", "without_noise"]

ON_ROWS = ("label-flip", "one-class")
ON_SOLUTIONS = ("sign-flip", "scaling", "constant")
INSIDE = 0.999  # of the limit, where the strongest attack that passes stays


class Attack(NamedTuple):
    """Who attacks, and how.

    Attributes
    ----------
    kind : str
        A value of the setting attack.kind.
    clients : tuple of int
        The attackers.
    scale : float
        How large: see the setting attack.scale.
    of : int
        The number of all clients.
    unchecked : str, optional
        Why messages are not checked; None: they are.
    """

    kind: str
    clients: tuple[int, ...]
    scale: float
    of: int
    unchecked: str | None = None

    def among(self, clients: Array) -> Array:
        """Which of these clients attack."""
        flags = np.zeros(self.of, bool)
        flags[list(self.clients)] = True
        return jnp.asarray(flags)[clients]


def attackers_of(count: int, clients: int, seed: int) -> tuple[int, ...]:
    """Draw who attacks: the first ones of a random order, so that more attackers include fewer ones.

    Parameters
    ----------
    count, clients : int
        Number of attackers, and of all clients.
    seed : int
        Seed of the run.

    Returns
    -------
    tuple of int
        The attackers.

    >>> set(attackers_of(2, 10, 0)) < set(attackers_of(3, 10, 0))
    True
    """
    return tuple(int(client) for client in np.random.default_rng([seed, 2**31 + 1]).permutation(clients)[:count])


def poisoned(attack: Attack, federation: Federation) -> Federation:
    """The federation with the attackers' labels as their attack wants them.

    Parameters
    ----------
    attack : Attack
        The attack.
    federation : Federation
        The clients' examples.

    Returns
    -------
    Federation
        The examples; those of honest clients are as they were.
    """
    if attack.kind not in ON_ROWS:
        return federation
    last, given = federation.classes - 1, federation.labels
    ragged = isinstance(given, Ragged)
    labels = (given.rows if ragged else given).copy()
    for client in attack.clients:
        start = int(given.starts[client]) if ragged else 0
        own = (labels if ragged else labels[client])[start : start + int(federation.sizes[client])]  # a view
        own[:] = last - own if attack.kind == "label-flip" else 0
    return federation._replace(labels=cast(np.ndarray, Ragged(labels, given.sizes)) if ragged else labels)


def without_noise(attacks: Array) -> Stage:
    """For `client_round`: an attacker sends its solution without the noise.

    Parameters
    ----------
    attacks : Array
        Whether this client attacks.

    Returns
    -------
    Stage
        The stage function.
    """
    held: dict[str, Array] = {}

    def stage(name: str, function: Any) -> Any:
        def solve(*arguments: Any) -> Solved:
            solved = function(*arguments)
            held["x"] = solved.x
            return solved

        def message(setup: Setup, state: Any, broadcast: Any, t: Any, solved: Solved, solution: Released, support: Any) -> Any:
            value = jnp.where(attacks, held["x"], solution.value)
            return function(setup, state, broadcast, t, solved._replace(x=value), solution._replace(value=value), support)

        return solve if name == "solve" else message

    return stage


def _moved(attack: Attack, x: Array, x0: Array) -> Array:
    if attack.kind == "constant":
        return jnp.full_like(x, attack.scale)
    return x0 + (attack.scale if attack.kind == "scaling" else -attack.scale) * (x - x0)


def member_tamper(attack: Attack | None, x0: Array) -> Callable[[Array, Array], Array] | None:
    """For `cohort_round`: `(contribution, client) -> contribution` of a member that attacks inside a sum.

    Parameters
    ----------
    attack : Attack or None
        The attack.
    x0 : Array
        The model that the members were sent.

    Returns
    -------
    callable or None
        None if nobody tampers with solutions.
    """
    if attack is None or attack.kind not in ON_SOLUTIONS:
        return None
    return lambda moved, client: jnp.where(attack.among(client), _moved(attack, x0 + moved, x0) - x0, moved)


def tampered(
    setup: Setup,
    attack: Attack,
    t: Array,
    broadcast: Broadcast,
    states: Any,
    result: ClientResult,
    keys: Array,
    attacks: Array,
    honest: Array,
    verdicts: Verdict | None,
    support: Array | None,
) -> ClientResult:
    """The results of a round's clients, with the attackers' solutions changed and their messages made anew.

    Parameters
    ----------
    setup, attack, t, broadcast, support
        Of the round.
    states, result, keys : tree
        Of all participants: states before the round, what they would have sent, and the keys of their choices.
    attacks, honest : Array
        [participants] who attacks, and who is present and does not.
    verdicts : Verdict or None
        Those on the honest messages, which the strongest attack reads its limits from.

    Returns
    -------
    ClientResult
        The results.
    """
    x0 = broadcast.x0
    if attack.kind == "strongest":
        band = setup.band
        assert band is not None
        assert verdicts is not None
        # over the keys too: clients of some algorithms keep no state
        points = jax.vmap(lambda own, _: public_point(setup, band, t, broadcast, own, support))(states, keys)
        towards = jnp.sum(jnp.where(honest[:, None, None], result.local_model - points, 0.0), axis=0)
        towards = towards / jnp.maximum(jnp.linalg.norm(towards), 1e-30)
        bad = points - INSIDE * verdicts.most[:, None, None] * towards
    elif attack.kind in ON_SOLUTIONS:
        bad = _moved(attack, result.local_model, x0)
    else:
        return result

    def again(x: Array, state: Any, info: Any, key: Array, noise: Array) -> ClientResult:
        solved = Solved(x, info, _nothing(setup, key), 0.0, key)
        gain = setup.algorithm.model_vector(setup.algorithm.gain(jnp.float32(1.0)))
        return make_message(setup, state, broadcast, t, solved, Released(x, jnp.float32(0.0), noise / gain), support)

    made = jax.vmap(again)(bad, states, result.info, keys, result.noise)

    def chosen(new: Array, old: Array) -> Array:
        return jnp.where(attacks.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    return jax.tree.map(chosen, made, result)._replace(cost=result.cost, info=result.info)


def _nothing(setup: Setup, key: Array) -> Release:
    return Release(jnp.float32(setup.local.step_size), jnp.float32(1.0), jnp.int32(setup.local.steps), jnp.float32(0.0), key)
