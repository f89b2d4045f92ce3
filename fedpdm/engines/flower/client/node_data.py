"""A client's own examples in the job's slots: a part of a known data set, or the client's own file.

Prepared examples are stored in the state folder, in private files, one per job. They are made again when the file has changed:
from the next request on, a deleted row is in none of them.

`approve` and the start of a node refuse a file with more rows than slots. If a file grows later, the node still answers, since
a refusal would tell the server the number of rows: the first rows, in the order of the file, get random slots, and the others
do not count (Lemma P of docs/privacy/proofs.md).
"""

import hashlib
import io
import secrets
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.engines.flower.client.rows import Rows, read_arrays, read_rows
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.job_schema import check_table, schema_digest
from fedpdm.engines.flower.protocol import Refused
from fedpdm.errors import DataError
from fedpdm.runs.folder import atomic_write

__all__ = ["ClientExamples", "NodeSource", "load_examples", "check_schema", "beyond_slots", "forget_old_rows", "forget_job"]
__all__ += ["read_file_rows", "cut_norms"]

FOLDER = "examples"
MOST_KEPT = 4  # jobs whose examples are stored


class NodeSource(NamedTuple):
    """The place of a node's examples."""

    client: int
    path: Path | None  # None: this client's part of the data set in the settings
    schema: Path | None  # the public description of a table; None: that of the job, or the file has arrays
    data_dir: Path | None  # the folder of known data sets


class ClientExamples(NamedTuple):
    """A client's examples after the public map, in the job's slots: empty ones are zero, `held_out` ones are not trained on.

    The first four arrays have one row per slot; this number does not depend on the client's rows.
    """

    features: np.ndarray  # [slots, d] float32
    labels: np.ndarray  # [slots] int32
    filled: np.ndarray  # [slots] bool
    held_out: np.ndarray  # [slots] bool
    beyond: np.ndarray  # [] int64, rows without a slot; only the owner sees this number


def load_examples(source: NodeSource, job: Job, folder: Path) -> ClientExamples:
    """Load the examples, prepared as the job says. They are stored in the state folder, since every message has a new process.

    Parameters
    ----------
    source, job, folder
        The node's data, the job, and the state folder.

    Returns
    -------
    ClientExamples
        The examples in the job's slots.
    """
    forget_old_rows(source, folder)
    path = _path(folder, job.digest)
    if (kept := _read(path, job)) is not None:
        return kept
    examples = _part(source, job) if source.path is None else _file(source, job, _order(job))
    content = io.BytesIO()
    np.savez(content, **examples._asdict())
    path.parent.mkdir(mode=0o700, exist_ok=True)
    for old in sorted(path.parent.glob("*.npz"), key=lambda other: other.stat().st_mtime_ns)[: 1 - MOST_KEPT]:
        old.unlink()
    atomic_write(path, content.getvalue())
    return examples


def beyond_slots(folder: Path, job: Job) -> int:
    """Return how many rows of the file had no slot when the job's examples were last prepared.

    Parameters
    ----------
    folder, job
        The state folder, and the job.

    Returns
    -------
    int
        The number of rows; 0 if the examples are not stored.
    """
    kept = _read(_path(folder, job.digest), job)
    return int(kept.beyond) if kept is not None else 0


def forget_job(folder: Path, digest: str) -> None:
    """Remove the prepared examples of a job.

    Parameters
    ----------
    folder, digest
        The state folder, and the job.
    """
    _path(folder, digest).unlink(missing_ok=True)


def _path(folder: Path, digest: str) -> Path:
    return folder / FOLDER / f"{digest[:32]}.npz"


def forget_old_rows(source: NodeSource, folder: Path) -> None:
    """Remove prepared examples of a file that has changed.

    Parameters
    ----------
    source, folder
        The node's data, and the state folder.
    """
    mark, now = folder / FOLDER / "source", _fingerprint(source)
    if mark.is_file() and mark.read_text() == now:
        return
    for old in (folder / FOLDER).glob("*"):
        old.unlink()
    mark.parent.mkdir(mode=0o700, exist_ok=True)
    atomic_write(mark, now.encode())


def check_schema(source: NodeSource, job: Job) -> None:
    """Refuse a job whose schema differs from this node's: classes, levels, their order and all bounds must be the same.

    Parameters
    ----------
    source, job
        The node's data, and the job.

    Raises
    ------
    Refused
        With the code "schema".
    """
    from fedpdm.data.schema import read_schema

    if source.schema is None:
        return
    own = read_schema(source.schema)
    if job.table is None or schema_digest(job.table) != schema_digest(own):
        raise Refused("schema", f"{source.schema} is not the schema of the job: classes, levels, their order or bounds differ.")


def cut_norms(features: np.ndarray, radius: float) -> np.ndarray:
    """Return the features in float64 with norms of at most `radius`: in float32 they could exceed it in the last digits.

    Parameters
    ----------
    features : ndarray
        [rows, features].
    radius : float
        The bound.

    Returns
    -------
    ndarray
        The cut features.
    """
    exact = features.astype(np.float64)
    limit = radius * (1 - 1e-12)
    norms = np.sqrt(np.sum(exact**2, axis=1, keepdims=True))
    return exact * np.minimum(1.0, limit / np.maximum(norms, limit))


