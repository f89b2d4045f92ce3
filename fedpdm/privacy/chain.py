r"""An append-only SQLite file with a chain of hashes: a reader gets the written entries, or an error.

Entry k has the hash $h_k = \mathrm{SHA256}(h_{k-1} \,\|\, e_k)$, and $h_0$ is empty. A separate row stores the number of
entries and the last hash. At every opening all hashes are computed again.

Formal guarantee: if opening succeeds, the entries are exactly those that were written, or a prefix of them that was once the
whole file, unless two different sequences of entries have one hash. *Proof.* The file names (n, h). The n entries that are
read chain to h. Of all sequences ever written, the one with last hash h is, by collision resistance, the same; so it was the
whole file when h was written. A change of any bit of one copy of the file changes the entries, or n, or h, or nothing that is
read: in the first three cases the chain does not end in h. Only an older copy of the whole file passes, and a reader who knows
a later `head` detects it. The hashes have no key: they protect against accidents and restored copies, not against the owner
of the machine.
"""

import hashlib
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fedpdm.errors import UserError
from fedpdm.privacy.transaction import one_writer

__all__ = ["Chain", "Entry", "Head", "LedgerDamaged"]

_APPLICATION = 0x46504C32  # marks the file as a ledger of this layout
_UNCHAINED = 0x46504C31  # marks ledgers of the earlier layout, without hashes
_COLUMNS = "kind, client, job, round, first, second, note, recorded_at"
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, client TEXT NOT NULL, job TEXT NOT NULL, round INTEGER NOT NULL,
    first REAL NOT NULL, second REAL NOT NULL, note TEXT NOT NULL, recorded_at REAL NOT NULL, hash BLOB NOT NULL,
    CHECK (kind <> 'release' OR (first > 0 AND second > 0 AND second < 9e999))
);
CREATE UNIQUE INDEX once ON entries (client, job, round) WHERE kind = 'release';
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), count INTEGER NOT NULL, hash BLOB NOT NULL);
CREATE VIEW releases AS SELECT number AS id, client, job, round, first AS sensitivity, second AS sigma,
    note AS mechanism_note, recorded_at FROM entries WHERE kind = 'release';
CREATE VIEW budgets AS SELECT number AS id, client, first AS epsilon, second AS delta, note AS relation, recorded_at
    FROM entries WHERE kind = 'budget';
