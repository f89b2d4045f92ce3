"""One writer at a time on a SQLite file."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["one_writer"]


@contextmanager
def one_writer(connection: sqlite3.Connection) -> Iterator[None]:
    """Exclude other writers from before a check until its record is on disk; after an error nothing is written.

    Parameters
    ----------
    connection : sqlite3.Connection
        The open file.

    Returns
    -------
    context manager
        The transaction.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
