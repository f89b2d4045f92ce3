"""The epsilon spent after every round, and by every client, from the ledger of a run."""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedpdm.privacy.accounting import Relation, effective_multiplier, gdp_epsilon
from fedpdm.privacy.ledger import Ledger

__all__ = ["Spending", "read_spending"]


class Spending(NamedTuple):
    """The entries of a ledger for one run.

    Attributes
    ----------
    worst
        After each of the rounds asked for: the epsilon of the client that has spent most by then.
    accounts
        Every client's budget, releases, epsilon spent and epsilon left, as `Ledger.accounts` gives them.
    """

    budget: float
    delta: float
    relation: Relation
    worst: list[float]
    accounts: list[dict[str, Any]]


def read_spending(path: Path, job: str, rounds: Sequence[int]) -> Spending | None:
    """Add up the releases of a job round by round. Releases of other jobs in the ledger count from the start.

    Parameters
    ----------
    path : Path
        The ledger.
    job : str
        Digest of the job.
    rounds : sequence of int
        The rounds of the run.

    Returns
    -------
    Spending or None
        None if there is no ledger.
    """
    if not path.is_file():
        return None
    with Ledger(path) as ledger:
        accounts, releases = ledger.accounts(), ledger.rows()
    if not accounts:
        return None
    delta, relation = accounts[0]["delta"], accounts[0]["relation"]
    unit = effective_multiplier(1.0, relation) ** 2

    @cache
    def epsilon(cost: float) -> float:
        return gdp_epsilon(math.sqrt(cost), delta) if cost else 0.0

    costs: dict[str, float] = defaultdict(float)
    waiting = sorted(releases, key=lambda release: release.round if release.job == job else -1)
    worst, done = [], 0
    for after in rounds:
        # a ledger counts rounds from 0, the measurements from 1
        while done < len(waiting) and (waiting[done].job != job or waiting[done].round < after):
            release = waiting[done]
            costs[release.client] += (release.sensitivity / release.sigma) ** 2 / unit
            done += 1
        worst.append(epsilon(max(costs.values(), default=0.0)))
    return Spending(accounts[0]["epsilon"], delta, relation, worst, accounts)
