r"""A durable, append-only record of what every client has spent, which refuses what a budget does not hold.

Formal guarantee: all releases recorded for a client, in whatever job and however they were chosen, are together $\mu$-GDP
with $\mu^2 = \sum 1/z^2 \le (1 + 10^{-9}) \mu_0^2$ in the relation of its budget, where $\mu_0$ is the largest $\mu$ that
implies the budget's $(\epsilon, \delta)$. A multiplier z may be chosen in the light of earlier outputs: a bound on the sum,
fixed before, is a valid stopping rule for Gaussian releases (Smith, Thakurta 2022). A budget may become tighter at any time:
the sum then keeps to the first bound and, from there on, to the tighter one. Assumptions: a release leaves only after `spend`
has returned. Its add-remove sensitivity holds. Its noise is Gaussian; for `SecureGaussian` the recorded ratio
sigma/sensitivity is at most its `noise_multiplier`. Every release of the client's data goes through this one file. A file
that was altered is refused (`fedpdm.privacy.chain`); an older copy of the whole file is seen by whoever knows a later `head`,
as a node does (`fedpdm.engines.flower.client.books`).

The room of $10^{-9}$ is for sums of rounded numbers: a plan for exactly R releases is not refused at the R-th.
"""

import math
import operator
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedpdm.errors import ConfigError, UserError
from fedpdm.privacy.account import Account, Budget
from fedpdm.privacy.accounting import Relation
from fedpdm.privacy.chain import Chain, Entry, Head, LedgerDamaged

__all__ = ["Ledger", "SpendRequest", "Spend", "Budget", "BudgetExceeded", "AlreadySpent", "LedgerDamaged"]


class BudgetExceeded(UserError):
    """A release that the client's budget does not hold; nothing was recorded, and nothing may be released."""


class AlreadySpent(UserError):
    """A release that is on record; sending it once more is another release, and has to be asked for as one."""


class SpendRequest(NamedTuple):
    """A Gaussian release asked for: add-remove `sensitivity`, noise of standard deviation `sigma`."""

    client: str
    round: int
    sensitivity: float
    sigma: float


class Spend(NamedTuple):
    """A release on record."""

    client: str
    job: str
    round: int
    sensitivity: float
    sigma: float
    mechanism_note: str
    recorded_at: float


