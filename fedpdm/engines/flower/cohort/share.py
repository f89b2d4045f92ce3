"""A member's share: solve in float64, round onto the lattice, add exact noise. The ledger has the release before that."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from fedpdm.algorithms.base import Broadcast
from fedpdm.algorithms.local import Examples
from fedpdm.engines.flower.client.node_data import ClientExamples, cut_norms
from fedpdm.engines.flower.client.work import Compiled
from fedpdm.engines.flower.cohort.agreement import SLACK, Agreement, FirstSum
from fedpdm.engines.flower.exact import local_shape
from fedpdm.engines.flower.protocol import Refused
from fedpdm.errors import require_extra
from fedpdm.privacy.noise import add_discrete_gaussian
from fedpdm.privacy.rotation import rotate
from fedpdm.privacy.rounding import sensitivity_margin
from fedpdm.privacy.sharing import round_up_or_down, to_words
from fedpdm.privacy.sums import Lattice
from fedpdm.rounds import client_key, solve_locally

__all__ = ["check_share", "first_contribution", "make_first_share", "make_share", "member_contribution"]

LARGEST = 2.0**52  # lattice steps; cutting moves no two vectors apart


def check_share(a: Agreement, broadcast: Broadcast, state: Any, round_index: int) -> None:
    """Refuse a model from which the float64 solution could be too far off; the check does not depend on rows.

    Parameters
    ----------
    a, broadcast, state, round_index
        As in `make_share`.

    Raises
    ------
    Refused
        With the code "model".
    """
    linear = a.setup.algorithm.linear_term(state, broadcast)
    shape = local_shape(a.job, a.places, a.step_size(round_index), np.asarray(broadcast.x0), linear)
    if not sensitivity_margin(shape) <= a.sensitivity(round_index) * SLACK / 4:
        raise Refused("model", f"From a model of norm {shape.start:.3g} the local steps move too far for exact noise.")


def make_share(
    a: Agreement,
    own: ClientExamples,
    broadcast: Broadcast,
    state: Any,
    round_index: int,
    spend: Callable[[float, float], None],
) -> np.ndarray:
    """Make this member's share.

    Parameters
    ----------
    a, own
        The agreement, and the member's examples in the job's slots.
    broadcast, state
        The model, and the cohort's public state, as the server sent them: the guarantee holds for any values.
    round_index
        The round.
    spend
        `(sensitivity, sigma)` of the release; called before the noise is drawn, it records the release, or raises.

    Returns
    -------
    ndarray
        The words of the share.

    Formal guarantee
    ----------------
    Theorem S1 of docs/secure-sums.md. The sensitivity has a share of 2^-15 more than exact arithmetic needs; a model from which
    float64 could be off by a quarter of that is refused; the rotation's own rounding is far below the rest. The vector is
    rounded up or down by draws of the operating system, and the noise is OpenDP's discrete Gaussian.
    """
    require_extra("opendp", "flower", "The noise of a real client")  # here, and not after the budget was spent
    check_share(a, broadcast, state, round_index)
    bound, sigma, lattice = a.sensitivity(round_index), a.sigma(round_index), a.sums.lattice
    z = a.shared.sum_multiplier if a.shared.budget == "sum" else a.plan.noise_multiplier
    spend(bound, z * bound)
    return _noised(member_contribution(a, own, broadcast, state, round_index).ravel(), sigma, lattice)


def make_first_share(a: Agreement, first: FirstSum, own: ClientExamples, spend: Callable[[float, float], None]) -> np.ndarray:
    """Make this member's share of the sum before training: the second moment of its features.

    Parameters
    ----------
    a, first, own
        The agreement with its first sum, and the member's examples in the job's slots.
    spend
        As in `make_share`.

    Returns
    -------
    ndarray
        The words of the share.

    Formal guarantee
    ----------------
    Theorem S1 of docs/secure-sums.md, which holds for any function of a member's rows whose sensitivity is known: here that of
    `first_contribution`, with a share of 2^-15 more than exact arithmetic needs.
    """
    require_extra("opendp", "flower", "The noise of a real client")
    spend(first.bound, first.multiplier * first.bound)
    return _noised(first_contribution(a, first, own), a.sigma(a.job.config.rounds.total), first.lattice)


def first_contribution(a: Agreement, first: FirstSum, own: ClientExamples) -> np.ndarray:
    """Return the packed second moment of a member's rows over its public slots, before any noise: it must not leave the node.

    Parameters
    ----------
    a, first, own
        As in `make_first_share`.

    Returns
    -------
    ndarray
        [first.release.size], float64.

    Formal guarantee
    ----------------
    If one row is empty or filled, or all rows of one person where the job names persons, it moves by at most `first.bound` in
    the Euclidean norm, rounding included: every row is cut to norm 1, so its outer product has norm 1 at most.
    """
    counted = own.trained()
    features = np.where(counted[:, None] > 0, own.features, np.float32(0.0))
    return first.release.mean(features, a.job.slots, counted)


def _noised(vector: np.ndarray, sigma: float, lattice: Lattice) -> np.ndarray:
    """Rotate a flat vector, round it onto the lattice, add this member's noise, and return its words."""
    rotated = rotate(np.nan_to_num(vector, posinf=0.0, neginf=0.0)) * lattice.scale
    steps = round_up_or_down(np.clip(rotated, -LARGEST, LARGEST), _draws(len(rotated))).astype(np.int64)
    return to_words(add_discrete_gaussian(steps, sigma * lattice.scale), lattice.bits)


def member_contribution(a: Agreement, own: ClientExamples, broadcast: Broadcast, state: Any, round_index: int) -> np.ndarray:
    """Return the distance of a member's solution from x0, before any noise: it must not leave the node.

    Parameters
    ----------
    a, own, broadcast, state, round_index
        As in `make_share`.

    Returns
    -------
    ndarray
        Of the model's shape, float64.

    Formal guarantee
    ----------------
    If one row is empty or filled, or all rows of one person where the job names persons, it moves by at most
    `a.sensitivity(round_index)`, rounding included. A row of a person with m rows counts 1/m, and sums are divided by the
    public slots of rows, or of persons (Theorem F in docs/privacy/proofs.md). Rows behind the job's places do not count.
    """
    counted = own.trained()
    features = cut_norms(np.where(counted[:, None] > 0, own.features, np.float32(0.0)), a.job.config.data.radius or 1.0)
    rows: Any = (features[None], own.labels[None], np.array([a.places], np.int32), np.int32(0))
    if a.job.weighted:
        rows += (counted[None], np.array([a.job.slots], np.int32))
    key, t = client_key(a.job.config.seed, round_index, 0), np.int32(round_index)
    run = Compiled(f"{a.job.digest} sum", True)("solve", solve_locally)
    solved = run(a.setup, Examples(*rows), state, broadcast, t, key, None)
    return np.asarray(solved.x, np.float64) - np.asarray(broadcast.x0, np.float64)


def _draws(count: int) -> np.ndarray:
    """Numbers from [0, 1), of 53 bits each, that nobody else knows."""
    return (np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)) * 2.0**-53
