"""Look at every file of a client's state folder."""

import sqlite3
from pathlib import Path

from fedpdm.engines.flower.client.held_jobs import FOLDER, held_job
from fedpdm.engines.flower.client.identity import KEY_FILE, identity_of
from fedpdm.errors import UserError
from fedpdm.runs.check import Finding, check_ledger, looked_at

__all__ = ["check_state"]


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
    found = [looked_at("state.sqlite", lambda: _pages(path / "state.sqlite"), "take it from a backup made with the ledger")]
    if (path / "ledger.sqlite").exists():
        found.append(check_ledger(path))
    if (path / KEY_FILE).exists():
        found.append(looked_at(KEY_FILE, lambda: identity_of(path), "take it from a backup: servers know the client by it"))
    for job in sorted((path / FOLDER).glob("*.toml")):
        remedy = "`fedpdm flower approve` with the job's file puts it right"
        found.append(looked_at(f"{FOLDER}/{job.name}", lambda job=job: held_job(path, job.stem), remedy))
    return found


def _pages(path: Path) -> None:
    """Every page and every index of the database; opened for reading only."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
    try:
        verdict = connection.execute("PRAGMA integrity_check").fetchone()[0]
        connection.execute("SELECT job, round, message FROM messages").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    finally:
        connection.close()
    if verdict != "ok":
        raise UserError(f"{path} is damaged: {' '.join(str(verdict).split())}")