"""
_FORBIDDEN = {
    "entries_update": "UPDATE ON entries",
    "entries_delete": "DELETE ON entries",
    # INSERT OR REPLACE deletes a row without firing the trigger on DELETE
    "entries_insert": """INSERT ON entries WHEN NEW.number <= (SELECT count FROM head) OR (NEW.kind = 'release' AND EXISTS
        (SELECT 1 FROM entries WHERE kind = 'release' AND client = NEW.client AND job = NEW.job AND round = NEW.round))""",
    "head_update": "UPDATE ON head WHEN NEW.count <= OLD.count",
    "head_delete": "DELETE ON head",
    "head_insert": "INSERT ON head WHEN EXISTS (SELECT 1 FROM head)",
}
for _name, _event in _FORBIDDEN.items():
    _SCHEMA += f"CREATE TRIGGER {_name} BEFORE {_event} BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;"
# These errors do not mean that the content is damaged.
_PASSING = {"BUSY", "LOCKED", "FULL", "IOERR", "CANTOPEN", "READONLY", "NOMEM", "INTERRUPT"}


class LedgerDamaged(UserError):
    """A ledger that does not hold what was written to it. Its spending is unknown, so the budget counts as used up."""


class Entry(NamedTuple):
    """One entry of a ledger; `fedpdm.privacy.ledger` explains the two numbers and the note for each kind."""

    kind: str
    client: str
    job: str
    round: int
    first: float
    second: float
    note: str
    recorded_at: float

    def hash_after(self, before: bytes) -> bytes:
        """Return the hash of this entry after one with the hash `before`."""
        return hashlib.sha256(before + repr(tuple(self)).encode()).digest()


class Head(NamedTuple):
    """The number of entries of a chain and the hash of the last one. A chain keeps every head that it once had."""

    entries: int
    hash: bytes


class Chain:
    """The file, and the part of it that this object has read and verified.

    Parameters
    ----------
    path : Path
        The file. It is made if it does not exist; its folder must exist.
    learn : callable
        Called with every entry after it is verified and on disk.
    """

    def __init__(self, path: Path, learn: Callable[[Entry], None]) -> None:
        self.path, self._learn = path, learn
        self.head, self.identity = Head(0, b""), b""
        self._queue: list[Entry] = []
        with self._explained():
            if not path.exists():
                _create(path)
            self.connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=30, isolation_level=None)
            try:  # read first: a file that is not a ledger must stay as it is
                self._check_layout()
                for setting in ("synchronous = FULL", "recursive_triggers = ON"):
                    self.connection.execute(f"PRAGMA {setting}")
                self.catch_up()
            except BaseException:
                self.connection.close()
                raise

    def _check_layout(self) -> None:
        application = self.one("PRAGMA application_id")[0]
        if application == _UNCHAINED:
            raise self._damaged("it was written by an earlier release of fedpdm, whose entries have no hashes")
        if application != _APPLICATION:
            raise self._damaged("file is not a ledger")
        if (verdict := self.one("PRAGMA quick_check")[0]) != "ok":
            raise self._damaged(" ".join(str(verdict).split()))

    def catch_up(self) -> None:
        """Read and verify new entries; raise LedgerDamaged if they do not chain to the recorded head."""
        with self._explained(), self._reading():
            told = self.one("SELECT count, hash FROM head")
            if told == self.head:
                return
            query = f"SELECT number, hash, {_COLUMNS} FROM entries WHERE number > ? ORDER BY number"
            (count, last), entries = self.head, []
            for number, held, *values in self.connection.execute(query, (self.head.entries,)):
                entry = Entry(*values)
                count, last = count + 1, entry.hash_after(last)
                if (number, held) != (count, last):
                    raise self._damaged(f"entry {count} was altered")
                if count == 1:
                    self.identity = last
                entries.append(entry)
            if told != (count, last):
                raise self._damaged(f"it has {count} entries, but its head records {told[0] if told else 'none'}")
        self._keep(entries, Head(count, last))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Exclude other writers from before the check until all new entries are on disk; after an error none is."""
        with self._explained():
            try:
                with one_writer(self.connection):
                    self.catch_up()
                    yield
                    written, head = self._write()
            finally:
                queue, self._queue = self._queue, []
            if written:
                self._keep(queue, head)

    def append(self, entry: Entry) -> None:
        """Add an entry to the transaction of `writing`."""
        self._queue.append(entry)

    def entries(self, kind: str) -> list[Entry]:
        """Return all verified entries of a kind, oldest first."""
        query = f"SELECT {_COLUMNS} FROM entries WHERE kind = ? AND number <= ? ORDER BY number"
        with self._explained():
            return [Entry(*row) for row in self.connection.execute(query, (kind, self.head.entries))]

    def holds(self, head: Head) -> bool:
        """Tell whether this chain has, or once had, this head."""
        if not 0 < head.entries <= self.head.entries:
            return False
        return self.one("SELECT hash FROM entries WHERE number = ?", head.entries) == (head.hash,)

    def one(self, query: str, *values: object) -> tuple:
        """Return the first row of a query."""
        with self._explained():
            return self.connection.execute(query, values).fetchone()

    def _write(self) -> tuple[bool, Head]:
        (count, last), rows = self.head, []
        for entry in self._queue:
            count, last = count + 1, entry.hash_after(last)
            rows.append((count, *entry, last))
        if rows:
            self.connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            self.connection.execute("UPDATE head SET count = ?, hash = ?", (count, last))
        return bool(rows), Head(count, last)

    def _keep(self, entries: list[Entry], head: Head) -> None:
        self.head = head
        for entry in entries:
            self._learn(entry)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Read entries and head of the same moment."""
        if self.connection.in_transaction:
            yield
            return
        self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.connection.execute("ROLLBACK")

    def _damaged(self, what: str) -> LedgerDamaged:
        return LedgerDamaged(
            f"Cannot use the privacy ledger {self.path}: {what}. It was left as it is. Its spending is unknown, so "
            "the budget counts as used up. Restore the newest copy, or let an operator decide: `fedpdm flower budget accept`."
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # a mistake in the calling code, not in the file
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_").partition("_")[0]
            if name not in _PASSING:
                raise self._damaged(str(error)) from error
            remedy = "End the other process" if name in ("BUSY", "LOCKED") else "Free some space, or give the right to write it"
            raise UserError(
                f"Cannot use the privacy ledger {self.path}: {error}. It was left as it is. {remedy}, and try again."
            ) from error
        except UnicodeDecodeError as error:  # of a damaged file
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise UserError(f"Cannot use the privacy ledger {self.path}: {error}. It was left as it is.") from error


def _create(path: Path) -> None:
    """Make a ledger under another name and link it into place, so no process ever sees half of one."""
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    first = Entry("begin", "", "", 0, 0.0, 0.0, uuid.uuid4().hex, time.time())  # no two ledgers begin alike
    try:
        with closing(sqlite3.connect(draft)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
            with connection:
                connection.execute("INSERT INTO head VALUES (1, 0, x'')")
                connection.execute("INSERT INTO entries VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*first, first.hash_after(b"")))
                connection.execute("UPDATE head SET count = 1, hash = ?", (first.hash_after(b""),))
        draft.chmod(0o600)
        with suppress(FileExistsError):  # another process was faster
            os.link(draft, path)
    finally:
        for ending in ("", "-wal", "-shm"):  # where the disk was full, the database leaves its own files
            draft.with_name(draft.name + ending).unlink(missing_ok=True)
    if os.name == "posix":  # the name must outlast a power failure too
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
