r"""Sums against sums: what the other cohorts of a round say about one of them, and what rosters say about single members.

The band (`fedpdm.hostile.check`) holds for the sum of every honest cohort, so it is wide: k members that all differ from
everybody else must fit into it. One member of k that sends ten times its update with the sign flipped fits too. Cohorts that
were drawn at random are alike, however, and their noise is known. So a sum is *contradicted* if its data part is far longer
than that of the shorter sums of its round, or if it points against most of them.

A member that is in such sums more often than chance explains, under rosters that are new in every round, is left out.

Formal guarantee
----------------
`compare` has none for cohorts whose rows differ without measure: that is why it is a choice (`cohorts.compare`).
`more_evidence`: an honest member is left out with a probability of at most 1/`ENOUGH` in a whole run, if rosters are drawn
uniformly at random and honest members are alike in how their presence changes the verdict on a sum. Proof:
docs/hostile-clients.md.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.base import Broadcast
from fedpdm.hostile.check import data_part
from fedpdm.privacy.band import FAILURE, Band, chi_most
from fedpdm.rounds import ClientResult, Setup

__all__ = ["ENOUGH", "Compared", "compare", "compare_results", "left_out", "more_evidence", "standing"]

REACH = 2.0  # times the length of the shorter sums of a round, noise apart
SHORTER = 0.25  # the quantile of lengths that stands for the shorter sums: an honest one with up to 3/4 hostile cohorts
DEVIATIONS = 3.0  # of the noise that a sum must go against the others
ENOUGH = 1e3  # evidence after which a member is left out
STAKE = 0.75  # of the evidence on the next sum being against the others
TINY = 1e-30


class Compared(NamedTuple):
    """[cohorts] each: sums that the others of their round contradict, and sums that are against them at all."""

    contradicted: Array  # beyond what noise explains: not used
    against: Array  # noise may explain it in one round, but not again and again


def compare(moves: Array, opened: Array, sigma: Array, coordinates: int, votes: Array | None = None) -> Compared:
    r"""Tell which sums the others of their round contradict.

    Let $v_c = m_c + \sigma g_c$ be the noised move of cohort c from its public point. A sum is too long if a data part $m_c$ of
    twice the length of the shorter sums' and its noise do not explain $\|v_c\|$. The others are split in two sides by the
    leading eigenvector of their cosines, and the side with more votes is right. With $\bar v$ the mean of all others on the
    right side, a sum is against them if it is too long or $\langle v_c, \bar v\rangle < 0$, and contradicted if it is too long
    or $\langle v_c, \bar v\rangle < -3 \sigma \|\bar v\|$.

    Parameters
    ----------
    moves : Array
        [cohorts, coordinates] the moves $v_c$; zeros where nothing was sent.
    opened : Array
        [cohorts] the sums that were opened and are within the band.
    sigma : Array
        [cohorts] standard deviation of the noise of every move.
    coordinates : int
        d, the coordinates that were sent.
    votes : Array, optional
        [cohorts] what a sum counts; None: all the same.

    Returns
    -------
    Compared
        Flags; False for sums that were not opened.

    Examples
    --------
    >>> moves = jnp.array([[1.0, 0.1], [1.0, -0.1], [0.9, 0.0], [-0.9, 0.1], [9.0, 0.0]])
    >>> compare(moves, jnp.ones(5, bool), jnp.full(5, 1e-3), 2).contradicted.tolist()
    [False, False, False, True, True]
    """
    products, squares = moves @ moves.T, jnp.sum(moves**2, axis=1)
    excess = squares - coordinates * sigma**2  # the square of the data part's length, up to noise
    typical = jnp.sqrt(jnp.maximum(jnp.nanquantile(jnp.where(opened, excess, jnp.nan), SHORTER), 0.0))
    long = jnp.sqrt(squares) > chi_most(coordinates, REACH * typical, sigma, FAILURE)
    fits = opened & ~long
    lengths = jnp.where(fits, jnp.sqrt(squares), jnp.inf)
    cosines = products / jnp.maximum(jnp.outer(lengths, lengths), TINY) * ~jnp.eye(len(moves), dtype=bool)
    leading = jnp.linalg.eigh(jnp.where(fits[:, None] & fits[None, :], cosines, 0.0))[1][:, -1]
    side = jnp.where(fits, jnp.sign(leading), 0.0)
    side = side * jnp.where(jnp.sum(side if votes is None else side * votes) < 0, -1.0, 1.0)
    right = (side > 0)[None, :] & ~jnp.eye(len(moves), dtype=bool)  # the others of every sum
    mean = right / jnp.maximum(jnp.sum(right, axis=1, keepdims=True), 1)
    agreement = jnp.sum(mean * products, axis=1)
    length = jnp.sqrt(jnp.maximum(jnp.sum((mean @ products) * mean, axis=1), 0.0))
    return Compared(opened & (long | (agreement < -DEVIATIONS * sigma * length)), opened & (long | (agreement < 0)))


def compare_results(
    setup: Setup,
    band: Band,
    round_index: Any,
    broadcast: Broadcast,
    states: Any,
    result: ClientResult,
    support: Array | None,
    usable: Array,
    votes: Array | None,
) -> Compared:
    """Tell which cohorts' results the others of their round contradict; see `compare`.

    Parameters
    ----------
    setup, band, round_index, broadcast, support
        As in `fedpdm.hostile.check.check_message`.
    states, result : tree, ClientResult
        The cohorts' states before the round, and what their sums make of them; stacked over cohorts.
    usable : Array
        [cohorts] the sums that were opened and are within the band.
    votes : Array or None
        As in `compare`.

    Returns
    -------
    Compared
        Flags.
    """
    # over the noise too: cohorts of some algorithms keep no state
    moves = jax.vmap(lambda own, message, _: data_part(setup, band, round_index, broadcast, own, message, support))(
        states, result.packed.message, result.noise
    )
    gain = setup.algorithm.model_vector(setup.algorithm.gain(jnp.float32(1.0)))
    size = broadcast.x0.size
    coordinates = setup.links.count(size) if setup.links.has_support else size
    finite = jnp.where(usable[:, None], moves.reshape(len(usable), -1), 0.0)
    return compare(finite, usable, result.noise / gain, coordinates, votes)


def standing(evidence: Array, present: Array) -> Array:
    r"""[cohorts] what the sum of these members counts against others: less, the more evidence there is against one of them.

    With even odds on every member, a cohort without an attacker has the odds $1/\sum_i E_i$.

    Parameters
    ----------
    evidence, present : Array
        [cohorts, members] logarithms of the evidence, and who is present.

    Returns
    -------
    Array
        [cohorts] votes.
    """
    return 1 / (1 + jnp.sum(jnp.where(present, jnp.exp(jnp.minimum(evidence, 20.0)), 0.0), axis=1))


def more_evidence(evidence: Array, present: Array, against: Array) -> Array:
    r"""The logarithm of the evidence against every member after one more round.

    A member's evidence is multiplied by $1 - s + s r/p$, with r = 1 if its sum was against the others, else 0, p the share of
    all members whose sums were, and s = 0.75. For an honest member r has a mean of at most p, so the factor has a mean of
    at most 1: the evidence is a supermartingale that begins at 1, and reaches 1/alpha with probability alpha at most.

    Parameters
    ----------
    evidence : Array
        [members] logarithms so far.
    present, against : Array
        [members] whose sum was opened, and whose sum was against the others.

    Returns
    -------
    Array
        [members] logarithms.

    Examples
    --------
    >>> after = more_evidence(jnp.zeros(4), jnp.ones(4, bool), jnp.array([True, False, False, False]))
    >>> [f"{value:.2f}" for value in jnp.exp(after).tolist()]
    ['3.25', '0.25', '0.25', '0.25']
    """
    share = jnp.sum(present & against) / jnp.maximum(jnp.sum(present), 1)
    factor = 1 - STAKE + STAKE * against / jnp.maximum(share, 1e-6)
    return evidence + jnp.where(present & (share > 0), jnp.log(factor), 0.0)


def left_out(evidence: Array) -> Array:
    """[members] who is left out.

    Parameters
    ----------
    evidence : Array
        [members] logarithms of the evidence.

    Returns
    -------
    Array
        Flags.
    """
    return evidence >= math.log(ENOUGH)