def _fingerprint(source: NodeSource) -> str:
    about: list[object] = [source.client]
    for path in (source.path, source.schema):
        if path is not None:
            try:
                status = path.stat()
            except OSError as error:
                raise DataError(f"The file {path} cannot be read: {error.strerror}.") from None
            about += [str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ino]
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _read(path: Path, job: Job) -> ClientExamples | None:
    """Read stored examples; a broken file is made again."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            kept = ClientExamples(*(arrays[name] for name in ClientExamples._fields))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    whole = kept.features.shape == (job.slots, job.width) and all(len(part) == job.slots for part in kept[:-1])
    return kept if whole else None


def _part(source: NodeSource, job: Job) -> ClientExamples:
    """This client's share of a known, public data set."""
    from fedpdm.data.prepare import build_federation  # slow to import, and rarely needed

    known = build_federation(job.config, source.data_dir, progress=False)
    if not 0 <= source.client < known.clients:
        raise DataError(f"Client {source.client} does not exist among {known.clients} clients: count from 0.")
    size = int(known.sizes[source.client])
    rows = Rows(known.features[source.client, :size], known.labels[source.client, :size], np.ones(size, bool))
    return _in_slots(rows, job, "", _order(job))


def read_file_rows(source: NodeSource, job: Job) -> ClientExamples:
    """Read the rows of a file for its owner: after the map, in the order of the file. Nothing is stored.

    Parameters
    ----------
    source : NodeSource
        The file.
    job : Job
        The job that names map, slots and schema.

    Returns
    -------
    ClientExamples
        Row k is in slot k.
    """
    return _file(source, job, np.arange(job.slots))


def _file(source: NodeSource, job: Job, order: np.ndarray) -> ClientExamples:
    check_schema(source, job)
    assert source.path is not None
    rows = _read_file(source.path, job)
    good = rows.good[: job.slots]
    names, features = tuple(job.features), np.zeros((len(good), job.width), np.float32)
    with np.errstate(all="ignore"):
        for row in np.flatnonzero(good):  # one by one: in a batch the last digits of a row may depend on others
            features[row] = _mapped(job, rows.features[row], names)
    return _in_slots(Rows(features, rows.labels, rows.good), job, str(source.path), order)


def _mapped(job: Job, row: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return one row after the public map; NaN, so that its slot stays empty, if the map does not take it."""
    from fedpdm.data.prepare import map_row

    try:
        return map_row(job.config, row, names)
    except Exception as error:  # a plugin's map may raise any error at an odd row
        _warn(f"the map does not take a row: {type(error).__name__}: {error}")
        return np.full(job.width, np.nan, np.float32)


def _read_file(path: Path, job: Job) -> Rows:
    if job.table is None:
        if path.suffix != ".npz":
            raise DataError(f"{path} is a table, but the job has no schema: make it with `fedpdm flower init --schema`.")
        return read_arrays(path, len(job.features), len(job.classes))
    check_table(job.table)
    return read_rows(path, job.table)


def _in_slots(rows: Rows, job: Job, name: str, order: np.ndarray) -> ClientExamples:
    """Put the first rows into the job's slots. A row that is malformed, or not finite after the map, leaves its slot empty."""
    beyond = max(0, len(rows.labels) - job.slots)
    features, labels, good = (part[: job.slots] for part in rows)
    own, filled = order[: len(labels)], np.zeros(job.slots, bool)
    filled[own] = good & np.isfinite(features).all(axis=1) & (features != 0).any(axis=1)
    if lost := len(labels) - int(filled.sum()):
        _warn(f"{name}: {lost} rows are malformed, without a label or not finite: they do not count.")
    if beyond:
        _warn(f"{name}: {beyond} rows are beyond the job's {job.slots} slots and are not used: leave rows out.")
    slots, places = np.zeros((job.slots, features.shape[1]), np.float32), np.zeros(job.slots, labels.dtype)
    slots[own], places[own] = features, labels
    slots[~filled], places[~filled] = 0.0, 0
    return ClientExamples(slots, places, filled, _held_out(slots, places, filled, job), np.array(beyond))


def _order(job: Job) -> np.ndarray:
    """Draw the slot of the first row, of the second, and so on, so that a slot reveals nothing about a row's position.

    Otherwise a row that is removed from the file would move all later rows to other slots, and so to other batches.
    """
    order = list(range(job.slots))
    if job.noise == "secure" and job.setup[1] is not None:
        secrets.SystemRandom().shuffle(order)
    return np.array(order, np.int64)


def _warn(text: str) -> None:
    print(f"fedpdm: {text}", file=sys.stderr, flush=True)


def _held_out(features: np.ndarray, labels: np.ndarray, filled: np.ndarray, job: Job) -> np.ndarray:
    """Choose the rows for evaluation: a function of each row alone, so that no row affects another one."""
    out = np.zeros(len(labels), bool)
    if job.evaluation is None:
        return out
    limit = int(job.evaluation.share * 2**64)
    for slot in np.flatnonzero(filled):
        content = hashlib.sha256(job.id.encode() + features[slot].tobytes() + labels[slot].tobytes()).digest()
        out[slot] = int.from_bytes(content[:8]) < limit
    return out
