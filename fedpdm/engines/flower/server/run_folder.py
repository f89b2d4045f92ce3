"""The server's run folder: a new one, or that of a run to go on with."""

import uuid
from pathlib import Path

from fedpdm.config import Config, digest
from fedpdm.errors import ConfigError
from fedpdm.runs.folder import RunFolder

__all__ = ["NOISE_NOTES", "open_run"]

NOISE_NOTES = {
    "secure": (
        "secure: every client draws exact discrete Gaussian noise from its operating system (OpenDP), keeps its own ledger and "
        "refuses what its own policy does not allow."
    ),
    "simulation": "simulated: pseudo-random float32 normals from the run's seed. They protect nothing.",
}


def open_run(path: Path, config: Config, noise: str, checksums: dict[str, str]) -> tuple[RunFolder, str]:
    """A new run folder, or the one that a killed server left behind; and the job's own name."""
    note = NOISE_NOTES[noise] if config.privacy.mechanism == "sound" else None
    if (path / "manifest.json").is_file():
        folder = RunFolder.reopen(path)
        try:
            return folder, _job_to_go_on_with(folder, config, note)
        except BaseException:
            folder.close()
            raise
    job = f"{digest(config)}-{uuid.uuid4().hex[:12]}"
    about = {"engine": "flower", "job": job, "noise": note}
    return RunFolder.create(path, config, checksums, about), job


def _job_to_go_on_with(folder: RunFolder, config: Config, note: str | None) -> str:
    manifest = folder.manifest()
    if digest(folder.config()) != digest(config):
        raise ConfigError(f"{folder.path} holds a run with other settings: name another flower.out, or use its settings.")
    if manifest.get("engine") != "flower" or manifest["noise"] != note:
        raise ConfigError(f"{folder.path} holds a run of another engine, or with other noise: name another flower.out.")
    return manifest["job"]
