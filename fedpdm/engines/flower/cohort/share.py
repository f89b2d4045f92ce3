"""A member's share: solve in float64, round onto the lattice, add exact noise. The ledger has the release before that."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedpdm.algorithms.base import Broadcast
from fedpdm.algorithms.local import Examples
from fedpdm.engines.flower.client.node_data import ClientExamples, cut_norms
from fedpdm.engines.flower.client.work import Compiled
from fedpdm.engines.flower.cohort.agreement import SLACK, Agreement
from fedpdm.engines.flower.protocol import Refused
from fedpdm.privacy.noise import SecureGaussian
from fedpdm.privacy.rounding import Shape, sensitivity_margin
from fedpdm.privacy.sharing import to_words
from fedpdm.rounds import client_key, solve_locally
from fedpdm.setup.class_weights import heaviest_weight

__all__ = ["check_share", "make_share"]


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
    shape = Shape(
        examples=a.job.slots,
        features=a.job.width,
        classes=a.job.shape[0],
        radius=a.job.config.data.radius or 1.0,
        weight=a.setup.algorithm.weight,
        beta=a.setup.problem.beta,
        step_size=a.step_size(round_index),
        steps=a.setup.local.steps,
        start=float(np.linalg.norm(broadcast.x0)),
        slope=float(np.linalg.norm(a.setup.algorithm.linear_term(state, broadcast))),
        heaviest=heaviest_weight(a.job.config),
        curvature=a.setup.problem.loss.smoothness(1.0),
    )
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
    float64 could be off by a quarter of that is refused. The noise is OpenDP's discrete Gaussian.
    """
    check_share(a, broadcast, state, round_index)
    bound, sigma, lattice = a.sensitivity(round_index), a.sigma(round_index), a.sums.lattice
    z = a.shared.sum_multiplier if a.shared.budget == "sum" else a.plan.noise_multiplier
    spend(bound, z * bound)
    features = cut_norms(np.where(own.held_out[:, None], np.float32(0.0), own.features), a.job.config.data.radius or 1.0)
    rows: Any = (features[None], own.labels[None], np.array([a.job.slots], np.int32), np.int32(0))
    key, t = client_key(a.job.config.seed, round_index, 0), np.int32(round_index)
    run = Compiled(f"{a.job.digest} sum", True)("solve", solve_locally)
    solved = run(a.setup, Examples(*rows), state, broadcast, t, key, None)
    contribution = np.asarray(solved.x, np.float64) - np.asarray(broadcast.x0, np.float64)
    gaussian = SecureGaussian(lattice.scale)
    return to_words(gaussian.release_steps(gaussian.within(contribution), sigma), lattice.bits).ravel()
