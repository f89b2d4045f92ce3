"""A simulated round with attackers and with the server's check of messages: who attacks, what arrives, what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.base import Broadcast
from fedpdm.compression.messages import LARGEST
from fedpdm.draws import split
from fedpdm.engines.simulation.state import SimulationState, Who
from fedpdm.hostile.attacks import Attack, tampered
from fedpdm.hostile.check import STRIKES, Verdict, check_message, largest_of
from fedpdm.hostile.comparing import compare_results, left_out, more_evidence, standing
from fedpdm.rounds import ClientResult, Setup, client_key

__all__ = ["against_members", "attacked", "judged", "traces", "without_struck", "watches"]


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


def traces(setup: Setup, fixed_cohorts: bool) -> bool:
    """Whether members of contradicted sums are traced: only rosters that change tell one member from another.

    Parameters
    ----------
    setup : Setup
        The settings.
    fixed_cohorts : bool
        Whether cohorts keep their members.

    Returns
    -------
    bool
        True if evidence is kept.
    """
    return setup.band is not None and setup.band.compared and not fixed_cohorts


def without_struck(setup: Setup, who: Who, state: SimulationState) -> Who:
    """The participants without those whose messages were refused too often.

    Of a sum nobody knows whose fault it was, unless members are traced. Who is left out moves to the end of the round's list,
    so that the others form whole cohorts; a cohort that has too few members stays closed.

    Parameters
    ----------
    setup : Setup
        The settings.
    who : Who
        The participants.
    state : SimulationState
        The state before the round.

    Returns
    -------
    Who
        The participants that are left.
    """
    if state.evidence is not None:
        present = who.present & ~left_out(state.evidence)[who.clients]
        order = jnp.argsort(~present, stable=True)
        return who._replace(clients=who.clients[order], present=present[order], blocks=who.blocks[order])
    if state.strikes is None or setup.privacy.sums:
        return who
    return who._replace(present=who.present & (state.strikes[who.clients] < STRIKES))


def against_members(evidence: Array | None, who: Who, opened: Array, against: Array) -> Array | None:
    """The evidence against every client after a round of sums.

    Parameters
    ----------
    evidence : Array or None
        [clients] so far; None: members are not traced.
    who : Who
        The members, cohort by cohort.
    opened, against : Array
        [cohorts] flags.

    Returns
    -------
    Array or None
        [clients] the evidence.
    """
    if evidence is None:
        return None
    members = len(who.clients) // len(opened)
    present, bad = who.present & jnp.repeat(opened, members), jnp.repeat(against, members)
    after = more_evidence(evidence[who.clients], present, bad)
    return evidence.at[who.clients].add(jnp.where(present, after - evidence[who.clients], 0.0))


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
    keys = jax.vmap(lambda client: split(client_key(seed, t, client), 3)[2])(who.clients)
    verdicts = _verdicts(setup, t, broadcast, states, result, support) if attack.kind == "strongest" else None
    honest = who.present & ~attacks
    return tampered(setup, attack, t, broadcast, states, result, keys, attacks, honest, verdicts, support)


def judged(
    setup: Setup,
    t: Array,
    state: SimulationState,
    who: Who,
    sends: Array,
    broadcast: Broadcast,
    result: ClientResult,
    support: Array | None,
) -> tuple[Array, Array]:
    """[senders]: whose message is used, and whose sum is against those of others.

    A message that is not finite or beyond the wire's limit is never used.

    Parameters
    ----------
    setup, t, broadcast, support
        Settings and the public values of the round.
    state : SimulationState
        The state before the round.
    who, sends : Who, Array
        The participants; and [senders] who sends.
    result : ClientResult
        Results of the senders.

    Returns
    -------
    Array, Array
        [senders] flags.
    """
    leaves = jax.tree.leaves(result.packed.message)
    fits = [jax.vmap(largest_of)(leaf) <= LARGEST for leaf in leaves]
    used = jnp.all(jnp.stack(fits), axis=0)
    states = jax.tree.map(lambda leaf: leaf[who.rows], state.clients)
    verdicts = _verdicts(setup, t, broadcast, states, result, support)
    if verdicts is None:
        return used, ~used
    used = used & verdicts.accepted
    if setup.band is None or not setup.band.compared:
        return used, ~used
    votes = None
    if state.evidence is not None:
        votes = standing(*(part.reshape(len(used), -1) for part in (state.evidence[who.clients], who.present)))
    found = compare_results(setup, setup.band, t, broadcast, states, result, support, used & sends, votes)
    return used & ~found.contradicted, ~used | found.against
