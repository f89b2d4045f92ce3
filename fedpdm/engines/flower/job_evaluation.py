"""The evaluation in a job: how often clients are asked for noised counts, on which rows, and its cost."""

from pydantic import Field

from fedpdm.config import Config, Section
from fedpdm.privacy.accounting import noise_multiplier_for

__all__ = ["Evaluation"]


class Evaluation(Section):
    """The clients' evaluation of the model: noised counts over rows that they hold out."""

    share: float = Field(default=0.2, gt=0, lt=1, description="share of every client's rows that is held out for it")
    every: int = Field(default=0, ge=0, description="rounds between two evaluations; 0: one, after the last round")
    epsilon: float = Field(gt=0, le=1000, description="the cost of all evaluations for a client, at the delta of the training")
    bins: int = Field(default=20, ge=2, le=100, description="bins of the probabilities, for AUC and calibration curve")

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
