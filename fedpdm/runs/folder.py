"""The run folder: settings, measurements, the model, and the state to continue from after a crash.

    manifest.json           settings, versions, seed, git commit, checksums of the data; written first
    schema.toml             the columns of the user's own table
    metrics.jsonl           one line per round; append-only
    checkpoint.safetensors  the state after some round
    model.safetensors       the last and the tail-averaged model, names of features and classes; when done
    clients.json            facts about the clients of a simulation; when done
    SHA256SUMS              checksums of the files above and of the summary; when done
    summary.json            the results; written last, so a run with this file is complete

Every file but metrics.jsonl is replaced in one step. A resumed run removes the rows of metrics.jsonl that are newer than the
checkpoint, and computes the same rows again.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpdm.config import Config, digest, validate
from fedpdm.errors import ConfigError, UserError
from fedpdm.native import native_kernels
from fedpdm.runs.integrity import SUMS, pack_arrays, read_arrays, read_json, require_plain, require_unchanged, sums_of
from fedpdm.version import __version__

__all__ = ["INTERVALS", "REMEDY", "STANDARD", "STEADINESS", "FolderInUse", "RunFolder", "atomic_write", "read_about"]
__all__ += ["read_models"]

STEADINESS, INTERVALS, STANDARD = (
    "steadiness.",
    "intervals.",
    "standard.",
)  # the names of these arrays in model.safetensors begin so
REMEDY = "take the run from a backup, or run again"
SIMULATED = (
    "simulated: pseudo-random float32 normals from the run's seed, accounted as ideal Gaussian noise. Good for measuring "
    "accuracy at a privacy level, not for releasing real data. The objective, the stationarity measure and (with a tolerance) "
    "the numbers of local steps in metrics.jsonl come from the data: they are diagnostics, and no guarantee covers them."
)


class FolderInUse(UserError):
    """A run folder that another process has open."""


def atomic_write(path: Path, content: bytes) -> None:
    """Replace a file in one step: after a crash it holds the old content or the new one.

    Parameters
    ----------
    path : Path
        The file.
    content : bytes
        Its new content.
    """
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)  # half a file on a full disk helps nobody
        error.filename = error.filename or str(path)  # a write does not say of which file
        raise
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # else the new name itself can be lost with the power
    finally:
        os.close(folder)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


class RunFolder:
    """One run's folder, locked against a second process while it is open."""

    def __init__(self, path: Path):
        self.path = path
        self.manifest_path = path / "manifest.json"
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.model_path = path / "model.safetensors"
        self.clients_path = path / "clients.json"
        self.summary_path = path / "summary.json"
        self.schema_path = path / "schema.toml"
        self._lock_path, self._lock = path / ".lock", None
        require_plain(
            [
                *(self.manifest_path, self.metrics_path, self.checkpoint_path, self.model_path, self.clients_path),
                *(self.summary_path, self.schema_path, self._lock_path, path / SUMS, path / "ledger.sqlite"),
            ]
        )

    @classmethod
    def create(cls, path: Path, config: Config, checksums: dict[str, str], about: dict[str, Any] | None = None) -> "RunFolder":
        """Make the folder (exactly `path`) and write the manifest, with facts `about` the run; refuse a folder with a run."""
        cls.check_free(path)
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder._acquire()
            atomic_write(folder.manifest_path, _json(_manifest(config, checksums) | (about or {})))
        except OSError as error:
            folder.close()
            raise UserError(f"The folder {path} cannot be written: {error.strerror}. Choose another --out.") from None
        return folder

    @classmethod
    def check_free(cls, path: Path) -> None:
        """Refuse a folder that holds a run."""
        if cls(path).manifest_path.exists():
            raise UserError(f"{path} already holds a run: continue it with `--resume {path}`, or choose another --out.")

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        """Open an existing run to continue it."""
        folder = cls(path)
        if not folder.manifest_path.is_file():
            raise UserError(f"{path} holds no run (there is no manifest.json): nothing to resume.")
        try:
            folder._acquire()
        except OSError as error:
            raise UserError(f"The folder {path} cannot be written: {error.strerror}.") from None
        return folder

    def _acquire(self) -> None:
        # a link must not lead to another file, which would be cut
        self._lock = os.fdopen(os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise FolderInUse(f"{self.path} is in use by another process.") from None

    def close(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def config(self) -> Config:
        """Return the settings that the run began with; raise an error if they were edited since."""
        manifest = self.manifest()
        config = validate(manifest.get("config", {}))
        if digest(config) != manifest.get("config_digest"):
            raise ConfigError(
                f"The settings in {self.manifest_path} were edited since the run began, so it cannot be resumed: "
                "undo the edit, or start a new run with --out."
            )
        return config

    def manifest(self) -> dict[str, Any]:
        return read_json(self.manifest_path, "take the run from a backup, or start a new one with --out")

    def needs_ledger(self) -> bool:
        """Tell whether the run records what it spends; in a deployment the clients do."""
        return self.config().privacy.mechanism == "sound" and self.manifest().get("engine") != "flower"

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Add measurements, one line each."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        """Return all complete lines, without the half line that a crash can leave."""
        if not self.metrics_path.exists():
            return []
        try:
            lines = self.metrics_path.read_bytes().split(b"\n")
        except OSError as error:
            raise UserError(f"{self.metrics_path} cannot be read ({error.strerror}).") from None
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line) if line.strip() else None
                if row is not None and not isinstance(row["round"], int):
                    raise ValueError
            except (ValueError, KeyError, TypeError, RecursionError):
                if number == len(lines):  # it does not end: the process died while it wrote
                    break
                raise UserError(f"{self.metrics_path} is broken in line {number}: {REMEDY}.") from None
            rows += [] if row is None else [row]
        return rows

    def save_checkpoint(self, state: Any, round_index: int, config_digest: str) -> None:
        """Store the state (any pytree of arrays) after `round_index` rounds."""
        leaves = {f"{i:03d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        atomic_write(self.checkpoint_path, pack_arrays(leaves, {"round": round_index, "config_digest": config_digest}))

    def load_checkpoint(self, like: Any, config_digest: str) -> tuple[Any, int] | None:
        """Return the state of the last checkpoint in the shape of `like`, and its round; cut the metrics to match."""
        if not self.checkpoint_path.exists():
            self._cut_metrics(0)
            return None
        arrays, about = read_arrays(self.checkpoint_path, "remove it to begin again", unchecked=False)
        leaves = [arrays[name] for name in sorted(arrays)]
        if about.get("config_digest") != config_digest:
            raise ConfigError(f"{self.checkpoint_path} belongs to other settings than manifest.json: cannot resume.")
        expected, structure = jax.tree.flatten(like)
        if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in expected]:
            raise UserError(f"{self.checkpoint_path} does not fit this version: remove it to begin again.")
        round_index = int(about["round"])
        self._cut_metrics(round_index)
        return jax.tree.unflatten(structure, leaves), round_index

    def _cut_metrics(self, round_index: int) -> None:
        kept = [row for row in self.rows() if row["round"] <= round_index]
        atomic_write(self.metrics_path, "".join(json.dumps(row) + "\n" for row in kept).encode())

    def keep_schema(self, text: str) -> None:
        """Write the schema of the run's table, which encodes new rows."""
        atomic_write(self.schema_path, text.encode())

    def keep_clients(self, clients: dict[str, Any]) -> None:
        """Write the facts about the clients of a simulation."""
        atomic_write(self.clients_path, (json.dumps(clients, allow_nan=False) + "\n").encode())

    def finish(self, models: dict[str, np.ndarray], about: dict[str, Any], summary: dict[str, Any]) -> None:
        """Write the models, then the summary."""
        atomic_write(self.model_path, pack_arrays(models, about))
        others = [self.manifest_path, self.schema_path, self.metrics_path, self.clients_path, self.model_path]
        sums = sums_of(self.path, [path.name for path in others])
        own = f"{hashlib.sha256(_json(summary)).hexdigest()}  {self.summary_path.name}\n"
        atomic_write(self.path / SUMS, sums + own.encode())
        atomic_write(self.summary_path, _json(summary))

    def summary(self) -> dict[str, Any] | None:
        """Return the results, or None while the run is not complete."""
        if not self.summary_path.exists():
            return None
        require_unchanged(self.path)
        return read_json(self.summary_path, REMEDY)


def read_models(path: Path) -> dict[str, np.ndarray]:
    """Read the models of a finished run.

    Parameters
    ----------
    path : Path
        The run folder.

    Returns
    -------
    dict of ndarray
        "model" and "averaged_model"; and the steadiness of their coefficients, if it is known.
    """
    return read_arrays(path / "model.safetensors", REMEDY)[0]


def read_about(path: Path) -> dict[str, Any]:
    """Read the facts in the model file: data, loss, and the names of classes and columns.

    Parameters
    ----------
    path : Path
        The run folder.

    Returns
    -------
    dict
        The facts.
    """
    return read_arrays(path / "model.safetensors", REMEDY)[1]


def _manifest(config: Config, checksums: dict[str, str]) -> dict[str, Any]:
    return {
        "format": 1,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": config.model_dump(mode="json"),
        "config_digest": digest(config),
        "seed": config.seed,
        "data_checksums": checksums,
        "versions": {
            "fedpdm": __version__,
            "python": platform.python_version(),
            "jax": jax.__version__,
            "numpy": np.__version__,
            "numba": metadata.version("numba") if native_kernels() else None,
        },
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "git_commit": _git_commit(),
        "noise": None if config.privacy.mechanism == "none" else SIMULATED,
    }


def _git_commit() -> str | None:
    """Return the commit of the source tree, if the package runs from one; "+" marks uncommitted changes."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        describe = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
        return subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
