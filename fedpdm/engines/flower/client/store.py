"""A client's records on disk: its state in every job, its last messages, and its refusals. SQLite beside the ledger.

A new state is *pending* until the server names its message as accepted; until then the earlier state counts. So a lost reply
costs budget and nothing else: both sides continue from the same state.
"""

import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from fedpdm.engines.flower.client.admission import ADMISSION_TABLE, Admission
from fedpdm.engines.flower.protocol import Refused, Request
from fedpdm.errors import UserError
from fedpdm.privacy.chain import Head
from fedpdm.privacy.transaction import one_writer

__all__ = ["Store", "Kept", "open_store"]

LOCK_SECONDS = 300.0
MOST_REFUSALS = 1000
LONGEST_REASON = 400  # characters
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    job TEXT PRIMARY KEY NOT NULL, settings TEXT NOT NULL, state BLOB NOT NULL, accepted TEXT NOT NULL, began REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS messages (
    job TEXT NOT NULL REFERENCES jobs (job), round INTEGER NOT NULL,
    request TEXT NOT NULL, message TEXT NOT NULL, status TEXT NOT NULL, size INTEGER NOT NULL, made REAL NOT NULL,
    vectors BLOB, next_state BLOB, ledger_count INTEGER, ledger_hash BLOB,
    PRIMARY KEY (job, round)
);
CREATE TABLE IF NOT EXISTS refusals (at REAL NOT NULL, job TEXT NOT NULL, round INTEGER NOT NULL, name TEXT, reason TEXT);
"""


class Kept(NamedTuple):
    """A recorded message."""

    job: str
    round: int
    request: str
    message: str
    status: str  # "pending", "accepted", or "dropped": the server continued without it
    size: int
    made: float


_COLUMNS = ", ".join(Kept._fields)


def _dump(leaves: list[np.ndarray]) -> bytes:
    return save({f"{i:03d}": np.ascontiguousarray(leaf) for i, leaf in enumerate(leaves)})


def _load(data: bytes) -> list[np.ndarray]:
    arrays = load(data)
    return [arrays[name] for name in sorted(arrays)]


class Store:
    """One client's folder, in a process that holds its lock. Use `open_store`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.admission = Admission(connection)

    def message(self, job: str, round_index: int) -> Kept | None:
        """Return the message of a round, if one is recorded."""
        row = self._one(f"SELECT {_COLUMNS} FROM messages WHERE job = ? AND round = ?", job, round_index)
        return Kept(*row) if row else None

    def messages(self, job: str | None = None) -> list[Kept]:
        """Return all recorded messages, oldest first."""
        where, values = ("", ()) if job is None else ("WHERE job = ?", (job,))
        rows = self._connection.execute(f"SELECT {_COLUMNS} FROM messages {where} ORDER BY made, rowid", values)
        return [Kept(*row) for row in rows]

    def vectors(self, job: str, round_index: int) -> bytes | None:
        """Return the bytes of a message while they are stored: those of a job's last message are."""
        row = self._one("SELECT vectors FROM messages WHERE job = ? AND round = ?", job, round_index)
        return row[0] if row else None

    def state(self, request: Request, settings: str, first: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
        """Return the state that the request's round starts from, after a decision about the pending state.

        Parameters
        ----------
        request : Request
            Its `accepted` names the last message of this client that the server used.
        settings : str
            Digest of the settings; those of a job never change.
        first : callable
            Returns the state of a client that has not taken part yet.

        Returns
        -------
        list of ndarray
            The state.
        """
        with one_writer(self._connection):
            row = self._one("SELECT settings, state, accepted FROM jobs WHERE job = ?", request.job)
            if row is None:
                row = (settings, _dump(first()), "")
                self._connection.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", (request.job, *row, time.time()))
            if row[0] != settings:
                raise Refused("state", "The settings of this job have changed since this client first took part in it.")
            return _load(self._settle(request, row[1], row[2]))

    def _settle(self, request: Request, state: bytes, accepted: str) -> bytes:
        """Make the pending state the state if its message was accepted, and drop it if it was not."""
        query = "SELECT message, next_state FROM messages WHERE job = ? AND status = 'pending'"
        message, next_state = self._one(query, request.job) or ("", b"")
        if message and request.accepted == message:
            state = next_state
            self._connection.execute("UPDATE jobs SET state = ?, accepted = ? WHERE job = ?", (state, message, request.job))
        elif request.accepted != accepted:
            raise Refused(
                "state",
                f"The server last accepted message {request.accepted or 'none'} of this client, but the last one in its folder "
                f"is {accepted or 'none'}: this folder, or the server's, is an old copy. Begin a new job.",
            )
        status = "accepted" if request.accepted == message else "dropped"
        self._connection.execute(
            "UPDATE messages SET status = ?, next_state = NULL WHERE job = ? AND status = 'pending'", (status, request.job)
        )
        return state

    def keep(
        self, request: Request, message: str, vectors: bytes, next_state: list[np.ndarray], paid: Head | None = None
    ) -> None:
        """Write a message and its state to disk before it leaves; `paid` is the ledger's head at that time."""
        with one_writer(self._connection):
            self._connection.execute("UPDATE messages SET vectors = NULL WHERE job = ?", (request.job,))
            row = (request.job, request.round, request.digest(), message, "pending", len(vectors), time.time())
            values = (*row, vectors, _dump(next_state), *(paid or (None, None)))
            self._connection.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def heads(self) -> list[Head]:
        """Return the ledger's head at the time of each message."""
        rows = self._connection.execute("SELECT ledger_count, ledger_hash FROM messages WHERE ledger_count IS NOT NULL")
        return [Head(*row) for row in rows]

    def forget_heads(self) -> None:
        """Remove the heads of recorded messages, after an operator's decision."""
        with one_writer(self._connection):
            self._connection.execute("UPDATE messages SET ledger_count = NULL, ledger_hash = NULL")

    def note_refusal(self, job: str, round_index: int, refused: Refused) -> None:
        """Record a refusal for the operator of this node; only the last ones stay."""
        with one_writer(self._connection):
            self.admission.add("refusals")
            row = (time.time(), job, round_index, refused.name, refused.reason[:LONGEST_REASON])
            self._connection.execute("INSERT INTO refusals VALUES (?, ?, ?, ?, ?)", row)
            self._connection.execute(
                "DELETE FROM refusals WHERE rowid <= (SELECT MAX(rowid) FROM refusals) - ?", (MOST_REFUSALS,)
            )

    def refusals(self) -> list[tuple[Any, ...]]:
        """Return (at, job, round, name, reason), oldest first."""
        return self._connection.execute("SELECT * FROM refusals ORDER BY rowid").fetchall()

    def _one(self, query: str, *values: object) -> Any:
        return self._connection.execute(query, values).fetchone()


@contextmanager
def open_store(folder: Path, *, create: bool = True) -> Iterator[Store]:
    """Open the client's folder and lock it: a second process waits until the first has finished its whole step.

    Parameters
    ----------
    folder : Path
        The state folder.
    create : bool
        Whether a new folder may be made.

    Returns
    -------
    context manager
        The `Store`.
    """
    if not create and not (folder / "state.sqlite").is_file():
        raise UserError(f"{folder} holds no client's state: give the state-dir of a node that was asked at least once.")
    try:
        with _private(folder), (folder / ".lock").open("w") as lock:
            _acquire(lock, folder)
            connection = sqlite3.connect(folder / "state.sqlite", timeout=30, isolation_level=None)
            try:
                for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                    connection.execute(f"PRAGMA {setting}")
                connection.executescript(_SCHEMA + ADMISSION_TABLE)
                _add_columns(connection)
                yield Store(connection)
            finally:
                connection.close()
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # the last one comes from a damaged file
        raise Refused("node", f"The state folder {folder} cannot be used: {error}. Nothing was sent.") from error


def _add_columns(connection: sqlite3.Connection) -> None:
    """Add the columns that folders of an earlier release lack."""
    there = {row[1] for row in connection.execute("PRAGMA table_info(messages)")}
    for name, kind in (("ledger_count", "INTEGER"), ("ledger_hash", "BLOB")):
        if name not in there:
            connection.execute(f"ALTER TABLE messages ADD COLUMN {name} {kind}")


@contextmanager
def _private(folder: Path) -> Iterator[None]:
    """Let only the owner read new files in the folder, for every umask and every owner of the folder."""
    before = os.umask(0o077)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder, *folder.iterdir(), *(folder / "jobs").glob("*"), *(folder / "examples").glob("*")):
            with suppress(FileNotFoundError):  # SQLite removes its files beside a database that another process closes
                mode = stat.S_IMODE(path.lstat().st_mode)
                if mode & 0o077 and not path.is_symlink():
                    path.chmod(mode & 0o700)
        yield
    finally:
        os.umask(before)


def _acquire(lock: Any, folder: Path) -> None:
    """Wait for the lock: an orphan of a killed SuperNode may still work, and ends by itself."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise Refused("busy", f"Another process has held {folder} for {LOCK_SECONDS:g} s.") from None
            time.sleep(0.05)
