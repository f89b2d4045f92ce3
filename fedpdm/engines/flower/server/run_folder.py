"""The server's run folder: a new one, or that of a run to go on with."""

from pathlib import Path

from fedpdm.data.schema import to_toml
from fedpdm.engines.flower.job import Job, job_toml
from fedpdm.errors import ConfigError
from fedpdm.runs.folder import RunFolder, atomic_write

__all__ = ["NOISE_NOTES", "open_run"]

NOISE_NOTES = {
    "secure": (
        "secure: every client draws exact discrete Gaussian noise from its operating system (OpenDP), keeps its own ledger and "
        "refuses what its own policy does not allow."
    ),
    "simulation": "simulated: pseudo-random float32 normals from the run's seed. They protect nothing.",
}


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
    if job.table is not None:
        folder.keep_schema(to_toml(job.table))
    return folder


def _require_same(folder: RunFolder, job: Job) -> None:
    manifest = folder.manifest()
    if manifest.get("engine") != "flower" or manifest.get("job") != job.digest:
        raise ConfigError(f"{folder.path} holds a run of another job, or of another engine: name another flower.out.")
