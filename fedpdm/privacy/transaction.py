"""One writer at a time on a SQLite file."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["one_writer"]


@contextmanager
def one_writer(connection: sqlite3.Connection) -> Iterator[None]:
    """From before a check until its record is on disk nobody else writes; all of it counts, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
