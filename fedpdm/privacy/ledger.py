r"""A durable, append-only record of what every client has spent, which refuses what a budget does not hold.

Formal guarantee: all releases recorded for a client, in whatever job and however they were chosen, are together
$\mu$-GDP with $\mu^2 = \sum 1/z^2 \le (1 + 10^{-9}) \mu_0^2$ in the relation of its budget, where $\mu_0$ is the
largest $\mu$ that implies the budget's $(\epsilon, \delta)$. A multiplier z may be chosen in the light of earlier
outputs: a bound on the sum, fixed before, is a valid stopping rule for Gaussian releases (Smith, Thakurta 2022).
Assumptions: a release leaves only after `spend` has returned. Its add-remove sensitivity holds. Its noise is
Gaussian; for `SecureGaussian` the recorded ratio sigma/sensitivity is at most its `noise_multiplier`. Every release
of the client's data goes through this one file, which nobody deletes or replaces by an older copy.

The room of $10^{-9}$ is for sums of rounded numbers: a plan for exactly R releases is not refused at the R-th.
"""

import math
import operator
import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedpdm.errors import ConfigError, UserError
from fedpdm.privacy.accounting import Relation, effective_multiplier, gdp_epsilon, gdp_mu
from fedpdm.privacy.transaction import one_writer

__all__ = ["Ledger", "SpendRequest", "Spend", "BudgetExceeded", "AlreadySpent"]

