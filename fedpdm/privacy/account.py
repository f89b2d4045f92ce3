"""A client's budget and its spending."""

import math
from functools import lru_cache
from typing import NamedTuple, Self

from fedpdm.privacy.accounting import Relation, effective_multiplier, gdp_epsilon, gdp_mu

__all__ = ["Budget", "Account"]

_ROOM = 1e-9  # for sums of rounded numbers


class Budget(NamedTuple):
    """The most that a client's releases may cost in all."""

    epsilon: float
    delta: float
    relation: Relation

    @property
    def limit(self) -> float:
        """The largest allowed sum of (sensitivity / sigma)^2, with add-remove sensitivities."""
        return _limit(*self)

    def epsilon_of(self, rate: float) -> float:
        """Return the epsilon of such a sum, at this delta and in this relation."""
        return gdp_epsilon(math.sqrt(rate) / effective_multiplier(1.0, self.relation), self.delta)

    def rate_of(self, epsilon: float) -> float:
        """Return the sum that has this epsilon, at this delta and in this relation."""
        return self._replace(epsilon=epsilon).limit if epsilon > 0 else 0.0


@lru_cache(maxsize=1024)  # every release needs it
def _limit(epsilon: float, delta: float, relation: Relation) -> float:
    return (gdp_mu(epsilon, delta) * effective_multiplier(1.0, relation)) ** 2


class Account(NamedTuple):
    """A budget, the number of recorded releases, and their cost."""

    budget: Budget
    releases: int = 0
    rate: float = 0.0  # sum of (sensitivity / sigma)^2

    @property
    def limit(self) -> float:
        """The largest rate that the budget allows."""
        return self.budget.limit * (1 + _ROOM)

    def spend(self, sensitivity: float, sigma: float, releases: int = 1) -> Self:
        """Return the account with one more release."""
        return self._replace(releases=self.releases + releases, rate=self.rate + (sensitivity / sigma) * (sensitivity / sigma))
