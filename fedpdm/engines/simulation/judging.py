"""A simulated round with attackers and with the server's check of messages: who attacks, what arrives, what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.base import Broadcast
from fedpdm.compression.messages import LARGEST
from fedpdm.engines.simulation.state import SimulationState, Who
from fedpdm.hostile.attacks import Attack, tampered
from fedpdm.hostile.check import STRIKES, Verdict, check_message
from fedpdm.rounds import ClientResult, Setup, client_key

__all__ = ["attacked", "judged", "without_struck", "watches"]


def watches(setup: Setup, attack: Attack | None) -> bool:
    """Whether messages are looked at before they are used; else every message counts.

    Parameters
    ----------
    setup : Setup
        The settings.
    attack : Attack or None
        The attack.

    Returns
    -------
    bool
        True with a band or an attack.
    """
    return setup.band is not None or attack is not None


def without_struck(setup: Setup, who: Who, strikes: Array | None) -> Who:
    """The participants without those whose messages were refused too often; in a sum nobody knows whose fault it was.

    Parameters
    ----------
    setup : Setup
        The settings.
    who : Who
        The participants.
    strikes : Array or None
        [clients] refused messages.

    Returns
    -------
    Who
        The participants that are left.
    """
    return (
        who if strikes is None or setup.privacy.sums else who._replace(present=who.present & (strikes[who.clients] < STRIKES))
    )


def _verdicts(
    setup: Setup, t: Array, broadcast: Broadcast, states: Any, result: ClientResult, support: Array | None
) -> Verdict | None:
    band, gain = setup.band, setup.algorithm.model_vector(setup.algorithm.gain(jnp.float32(1.0)))
    if band is None:
        return None

    def judge(state: Any, message: Any, sent: Any, noise: Array) -> Verdict:
        return check_message(setup, band, t, broadcast, state, message, sent, noise / gain, support)

    return jax.vmap(judge)(states, result.packed.message, result.packed.sent, result.noise)


def attacked(
    setup: Setup,
    attack: Attack | None,
    t: Array,
    seed: Array,
    state: SimulationState,
    who: Who,
    broadcast: Broadcast,
    result: ClientResult,
    support: Array | None,
) -> ClientResult:
    """What the participants send when some of them attack.

    Parameters
    ----------
    setup, attack, t, seed, broadcast, support
        Settings, attack, and the public values of the round.
    state, who : SimulationState, Who
        The state before the round, and the participants.
    result : ClientResult
        Honest results of all participants.

    Returns
    -------
    ClientResult
        The results, with those of the attackers changed.
    """
    if attack is None:
        return result
    states = jax.tree.map(lambda leaf: leaf[who.rows], state.clients)
    attacks = attack.among(who.clients)
    keys = jax.vmap(lambda client: jax.random.split(client_key(seed, t, client), 3)[2])(who.clients)
    verdicts = _verdicts(setup, t, broadcast, states, result, support) if attack.kind == "strongest" else None
    honest = who.present & ~attacks
    return tampered(setup, attack, t, broadcast, states, result, keys, attacks, honest, verdicts, support)


def judged(
    setup: Setup,
    t: Array,
    state: SimulationState,
    places: Array,
    broadcast: Broadcast,
    result: ClientResult,
    support: Array | None,
) -> Array:
    """[senders]: whose message is used. A message that is not finite or beyond the wire's limit never is.

    Parameters
    ----------
    setup, t, broadcast, support
        Settings and the public values of the round.
    state : SimulationState
        The state before the round.
    places : Array
        [senders] rows of the senders' states.
    result : ClientResult
        Results of the senders.

    Returns
    -------
    Array
        [senders] flags.
    """
    leaves = jax.tree.leaves(result.packed.message)
    fits = [jnp.all(jnp.abs(leaf) <= LARGEST, axis=tuple(range(1, leaf.ndim))) for leaf in leaves]
    used = jnp.all(jnp.stack(fits), axis=0)
    states = jax.tree.map(lambda leaf: leaf[places], state.clients)
    verdicts = _verdicts(setup, t, broadcast, states, result, support)
    return used if verdicts is None else used & verdicts.accepted
