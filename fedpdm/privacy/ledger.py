r"""A durable, append-only record of every client's spending. It refuses a release that exceeds the budget.

Formal guarantee: all releases recorded for a client, in all jobs and however they were chosen, are together $\mu$-GDP
with $\mu^2 = \sum 1/z^2 \le (1 + 10^{-9}) \mu_0^2$ in the relation of its budget, where $\mu_0$ is the largest $\mu$ that
implies the budget's $(\epsilon, \delta)$. A multiplier z may depend on earlier outputs: a bound on the sum that was fixed
before is a valid stopping rule for Gaussian releases (Smith, Thakurta 2022). A budget may become tighter at any time: from
then on the sum keeps to the tighter bound. Assumptions: a release leaves only after `spend`
has returned. Its add-remove sensitivity holds. Its noise is Gaussian; for `SecureGaussian` the recorded ratio
sigma/sensitivity is at most its `noise_multiplier`. Every release of the client's data goes through this one file. A file
that was altered is refused (`fedpdm.privacy.chain`). A reader who knows a later `head` detects an older copy of the whole
file, and a node does know one (`fedpdm.engines.flower.client.books`).

The room of $10^{-9}$ is for sums of rounded numbers: without it, a plan for exactly R releases might fail at the R-th.
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
    """A release that exceeds the client's budget. Nothing was recorded, and nothing may be released."""


class AlreadySpent(UserError):
    """A release that is already recorded. To send it again is another release, which needs its own request."""


class SpendRequest(NamedTuple):
    """A request for a Gaussian release: add-remove `sensitivity`, noise of standard deviation `sigma`."""

    client: str
    round: int
    sensitivity: float
    sigma: float


class Spend(NamedTuple):
    """A recorded release."""

    client: str
    job: str
    round: int
    sensitivity: float
    sigma: float
    mechanism_note: str
    recorded_at: float


class Ledger:
    """The privacy spending of clients in one SQLite file, which several processes may use at the same time.

    Formal guarantee: at the head of the module. A check and its record are one transaction that excludes every other
    writer, and it is on disk when the method returns. Use one object per thread and per process.

    Parameters
    ----------
    path : path
        The file. It is made if it does not exist; its folder must exist. A damaged file raises `LedgerDamaged`.
    on_record : callable, optional
        Called with the ledger's head after every transaction that wrote something, before the method returns.

    Examples
    --------
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
        """Apply a verified entry. Its numbers are epsilon and delta of a budget, else sensitivity and sigma."""
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
        """Set the budget of a client for all jobs. The same budget again changes nothing; a tighter one takes effect."""
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
        """Set a budget that may be larger than before, with a reason that stays on record."""
        asked = _checked_budget(epsilon, delta, relation)
        with self._transaction():
            self._append("word", client, note=_checked_reason(reason))
            self._append("budget", client, asked.epsilon, asked.delta, asked.relation)

    def carry(self, client: str, epsilon: float, reason: str) -> None:
        """Count at least `epsilon` as spent, at the budget's delta and relation, for releases that were not recorded.

        Parameters
        ----------
        client : str
            The client.
        epsilon : float
            The whole spending, recorded releases included. A smaller value than the recorded one changes nothing.
        reason : str
            The operator's reason.
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

        Raises `BudgetExceeded` if all of the client's releases, with this one, cost more than its budget, and `AlreadySpent` if
        this job, client and round are on record.
        """
        with self._transaction():
            granted = self._grant([SpendRequest(client, round, sensitivity, sigma)], mechanism_note, job)
            if granted[0] is None:
                account, z = self._account(client), sigma / sensitivity
                budget, more = account.budget, account.spend(sensitivity, sigma)
                raise BudgetExceeded(
                    f"Client {client!r} has spent epsilon={budget.epsilon_of(account.rate):.6g} of {budget.epsilon:g} (delta="
                    f"{budget.delta:g}, {budget.relation}) in {account.releases} releases; one more with noise "
                    f"multiplier {z:.4g} would make {budget.epsilon_of(more.rate):.6g}. Raise sigma, or leave this client out."
                )
        return granted[0]

    def spend_many(self, requests: Iterable[SpendRequest], mechanism_note: str, job: str) -> list[bool]:
        """Record the requests in order and in one transaction; return for each whether it was granted.

        Same guarantee and same errors as `spend`, but a request beyond the budget returns False and leaves no record. After any
        error nothing of the batch is recorded.
        """
        with self._transaction():
            return [spend is not None for spend in self._grant(list(requests), mechanism_note, job)]

    def spent(self, client: str) -> tuple[float, int]:
        """Return the epsilon of all releases of a client, at its budget's delta and relation, and their number."""
        self.chain.catch_up()
        account = self._account(client)
        return account.budget.epsilon_of(account.rate), account.releases

    def remaining_releases(self, client: str, noise_multiplier: float) -> int:
        """Return how many more releases with this noise multiplier (noise over add-remove sensitivity) fit into the budget."""
        self.chain.catch_up()
        account = self._account(client)
        return int(min(max(0.0, account.limit - account.rate) * noise_multiplier**2, 2.0**62))

    def accounts(self) -> list[dict[str, Any]]:
        """Return every client's budget, spending and rest (in epsilon, which does not add up linearly)."""
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
        """Return all recorded releases, oldest first."""
        self.chain.catch_up()
        return [Spend(*entry[1:]) for entry in self.chain.entries("release")]

    def words(self) -> list[tuple[float, str]]:
        """Return (time, reason) of every decision of an operator about this ledger."""
        return list(self._words)

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        self.chain.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _grant(self, requests: Sequence[SpendRequest], mechanism_note: str, job: str) -> list[Spend | None]:
        """Decide and record, inside the caller's transaction."""
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
    _ = budget.limit  # refuses invalid numbers
    return budget


def _checked_reason(reason: str) -> str:
    if not reason.strip():
        raise ConfigError("Expected a reason: it stays on record.")
    return reason.strip()


def _validated(request: SpendRequest) -> SpendRequest:
    """Convert the request to types that SQLite stores as numbers."""
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
