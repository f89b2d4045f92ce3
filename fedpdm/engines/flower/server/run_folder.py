"""The server's run folder: a new one, or that of a run to continue."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.data.datasets import DATASETS
from fedpdm.data.rows import input_names
from fedpdm.engines.flower.cost import job_epsilon
from fedpdm.engines.flower.job import Job, job_toml
from fedpdm.engines.simulation.measures import TestSet, label_counts
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import compose_gdp, effective_multiplier, gdp_epsilon
from fedpdm.privacy.plan import Plan
from fedpdm.runs.folder import RunFolder, atomic_write
from fedpdm.runs.record import ModelNames
from fedpdm.runs.simulated_ledger import client_name

__all__ = ["NOISE_NOTES", "describe_asked", "epsilon_at_most", "guarantee", "open_run", "names_of"]

NOISE_NOTES = {
    "secure": (
        "secure: every client draws exact discrete Gaussian noise from its operating system (OpenDP), keeps its own ledger and "
        "refuses what its own policy does not allow."
    ),
    "simulation": "simulated: pseudo-random float32 normals from the run's seed. They protect nothing.",
}
CLIENTS_NOTE = (
    "deployment: how often the server asked each client, and how many of its messages it used. A client's spending is in "
    "its own ledger; it cannot have answered more often than the server asked."
)


def open_run(path: Path, job: Job, checksums: dict[str, str]) -> RunFolder:
    """Open a new run folder, or the one of a killed server.

    Parameters
    ----------
    path, job, checksums
        The folder, the job, and the checksums of the test data.

    Returns
    -------
    RunFolder
        The open folder.
    """
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
        raise ConfigError(f"{folder.path} holds a run of another job, or of another engine: choose another flower.out.")


def describe_asked(
    asked: np.ndarray,
    used: np.ndarray,
    refused: np.ndarray,
    epsilon: Callable[[int], float | None],
    test: TestSet | None,
    classes: int,
) -> dict[str, Any]:
    """Return the server's knowledge about its clients, for clients.json.

    Parameters
    ----------
    asked, used, refused : ndarray
        [clients]: how often each was asked to train, how many of its messages were used, and how many no honest client
        could have sent.
    epsilon : callable
        `number of requests -> the most that a client can have spent`; None if there is no guarantee.
    test : TestSet or None
        The server's test examples; its labels are counted.
    classes : int
        The number of classes.

    Returns
    -------
    dict
        Values for JSON.
    """
    counts = zip(asked.tolist(), used.tolist(), refused.tolist(), strict=True)
    clients = [
        {"client": client_name(i), "name": str(i), "asked": often, "participations": heard, "refused": wrong}
        | {"epsilon_at_most": epsilon(often)}
        for i, (often, heard, wrong) in enumerate(counts)
    ]
    tested = {} if test is None else label_counts(np.asarray(test.labels), classes)
    return {"note": CLIENTS_NOTE, **tested, "clients": clients}


def names_of(job: Job) -> ModelNames:
    """Return the meaning of the model's rows and columns, and whether new rows of a table can be encoded.

    Parameters
    ----------
    job : Job
        The job.

    Returns
    -------
    ModelNames
        The names.
    """
    name = job.config.data.name
    known = job.table is not None or (name in DATASETS and tuple(job.features) == input_names(name, None))
    return ModelNames(tuple(job.classes), job.feature_names, job.table, known)


def epsilon_at_most(plan: Plan, asked: int, others: list[float]) -> float:
    """Return the most that a client can have spent: it cannot have answered more often than the server asked.

    Parameters
    ----------
    plan : Plan
        That of the job.
    asked : int
        How often the client was asked to train.
    others : list of float
        Noise multipliers of its other releases: evaluations, and means and deviations.

    Returns
    -------
    float
        The epsilon, at the delta of the plan.
    """
    releases = [plan.cost_multiplier()] * min(asked, plan.participations) + others
    effective = [effective_multiplier(z, plan.relation) for z in releases]
    return gdp_epsilon(compose_gdp(effective), plan.delta) if effective else 0.0


def guarantee(job: Job, asked: np.ndarray, used: np.ndarray, others: list[float]) -> dict[str, Any]:
    """Return the guarantee, from the number of requests to the busiest client.

    Parameters
    ----------
    job : Job
        The job.
    asked, used : ndarray
        [clients] requests, and messages that were used.
    others : list of float
        As in `epsilon_at_most`.

    Returns
    -------
    dict
        Entries of the summary; none without a mechanism.
    """
    plan, protected = job.setup[1], job.noise == "secure"
    if plan is None:
        return {}
    epsilon = epsilon_at_most(plan, int(asked.max()), others)
    return {
        "epsilon": epsilon if protected else None,
        "epsilon_of_job": job_epsilon(job),
        "delta": plan.delta,
        **plan.terms(),
        "refused_participations": int(asked.sum() - used.sum()),
        "guarantee": plan.sentence(epsilon) if protected else f"Nothing is guaranteed: {NOISE_NOTES['simulation']}",
    }
