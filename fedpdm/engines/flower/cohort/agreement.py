"""The agreement of a cohort: member and server each derive it from the job that they hold."""

from typing import NamedTuple

import numpy as np

from fedpdm.algorithms.local import LocalInfo
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Refused
from fedpdm.privacy.first_release import FirstRelease
from fedpdm.privacy.mechanism import Release, Sums
from fedpdm.privacy.plan import Plan
from fedpdm.privacy.shared_noise import SharedNoise
from fedpdm.privacy.sums import Cohort, Lattice, choose_lattice, share_sigma
from fedpdm.rounds import Setup, Solved, client_key
from fedpdm.secure_sums.terms import Terms
from fedpdm.setup.cohorts import most_members

__all__ = ["Agreement", "FirstSum", "SLACK", "agree_on", "public_work"]

SLACK = 2.0**-15  # share by which the noise exceeds the bound of exact arithmetic: it covers float64 and its evaluation
MODES = ("linearised", "contractive")
MOST_PRODUCTS = 2**34  # slots times rows of a second moment


class FirstSum(NamedTuple):
    """The sum before training, of the members' second moments: what is released, its bound and z, and its lattice."""

    release: FirstRelease
    bound: float
    multiplier: float
    lattice: Lattice


class Agreement(NamedTuple):
    """A job of secure sums, and everything that follows from it.

    The sum before training, if there is one, has the number that follows that of the last round.
    """

    job: Job
    setup: Setup
    plan: Plan
    sums: Sums
    shared: SharedNoise
    first: FirstSum | None = None

    def before_training(self, round_index: int) -> FirstSum | None:
        """Return the sum before training if this is its number."""
        return self.first if round_index == self.job.config.rounds.total else None

    def lattice(self, round_index: int) -> Lattice:
        """Return the lattice of a sum."""
        first = self.before_training(round_index)
        return first.lattice if first else self.sums.lattice

    def words(self, round_index: int) -> int:
        """Return the coordinates of a sum."""
        first = self.before_training(round_index)
        return first.release.size if first else self.dimension

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
        if first := self.before_training(round_index):
            return first.bound
        return self.plan.sensitivity(self.step_size(round_index), self.job.slots) * (1 + SLACK)

    def sigma(self, round_index: int) -> float:
        """Return the noise of one share in this round."""
        first, bound, honest = self.before_training(round_index), self.sensitivity(round_index), self.sums.cohort.honest
        z = first.multiplier if first else self.shared.sum_multiplier
        return float(share_sigma(z, bound, self.words(round_index), honest, self.lattice(round_index).scale))

    def terms(self, round_index: int, roster: tuple[str, ...]) -> Terms:
        """Return the terms of a sum of this roster; everybody who holds the job computes the same.

        A cohort with more members than the job's smallest has the same noise, and as few may be missing: so every opened sum
        has at least the honest members that the noise is made for.
        """
        cohort = self.sums.cohort
        return Terms(
            job=self.job.digest,
            round=round_index,
            roster=roster,
            settings=self.job.digest,
            sigma=self.sigma(round_index),
            scale=self.lattice(round_index).scale,
            bits=self.lattice(round_index).bits,
            least=max(cohort.least, len(roster) - cohort.dropouts),
            colluding=cohort.colluding,
            words=self.words(round_index),
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
    if config.privacy.trust != "cohorts" or job.noise != "secure":
        raise Refused("settings", "A cohort trains with privacy.trust=cohorts and secure noise.")
    if min(config.compression.uplink, config.compression.downlink) < 1:
        raise Refused("settings", "A deployed cohort has dense messages: set compression.uplink=1.0 and downlink=1.0.")
    if job.evaluation is not None:
        raise Refused("settings", "Evaluations are messages of single clients, which a job of secure sums has none of.")
    if config.privacy.mode not in MODES:
        raise Refused("mode", f"privacy.mode={config.privacy.mode!r}: a deployed cohort solves in one of {', '.join(MODES)}.")
    setup, plan = job.setup
    assert plan is not None
    assert plan.shared is not None
    assert setup.privacy.sums is not None
    return Agreement(job, setup, plan, setup.privacy.sums, plan.shared, _first_sum(job, plan, setup.privacy.sums.cohort))


def _first_sum(job: Job, plan: Plan, cohort: Cohort) -> FirstSum | None:
    release = job.first_release
    if release is None:
        return None
    # two float64 sums of so many products are apart by less than half of SLACK
    if job.slots * job.unit_rows * job.slots > MOST_PRODUCTS:
        raise Refused("settings", f"A second moment of {job.slots} slots is beyond exact noise: lower --slots.")
    bound = release.bound / job.slots * (1 + SLACK)
    z = plan.standard_multiplier
    largest = most_members(job.config, cohort)
    lattice = choose_lattice(job.config.cohorts.bits, release.bound, z, bound, release.size, cohort, largest)
    return FirstSum(release, bound, z, lattice)


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
