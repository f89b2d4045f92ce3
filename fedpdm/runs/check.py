"""Look at every file of a run folder: what is wrong, and what can be saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedpdm.data.schema import read_schema
from fedpdm.errors import UserError
from fedpdm.privacy.ledger import Ledger
from fedpdm.runs.folder import RunFolder, read_models
from fedpdm.runs.integrity import SUMS, changed_files, read_arrays, read_json, read_sealed

__all__ = ["Finding", "check_ledger", "check_run", "looked_at"]

SERVER_FILES = {  # of a deployment's server
    "keys.json": "take it from a backup; without it the next node to claim a number is believed",
    "roster.json": "take it from a backup, or begin a new job",
    "standard.json": "take it from a backup: rows are standardised by it",
    "curvature.json": "take it from a backup; without it the model has no intervals, but it can be used",
}


class Finding(NamedTuple):
    """What was found about one file."""

    file: str
    fault: str | None  # None: nothing is wrong
    remedy: str = ""


def looked_at(file: str, look: Callable[[], object], remedy: str) -> Finding:
    """Look at a file; whatever goes wrong is the finding.

    Parameters
    ----------
    file : str
        Its name.
    look : callable
        Reads it and raises if it is broken.
    remedy : str
        What can be saved, or how to go on.

    Returns
    -------
    Finding
        The finding.
    """
    try:
        look()
    except UserError as error:
        return Finding(file, str(error).rstrip("."), remedy)
    except Exception as error:  # a file that was damaged on purpose may fail in any way; this command must not
        return Finding(file, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", remedy)
    return Finding(file, None)


def check_run(path: Path) -> list[Finding]:
    """Return a finding for every file of a run.

    Parameters
    ----------
    path : Path
        A run folder; nothing in it is changed.

    Returns
    -------
    list of Finding
        One finding per file.
    """
    folder = RunFolder(path)
    over = folder.summary_path.is_file()
    backup = "take it from a backup: until then predict, export and report refuse the run"
    again = backup if over else "start a new run; nothing can be resumed"
    retrain = "the run cannot be resumed with it: remove it, and `fedpdm run --resume` trains from the first round"
    found = [looked_at("manifest.json", folder.config, again)]
    if folder.schema_path.exists():
        found.append(
            looked_at("schema.toml", lambda: read_schema(folder.schema_path), "copy the schema that the run was given")
        )
    if folder.metrics_path.exists():
        found.append(looked_at("metrics.jsonl", folder.rows, backup if over else "curves of the report are lost"))
    if folder.checkpoint_path.exists():
        found.append(
            looked_at("checkpoint.safetensors", lambda: read_arrays(folder.checkpoint_path, "see below", False), retrain)
        )
    if over or folder.model_path.exists():
        found.append(
            looked_at("model.safetensors", lambda: read_models(path), "train again with the settings of manifest.json")
        )
    if folder.clients_path.exists():
        found.append(looked_at("clients.json", lambda: read_json(folder.clients_path, "see below"), backup))
    if over:
        found.append(looked_at("summary.json", lambda: json.loads(folder.summary_path.read_bytes()), backup))
        if not (path / SUMS).is_file():
            found.append(
                Finding(SUMS, "it is missing: the run is of an earlier release", "nobody can tell whether files changed")
            )
    for name, remedy in SERVER_FILES.items():
        if (path / name).exists():
            found.append(looked_at(name, lambda name=name: read_sealed(path / name, "see below"), remedy))
    if (path / "ledger.sqlite").exists():
        found.append(check_ledger(path, "the model can be used; the record of what was spent is lost"))
    elif over and found[0].fault is None and folder.needs_ledger():
        remedy = "the model can be used; take the ledger from a backup: it says what was spent"
        found.append(Finding("ledger.sqlite", "it is missing", remedy))
    known = {finding.file for finding in found if finding.fault}
    for fault in changed_files(path):
        name = fault.partition(" ")[0]
        if name not in known:
            found = [finding for finding in found if finding.file != name]
            found.append(Finding(name, fault, "take it from a backup; what it says now is not what was measured"))
    return found


def check_ledger(path: Path, remedy: str) -> Finding:
    """Return what is found about the ledger in a folder: its layout, its pages, and the hashes of all entries.

    Parameters
    ----------
    path : Path
        The folder of the ledger.
    remedy : str
        As in `looked_at`.

    Returns
    -------
    Finding
        The finding.
    """

    def look() -> None:
        Ledger(path / "ledger.sqlite").close()

    return looked_at("ledger.sqlite", look, remedy)
