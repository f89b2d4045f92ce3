"""The evaluation in a job: how often clients are asked for noised counts, on which rows, and its cost."""

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from fedpdm.config import Config, Section
from fedpdm.metrics import TIME_SENSITIVITY, count, sums_sensitivity, sums_size, vector_of
from fedpdm.privacy.accounting import noise_multiplier_for
from fedpdm.privacy.evaluation import SENSITIVITY
from fedpdm.problem.losses import Loss

if TYPE_CHECKING:
    from fedpdm.engines.flower.job import Job

__all__ = ["Evaluation", "held_out_words", "tally_sensitivity", "tally_size"]


class Evaluation(Section):
    """The clients' evaluation of the model: noised counts, or sums of a number, over rows that they hold out."""

    share: float = Field(default=0.2, gt=0, lt=1, description="share of every client's rows that is held out for it")
    every: int = Field(default=0, ge=0, description="rounds between two evaluations; 0: one, after the last round")
    epsilon: float = Field(gt=0, le=1000, description="the cost of all evaluations for a client, at the delta of the training")
    bins: int = Field(default=20, ge=2, le=100, description="bins of the predictions, for AUC and calibration curve")
    largest_error: float = Field(
        default=1.0, ge=0.01, le=1, description="of a number: larger errors count as this share of the label's range"
    )

    def rounds(self, total: int) -> list[int]:
        """Return the rounds (counted from 1) after which clients are asked."""
        every = self.every or total
        return sorted({*range(every, total + 1, every), total})

    def noise_multiplier(self, config: Config) -> float:
        """Return noise over sensitivity of one evaluation."""
        times = len(self.rounds(config.rounds.total)) * config.privacy.clients_per_unit
        return noise_multiplier_for(self.epsilon, config.privacy.delta, times, config.privacy.relation)

    def cost_multiplier(self, config: Config) -> float:
        """Return the multiplier of one evaluation for a ledger: a person with rows at q clients is in q of them."""
        return self.noise_multiplier(config) / config.privacy.clients_per_unit**0.5


def held_out_words(job: "Job") -> str:
    """Name the units that an evaluation counts.

    Parameters
    ----------
    job
        The job.

    Returns
    -------
    str
        Rows, persons by the name of their column, or subjects of a time.
    """
    units = "subjects" if job.kind == "time" else f"{job.unit}s" if job.unit else "rows"
    return f"{units} that clients hold out"


def tally_sensitivity(job: "Job", loss: Loss) -> float:
    """How far one unit moves an evaluation's vector, before noise (docs/privacy/proofs.md, Theorem H).

    Parameters
    ----------
    job, loss
        The job, and its loss.

    Returns
    -------
    float
        The bound.
    """
    if job.kind == "time":
        return TIME_SENSITIVITY
    return sums_sensitivity(loss.metrics) if job.kind == "number" else SENSITIVITY


def tally_size(job: "Job", loss: Loss) -> int:
    """How many numbers an evaluation has.

    Parameters
    ----------
    job, loss
        The job, and its loss.

    Returns
    -------
    int
        The size.
    """
    assert job.evaluation is not None
    bins = job.evaluation.bins
    if job.kind == "time":
        assert job.table is not None
        assert job.table.target is not None
        return 3 + 2 * bins * job.table.target.bands
    if job.kind == "number":
        return sums_size(loss.metrics, bins)
    return vector_of(count(np.zeros((0, len(job.classes))), np.zeros(0, int), bins=bins)).size
