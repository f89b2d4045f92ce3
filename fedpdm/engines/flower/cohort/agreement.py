"""The agreement of a cohort: member and server each derive it from the job that they hold."""

from typing import NamedTuple

import numpy as np

from fedpdm.algorithms.local import LocalInfo
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Refused
from fedpdm.privacy.mechanism import Release, Sums
from fedpdm.privacy.plan import Plan
from fedpdm.privacy.shared_noise import SharedNoise
from fedpdm.privacy.sums import share_sigma
from fedpdm.rounds import Setup, Solved, client_key
from fedpdm.secure_sums.terms import Terms

__all__ = ["Agreement", "SLACK", "agree_on", "public_work"]

SLACK = 2.0**-15  # share by which the noise exceeds the bound of exact arithmetic: it covers float64 and its evaluation
MODES = ("linearised", "contractive")


class Agreement(NamedTuple):
    """A job of secure sums, and everything that follows from it."""

    job: Job
    setup: Setup
    plan: Plan
    sums: Sums
    shared: SharedNoise

    @property
    def dimension(self) -> int:
        """Coordinates of the model."""
        return self.job.shape[0] * self.job.shape[1]

    @property
    def places(self) -> int:
        """The most rows of a member: those of its slots."""
        return self.job.slots * self.job.unit_rows

    def step_size(self, round_index: int) -> float:
        """Return `step_size_at` in plain numbers."""
        local = self.setup.local
        return local.step_size / ((1.0 + round_index) ** 0.5 if local.schedule == "inverse-sqrt" else 1.0)

    def sensitivity(self, round_index: int) -> float:
        """Return the sensitivity of a member's contribution, with room for rounding."""
        return self.plan.sensitivity(self.step_size(round_index), self.job.slots) * (1 + SLACK)

    def sigma(self, round_index: int) -> float:
        """Return the noise of one share in this round."""
        z, bound, honest = self.shared.sum_multiplier, self.sensitivity(round_index), self.sums.cohort.honest
        return float(share_sigma(z, bound, self.dimension, honest, self.sums.lattice.scale))

    def terms(self, round_index: int, roster: tuple[str, ...]) -> Terms:
        """Return the terms of a round's sum; everybody who holds the job computes the same."""
        return Terms(
            job=self.job.digest,
            round=round_index,
            roster=roster,
            settings=self.job.digest,
            sigma=self.sigma(round_index),
            scale=self.sums.lattice.scale,
            bits=self.sums.lattice.bits,
            least=self.sums.cohort.least,
            colluding=self.sums.cohort.colluding,
            words=self.dimension,
        )


def agree_on(job: Job) -> Agreement:
    """Derive the agreement of a job.

    Parameters
    ----------
    job : Job
        The job.

    Returns
    -------
    Agreement
        The agreement.

    Raises
    ------
    Refused
        If a deployment cannot run the job.
    """
    config = job.config
    if config.privacy.trust != "cohorts" or config.cohorts.members != "fixed" or job.noise != "secure":
        raise Refused("settings", "A cohort trains with privacy.trust=cohorts, cohorts.members=fixed and secure noise.")
    if config.cohorts.size not in (0, config.data.clients) or min(config.compression.uplink, config.compression.downlink) < 1:
        raise Refused("settings", "A deployed cohort is one of all clients, with dense messages: set cohorts.size=0.")
    if job.evaluation is not None:
        raise Refused("settings", "Evaluations are messages of single clients, which a job of secure sums has none of.")
    if config.privacy.mode not in MODES:
        raise Refused("mode", f"privacy.mode={config.privacy.mode!r}: a deployed cohort solves in one of {', '.join(MODES)}.")
    setup, plan = job.setup
    assert plan is not None
    assert plan.shared is not None
    assert setup.privacy.sums is not None
    return Agreement(job, setup, plan, setup.privacy.sums, plan.shared)


def public_work(agreement: Agreement, round_index: int) -> Solved:
    """Return the public facts about the members' work in a round.

    Parameters
    ----------
    agreement, round_index
        The agreement, and the round.

    Returns
    -------
    Solved
        The facts, without a solution.
    """
    key = client_key(agreement.job.config.seed, round_index, 0)
    numbers = [np.float32(v) for v in (agreement.step_size(round_index), agreement.job.slots)]
    steps = np.int32(agreement.setup.local.steps)
    release = Release(*numbers, steps, np.float32(0.0), key)  # type: ignore[arg-type]
    return Solved(np.float32(0.0), LocalInfo(steps), release, 0.0, key)  # type: ignore[arg-type]
