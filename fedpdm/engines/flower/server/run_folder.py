"""The server's run folder: a new one, or that of a run to go on with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.engines.flower.job import Job, job_toml
from fedpdm.engines.simulation.measures import TestSet
from fedpdm.errors import ConfigError
from fedpdm.runs.folder import RunFolder, atomic_write
from fedpdm.runs.simulated_ledger import client_name

__all__ = ["NOISE_NOTES", "describe_asked", "open_run"]

NOISE_NOTES = {
    "secure": (
        "secure: every client draws exact discrete Gaussian noise from its operating system (OpenDP), keeps its own ledger and "
        "refuses what its own policy does not allow."
    ),
    "simulation": "simulated: pseudo-random float32 normals from the run's seed. They protect nothing.",
}
CLIENTS_NOTE = (
    "deployment: how often the server asked each client, and how many of its messages it used. What a client has spent is in "
    "its own ledger; it cannot have answered more often than it was asked."
)


def open_run(path: Path, job: Job, checksums: dict[str, str]) -> RunFolder:
    """A new run folder, or the one that a killed server left behind."""
    note = NOISE_NOTES[job.noise] if job.config.privacy.mechanism == "sound" else None
    if (path / "manifest.json").is_file():
        folder = RunFolder.reopen(path)
        try:
            _require_same(folder, job)
        except BaseException:
            folder.close()
            raise
        return folder
    folder = RunFolder.create(path, job.config, checksums, {"engine": "flower", "job": job.digest, "noise": note})
    atomic_write(path / "job.toml", job_toml(job).encode())
    return folder


def _require_same(folder: RunFolder, job: Job) -> None:
    manifest = folder.manifest()
    if manifest.get("engine") != "flower" or manifest.get("job") != job.digest:
        raise ConfigError(f"{folder.path} holds a run of another job, or of another engine: name another flower.out.")


def describe_asked(
    asked: np.ndarray, used: np.ndarray, epsilon: Callable[[int], float | None], test: TestSet | None, classes: int
) -> dict[str, Any]:
    """What a server knows about its clients, for clients.json.

    Parameters
    ----------
    asked, used : ndarray
        [clients]: how often each was asked to train, and how many of its messages were used.
    epsilon : callable
        What a client that was asked so often can have spent at most; None where nothing is guaranteed.
    test : TestSet or None
        What the server tests with; its labels are counted.
    classes : int
        The number of classes.
    """
    counts = zip(asked.tolist(), used.tolist(), strict=True)
    clients = [
        {"client": client_name(i), "name": str(i), "asked": often, "participations": heard, "epsilon_at_most": epsilon(often)}
        for i, (often, heard) in enumerate(counts)
    ]
    tested = {} if test is None else {"test_labels": np.bincount(np.asarray(test.labels), minlength=classes).tolist()}
    return {"note": CLIENTS_NOTE, **tested, "clients": clients}
