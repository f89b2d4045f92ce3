"""Look at every file of a client's state folder."""

import sqlite3
from contextlib import closing
from pathlib import Path

from fedpdm.engines.flower.client.held_jobs import FOLDER, held_job
from fedpdm.engines.flower.client.identity import KEY_FILE, identity_of
from fedpdm.errors import UserError
from fedpdm.privacy.chain import Head
from fedpdm.privacy.ledger import Ledger
from fedpdm.runs.check import Finding, check_ledger, looked_at

__all__ = ["check_state"]

TOGETHER = "take it from a backup made with the ledger"
ACCEPT = "the budget counts as used up: restore the newest copy, or decide with `fedpdm flower budget accept`"


def check_state(path: Path) -> list[Finding]:
    """Return a finding for every file of a client's state.

    Parameters
    ----------
    path : Path
        The folder; nothing in it is changed.

    Returns
    -------
    list of Finding
        One finding per file.
    """
    found = [looked_at("state.sqlite", lambda: _pages(path / "state.sqlite", "messages"), TOGETHER)]
    ledger = check_ledger(path, ACCEPT) if (path / "ledger.sqlite").exists() else Finding("ledger.sqlite", None)
    if not found[0].fault and not ledger.fault:
        ledger = looked_at("ledger.sqlite", lambda: _agrees(path), ACCEPT)
    if ledger.fault or (path / "ledger.sqlite").exists():
        found.append(ledger)
    if (path / "sums.sqlite").exists():
        found.append(looked_at("sums.sqlite", lambda: _pages(path / "sums.sqlite", "sums"), TOGETHER))
    if (path / KEY_FILE).exists():
        found.append(looked_at(KEY_FILE, lambda: identity_of(path), "take it from a backup: servers know the client by it"))
    for job in sorted((path / FOLDER).glob("*.toml")):
        remedy = "`fedpdm flower approve` with the job's file puts it right"
        found.append(looked_at(f"{FOLDER}/{job.name}", lambda job=job: held_job(path, job.stem), remedy))
    return found


def _agrees(path: Path) -> None:
    """Whether the ledger has the spending of every message that left; a node compares them in the same way."""
    rows = "SELECT ledger_count, ledger_hash FROM messages WHERE ledger_count IS NOT NULL"
    with closing(_read_only(path / "state.sqlite")) as state:
        heads = [Head(*row) for row in state.execute(rows)]
    if not heads:
        return
    if not (path / "ledger.sqlite").exists():
        raise UserError("it is missing, although messages have left")
    with Ledger(path / "ledger.sqlite") as ledger:
        if not all(ledger.chain.holds(head) for head in heads):
            raise UserError("it is an older copy, or another one: it lacks messages that have left")


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)


def _pages(path: Path, table: str) -> None:
    """Every page and every index of the database, and every row of this table."""
    connection = _read_only(path)
    try:
        verdict = connection.execute("PRAGMA integrity_check").fetchone()[0]
        connection.execute(f"SELECT * FROM {table}").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    finally:
        connection.close()
    if verdict != "ok":
        raise UserError(f"{path} is damaged: {' '.join(str(verdict).split())}")