class Ledger:
    """The privacy spend of clients in one SQLite file, which several processes may use at the same time.

    Formal guarantee: at the head of the module. A check and its record are one transaction that excludes every other
    writer, and it is on disk when the method returns. The file at `path` is made if it does not exist, in a folder
    that does. Use one object per thread and per process.

    Parameters
    ----------
    path : path
        The file. One that does not hold what was written to it is refused with `LedgerDamaged`.
    on_record : callable, optional
        Gets the ledger's head after every transaction that wrote something, before the method returns.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Ledger(f"{folder}/ledger.db") as ledger:
    ...     ledger.open_budget("clinic", 1.0, 1e-5, "add-remove")
    ...     before = ledger.remaining_releases("clinic", 10.0)
    ...     spend = ledger.spend("clinic", 0, 0.02, 0.2, "linearised", "job-1")
    ...     before, ledger.remaining_releases("clinic", 10.0)
    (7, 6)
    """

    def __init__(self, path: str | os.PathLike[str], on_record: Callable[[Head], None] | None = None) -> None:
        self.path = Path(path)
        self.on_record = on_record
        self._accounts: dict[str, Account] = {}
        self._words: list[tuple[float, str]] = []
        self.chain = Chain(self.path, self._learn)

    def _learn(self, entry: Entry) -> None:
        """What a verified entry means. Its numbers: epsilon and delta of a budget, else sensitivity and sigma."""
        if entry.kind == "budget":
            budget = Budget(entry.first, entry.second, entry.note)  # type: ignore[arg-type]
            held = self._accounts.get(entry.client)
            self._accounts[entry.client] = held._replace(budget=budget) if held else Account(budget)
        elif entry.kind in ("release", "carried"):
            account = self._accounts[entry.client]
            self._accounts[entry.client] = account.spend(entry.first, entry.second, int(entry.kind == "release"))
        elif entry.kind == "word":
            self._words.append((entry.recorded_at, entry.note))

    def open_budget(self, client: str, epsilon: float, delta: float, relation: Relation) -> None:
        """Set the budget of a client for all jobs. The same numbers again are no error, and a tighter budget takes effect."""
        self.open_budgets([client], epsilon, delta, relation)

    def open_budgets(self, clients: Iterable[str], epsilon: float, delta: float, relation: Relation) -> None:
        """Set the same budget for many clients, in one transaction."""
        asked = _checked_budget(epsilon, delta, relation)
        with self._transaction():
            for client in clients:
                held = self._accounts.get(client)
                if held and asked.limit > held.budget.limit:
                    raise ConfigError(
                        f"Expected the budget of client {client!r} to stay within (epsilon, delta, relation)="
                        f"{tuple(held.budget)}, got {tuple(asked)}: a larger one needs an operator's reason "
                        "(`fedpdm flower budget accept`). Ask for the old one, or less."
                    )
                if held is None or held.budget != asked:
                    self._append("budget", client, asked.epsilon, asked.delta, asked.relation)

    def change_budget(self, client: str, epsilon: float, delta: float, relation: Relation, reason: str) -> None:
        """Set a budget that may be larger than the one before, for a reason that stays on record."""
        asked = _checked_budget(epsilon, delta, relation)
        with self._transaction():
            self._append("word", client, note=_checked_reason(reason))
            self._append("budget", client, asked.epsilon, asked.delta, asked.relation)

    def carry(self, client: str, epsilon: float, reason: str) -> None:
        """Count at least `epsilon` as spent, at the budget's delta and relation, for releases that are not on record.

        Parameters
        ----------
        client : str
            Whose releases.
        epsilon : float
            All that was spent, what is on record included. Less than that changes nothing.
        reason : str
            An operator's word for it.
        """
        if not 0 <= epsilon < math.inf:
            raise ConfigError(f"Expected the epsilon spent, {epsilon}, in [0, inf).")
        with self._transaction():
            account = self._account(client)
            missing = account.budget.rate_of(epsilon) - account.rate
            self._append("word", client, note=_checked_reason(reason))
            if missing > 0:
                self._append("carried", client, math.sqrt(missing), 1.0, f"epsilon = {epsilon:g} in all")

    def spend(self, client: str, round: int, sensitivity: float, sigma: float, mechanism_note: str, job: str) -> Spend:
        """Record a release before it leaves; if this raises, it must not leave. Guarantee: head of the module.

        Raises `BudgetExceeded` if the client's releases in all jobs, with this one, cost more than its budget, and
        `AlreadySpent` if this job, client and round are on record.
        """
        with self._transaction():
            granted = self._grant([SpendRequest(client, round, sensitivity, sigma)], mechanism_note, job)
            if granted[0] is None:
                account, z = self._account(client), sigma / sensitivity
                budget, more = account.budget, account.spend(sensitivity, sigma)
                raise BudgetExceeded(
                    f"Client {client!r} has spent epsilon={budget.epsilon_of(account.rate):.6g} of {budget.epsilon:g} (delta="
                    f"{budget.delta:g}, {budget.relation}) in {account.releases} releases; one more with noise "
                    f"multiplier {z:.4g} makes {budget.epsilon_of(more.rate):.6g}. Raise sigma, or leave this client out."
                )
        return granted[0]

    def spend_many(self, requests: Iterable[SpendRequest], mechanism_note: str, job: str) -> list[bool]:
        """Record, in order and in one transaction, what the budgets hold; tell for each request if it was granted.

        Same guarantee and same errors as `spend`, but a request beyond the budget is answered by False and leaves no
        record. After any error nothing of the batch is recorded.
        """
        with self._transaction():
            return [spend is not None for spend in self._grant(list(requests), mechanism_note, job)]

    def spent(self, client: str) -> tuple[float, int]:
        """The epsilon of all releases of a client, at its budget's delta and relation, and their number."""
        self.chain.catch_up()
        account = self._account(client)
        return account.budget.epsilon_of(account.rate), account.releases

    def remaining_releases(self, client: str, noise_multiplier: float) -> int:
        """How many more releases with this noise multiplier (noise over add-remove sensitivity) the budget holds."""
        self.chain.catch_up()
        account = self._account(client)
        return int(min(max(0.0, account.limit - account.rate) * noise_multiplier**2, 2.0**62))

    def accounts(self) -> list[dict[str, Any]]:
        """Every client's budget, and what of it is spent and left (in epsilon, which does not add up linearly)."""
        self.chain.catch_up()
        result = []
        for client, account in self._accounts.items():
            spent = account.budget.epsilon_of(account.rate) if account.rate else 0.0
            result.append(
                {
                    "client": client,
                    **account.budget._asdict(),
                    "releases": account.releases,
                    "epsilon_spent": spent,
                    "epsilon_left": max(account.budget.epsilon - spent, 0.0),
                }
            )
        return result

    def rows(self) -> list[Spend]:
        """All releases on record, oldest first."""
        self.chain.catch_up()
        return [Spend(*entry[1:]) for entry in self.chain.entries("release")]

    def words(self) -> list[tuple[float, str]]:
        """(when, reason) of everything that an operator has decided about this ledger."""
        return list(self._words)

    def close(self) -> None:
        """Close the file; the object is of no further use."""
        self.chain.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _grant(self, requests: Sequence[SpendRequest], mechanism_note: str, job: str) -> list[Spend | None]:
        """Decide and record, inside a transaction of the caller."""
        accounts: dict[str, Account] = {}
        asked: set[tuple[str, int]] = set()
        answers: list[Spend | None] = []
        look = self.chain.connection.execute
        known = "SELECT 1 FROM entries WHERE kind = 'release' AND client = ? AND job = ? AND round = ?"
        for request in requests:
            client, number, sensitivity, sigma = _validated(request)
            account = accounts.get(client) or self._account(client)
            if (client, number) in asked or look(known, (client, job, number)).fetchone():
                raise AlreadySpent(f"Client {client!r} has spent round {number} of job {job!r}: ask for another.")
            after, spend = account.spend(sensitivity, sigma), None
            if after.rate <= account.limit:
                account, spend = after, Spend(client, job, number, sensitivity, sigma, mechanism_note, time.time())
                self.chain.append(Entry("release", *spend))
                asked.add((client, number))
            accounts[client] = account
            answers.append(spend)
        return answers

    def _append(self, kind: str, client: str, first: float = 0.0, second: float = 0.0, note: str = "") -> None:
        self.chain.append(Entry(kind, client, "", 0, first, second, note, time.time()))

    def _account(self, client: str) -> Account:
        account = self._accounts.get(client)
        if account is None:
            raise UserError(f"Client {client!r} has no budget in {self.path}: open one before it spends.")
        return account

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        before = self.chain.head
        with self.chain.writing():
            yield
        if self.on_record and self.chain.head != before:
            self.on_record(self.chain.head)


def _checked_budget(epsilon: float, delta: float, relation: Relation) -> Budget:
    budget = Budget(float(epsilon), float(delta), relation)
    _ = budget.limit  # refuses numbers that are no budget
    return budget


def _checked_reason(reason: str) -> str:
    if not reason.strip():
        raise ConfigError("Expected a reason: it stays on record.")
    return reason.strip()


def _validated(request: SpendRequest) -> SpendRequest:
    """The same in types that SQLite stores as numbers."""
    client, number, sensitivity, sigma = request
    for name, value in (("sensitivity", sensitivity), ("sigma", sigma)):
        if not 0 < value < math.inf:
            raise ConfigError(f"Expected {name}={value} of client {client!r} in (0, inf): nothing was recorded.")
    try:
        whole = operator.index(number)
    except TypeError:
        raise ConfigError(f"Expected round={number!r} to be a whole number: nothing was recorded.") from None
    if not 0 <= whole < 2**63:
        raise ConfigError(f"Expected the round from 0 to 2**63 - 1, got {number:.3g}: nothing was recorded.")
    return SpendRequest(client, whole, float(sensitivity), float(sigma))