_ROOM = 1e-9
_APPLICATION = 0x46504C31  # marks the file as a ledger of this layout
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
CREATE TABLE budgets (
    client TEXT PRIMARY KEY NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL, relation TEXT NOT NULL
);
CREATE TABLE releases (
    id INTEGER PRIMARY KEY,
    client TEXT NOT NULL REFERENCES budgets (client), job TEXT NOT NULL, round INTEGER NOT NULL,
    sensitivity REAL NOT NULL CHECK (sensitivity > 0),
    sigma REAL NOT NULL CHECK (sigma > 0 AND sigma < 9e999),
    mechanism_note TEXT NOT NULL, recorded_at REAL NOT NULL,
    UNIQUE (client, job, round)
);
"""
for _table, _same in {
    "budgets": "client = NEW.client",
    "releases": "id = NEW.id OR (client = NEW.client AND job = NEW.job AND round = NEW.round)",
}.items():
    # The last one is for INSERT OR REPLACE, which deletes a row without firing the trigger on DELETE.
    for _event in ("UPDATE", "DELETE", f"INSERT WHEN EXISTS (SELECT 1 FROM {_table} WHERE {_same})"):
        _verb, _, _when = _event.partition(" ")
        _SCHEMA += f"""CREATE TRIGGER {_table}_{_verb} BEFORE {_verb} ON {_table} {_when}
            BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;"""
_TOTALS = "SELECT COUNT(*), TOTAL((sensitivity / sigma) * (sensitivity / sigma)) FROM releases WHERE client = ?"


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


_COLUMNS = ", ".join(Spend._fields)


class _Account(NamedTuple):
    epsilon: float
    delta: float
    relation: Relation
    releases: int
    spent: float  # sum of 1/z^2, z being the multiplier in `relation`

    def cost(self, noise_multiplier: float) -> float:
        rate = 1 / effective_multiplier(noise_multiplier, self.relation)
        return rate * rate

    @property
    def limit(self) -> float:
        return gdp_mu(self.epsilon, self.delta) ** 2 * (1 + _ROOM)

    @property
    def spent_epsilon(self) -> float:
        return gdp_epsilon(math.sqrt(self.spent), self.delta)


class Ledger:
    """The privacy spend of clients in one SQLite file, which several processes may use at the same time.

    Formal guarantee: at the head of the module. A check and its record are one transaction that excludes every other
    writer, and it is on disk when the method returns. The file at `path` is made if it does not exist, in a folder
    that does. Use one object per thread and per process.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Ledger(f"{folder}/ledger.db") as ledger:
    ...     ledger.open_budget("clinic", 1.0, 1e-5, "add-remove")
    ...     before = ledger.remaining_releases("clinic", 10.0)
    ...     spend = ledger.spend("clinic", 0, 0.02, 0.2, "linearised", "job-1")
    ...     before, ledger.remaining_releases("clinic", 10.0)
    (7, 6)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self._explained():
            if not self.path.exists():
                _create(self.path)
            self._connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw", uri=True, timeout=30, isolation_level=None
            )
            try:  # reads come first: a file that is no ledger must be left as it is
                if self._one("PRAGMA application_id")[0] != _APPLICATION:
                    raise sqlite3.DatabaseError("file is not a ledger")
                if (verdict := self._one("PRAGMA quick_check")[0]) != "ok":
                    raise sqlite3.DatabaseError(" ".join(str(verdict).split()))
                for setting in ("synchronous = FULL", "foreign_keys = ON", "recursive_triggers = ON"):
                    self._connection.execute(f"PRAGMA {setting}")
            except BaseException:
                self._connection.close()
                raise

    def open_budget(self, client: str, epsilon: float, delta: float, relation: Relation) -> None:
        """Set the budget of a client, once and for all jobs; the same numbers again are no error."""
        self.open_budgets([client], epsilon, delta, relation)

    def open_budgets(self, clients: Iterable[str], epsilon: float, delta: float, relation: Relation) -> None:
        """Set the same budget for many clients, in one transaction."""
        asked = (float(epsilon), float(delta), relation)
        gdp_mu(*asked[:2])  # refuses numbers that are no budget
        effective_multiplier(1.0, relation)
        with self._transaction():
            for client in clients:
                held = self._one("SELECT epsilon, delta, relation FROM budgets WHERE client = ?", client)
                if held is None:
                    self._connection.execute("INSERT INTO budgets VALUES (?, ?, ?, ?)", (client, *asked))
                elif held != asked:
                    raise ConfigError(
                        f"Expected the budget of client {client!r} to stay (epsilon, delta, relation)={held}, got "
                        f"{asked}: a budget is set once. Ask for the old one."
                    )

    def spend(self, client: str, round: int, sensitivity: float, sigma: float, mechanism_note: str, job: str) -> Spend:
        """Record a release before it leaves; if this raises, it must not leave. Guarantee: head of the module.

        Raises `BudgetExceeded` if the client's releases in all jobs, with this one, cost more than its budget, and
        `AlreadySpent` if this job, client and round are on record.
        """
        with self._transaction():
            granted = self._grant([SpendRequest(client, round, sensitivity, sigma)], mechanism_note, job)
            if granted[0] is None:
                account, z = self._account(client), sigma / sensitivity
                asked = gdp_epsilon(math.sqrt(account.spent + account.cost(z)), account.delta)
                raise BudgetExceeded(
                    f"Client {client!r} has spent epsilon={account.spent_epsilon:.6g} of {account.epsilon:g} (delta="
                    f"{account.delta:g}, {account.relation}) in {account.releases} releases; one more with noise "
                    f"multiplier {z:.4g} makes {asked:.6g}. Raise sigma, or leave this client out."
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
        account = self._account(client)
        return account.spent_epsilon, account.releases

    def remaining_releases(self, client: str, noise_multiplier: float) -> int:
        """How many more releases with this noise multiplier (noise over add-remove sensitivity) the budget holds."""
        account = self._account(client)
        room = max(0.0, account.limit - account.spent)
        return int(min(room * effective_multiplier(noise_multiplier, account.relation) ** 2, 2.0**62))

    def accounts(self) -> list[dict[str, Any]]:
        """Every client's budget, and what of it is spent and left (in epsilon, which does not add up linearly)."""
        with self._explained():
            clients = [row[0] for row in self._connection.execute("SELECT client FROM budgets ORDER BY rowid")]
        result = []
        for client in clients:
            account = self._account(client)
            spent = account.spent_epsilon if account.releases else 0.0
            result.append(
                {
                    "client": client,
                    "epsilon": account.epsilon,
                    "delta": account.delta,
                    "relation": account.relation,
                    "releases": account.releases,
                    "epsilon_spent": spent,
                    "epsilon_left": max(account.epsilon - spent, 0.0),
                }
            )
        return result

    def rows(self) -> list[Spend]:
        """All releases on record, oldest first."""
        with self._explained():
            return [Spend(*row) for row in self._connection.execute(f"SELECT {_COLUMNS} FROM releases ORDER BY id")]

    def close(self) -> None:
        """Close the file; the object is of no further use."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _grant(self, requests: Sequence[SpendRequest], mechanism_note: str, job: str) -> list[Spend | None]:
        """Decide and record, inside a transaction of the caller."""
        accounts: dict[str, _Account] = {}
        answers: list[Spend | None] = []
        for request in requests:
            client, number, sensitivity, sigma = _validated(request)
            account = accounts.get(client) or self._account(client)
            if self._one("SELECT 1 FROM releases WHERE client = ? AND job = ? AND round = ?", client, job, number):
                raise AlreadySpent(f"Client {client!r} has spent round {number} of job {job!r}: ask for another.")
            total, spend = account.spent + account.cost(sigma / sensitivity), None
            if total <= account.limit:
                account = account._replace(spent=total, releases=account.releases + 1)
                spend = Spend(client, job, number, sensitivity, sigma, mechanism_note, time.time())
                self._connection.execute(f"INSERT INTO releases ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", spend)
            accounts[client] = account
            answers.append(spend)
        return answers

    def _account(self, client: str) -> _Account:
        budget = self._one("SELECT epsilon, delta, relation FROM budgets WHERE client = ?", client)
        if budget is None:
            raise UserError(f"Client {client!r} has no budget in {self.path}: open one before it spends.")
        (epsilon, delta, relation), (releases, total) = budget, self._one(_TOTALS, client)
        return _Account(epsilon, delta, relation, releases, total / effective_multiplier(1.0, relation) ** 2)

    def _one(self, query: str, *values: object) -> tuple:
        with self._explained():
            return self._connection.execute(query, values).fetchone()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One writer at a time, from before the check until the record is on disk."""
        with self._explained(), one_writer(self._connection):
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # a mistake of ours, not of the file
        except (sqlite3.Error, OSError) as error:
            raise UserError(
                f"Cannot use the privacy ledger {self.path}: {error}. It was left as it is. Restore it or free it; "
                "without it nobody knows what was spent."
            ) from error


def _validated(request: SpendRequest) -> SpendRequest:
    """The same in types that SQLite stores as numbers."""
    client, number, sensitivity, sigma = request
    for name, value in (("sensitivity", sensitivity), ("sigma", sigma)):
        if not 0 < value < math.inf:
            raise ConfigError(f"Expected {name}={value} of client {client!r} in (0, inf): nothing was recorded.")
    try:
        return SpendRequest(client, operator.index(number), float(sensitivity), float(sigma))
    except TypeError:
        raise ConfigError(f"Expected round={number!r} to be a whole number: nothing was recorded.") from None


def _create(path: Path) -> None:
    """Make an empty ledger under another name and link it into place: no process ever sees half of one."""
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    try:
        with closing(sqlite3.connect(draft)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
        with suppress(FileExistsError):  # another process was faster
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    if os.name == "posix":  # the name must outlast a power failure too
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
