"""The limits of a day: introductions, requests, refusals, new jobs and bytes are counted on disk, and bounded by the policy.

Beyond a limit nothing more is written, so no server can fill a node's disk.
"""

import sqlite3
import time
from pathlib import Path

from fedpdm.engines.flower.client.policy import Policy
from fedpdm.engines.flower.protocol import Refused
from fedpdm.privacy.transaction import one_writer

__all__ = ["Admission", "ADMISSION_TABLE", "make_room"]

ADMISSION_TABLE = "CREATE TABLE IF NOT EXISTS days (day INTEGER NOT NULL, what TEXT NOT NULL, count INTEGER NOT NULL, "
ADMISSION_TABLE += "PRIMARY KEY (day, what));"
KEPT_DAYS = 30
_SECONDS = 86_400


class Admission:
    """The counts of a state folder."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def today(self, what: str) -> int:
        """Return the count since midnight (UTC)."""
        query = "SELECT count FROM days WHERE day = ? AND what = ?"
        row = self._connection.execute(query, (_today(), what)).fetchone()
        return row[0] if row else 0

    def admit(self, what: str, policy: Policy) -> None:
        """Count one introduction, request or job, unless the policy's limit of the day is reached."""
        limit = getattr(policy.limits, f"{what}_per_day")
        if self.today("refusals") >= policy.limits.refusals_per_day:
            raise Refused("rate", f"There were {policy.limits.refusals_per_day} refusals today, as many as the policy allows.")
        if self.today(what) >= limit:
            raise Refused("rate", f"There were {limit} {what} today, as many as the policy allows.")
        self.count(what)

    def require_bytes(self, more: int, policy: Policy) -> None:
        """Refuse a message that would make the day's bytes too many."""
        if self.today("bytes") + more > policy.limits.bytes_per_day:
            raise Refused("rate", f"The policy allows {policy.limits.bytes_per_day} bytes a day.")

    def count(self, what: str, amount: int = 1) -> None:
        """Add to the day's count."""
        with one_writer(self._connection):
            self.add(what, amount)

    def add(self, what: str, amount: int = 1) -> None:
        """Add to the day's count, inside the caller's transaction."""
        self._connection.execute("DELETE FROM days WHERE day < ?", (_today() - KEPT_DAYS,))
        self._connection.execute(
            "INSERT INTO days VALUES (?, ?, ?) ON CONFLICT (day, what) DO UPDATE SET count = count + excluded.count",
            (_today(), what, amount),
        )


def _today() -> int:
    return int(time.time()) // _SECONDS


def make_room(folder: Path, more: int, most: int) -> None:
    """Refuse work that would take the folder beyond its limit, after removing caches.

    Parameters
    ----------
    folder : Path
        The state folder.
    more, most : int
        Bytes that are needed, and the limit of the folder.

    Raises
    ------
    Refused
        If the folder is too large without its caches.
    """
    if _bytes(folder) + more <= most:
        return
    for cache in ("compiled", "examples"):
        for path in sorted((folder / cache).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    if (there := _bytes(folder)) + more > most:
        raise Refused("disk", f"{folder} holds {there} bytes and needs {more} more; the policy allows {most} (disk_bytes_max).")


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
