"""A client's own examples in the job's slots: a part of a known data set, or the client's own file.

Prepared examples are stored in the state folder, in private files, one per job. They are made again when the file has changed:
from the next request on, a deleted row is in none of them.

`approve` and the start of a node refuse a file with more rows than slots. If a file grows later, the node still answers, since
a refusal would tell the server the number of rows: the first rows, in the order of the file, get random slots, and the others
do not count (Lemma P of docs/privacy/proofs.md).
"""

import hashlib
import io
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.data.limits import require_memory
from fedpdm.engines.flower.client.rows import Places, Rows, read_arrays, read_rows
from fedpdm.engines.flower.client.slots import ClientExamples, deal, in_slots, warn
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
    if (kept := _read(path, job, source.client)) is not None:
        return kept
    examples = _part(source, job) if source.path is None else _file(source, job)
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
    kept = _stored(_path(folder, job.digest))  # its width is not checked: that would need the job's encoder
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
            if path.is_dir():  # its own time does not change with a file below it
                about += [_mark(file) for file in sorted(path.rglob("*")) if file.is_file()]
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _mark(file: Path) -> tuple[str, int, int, int]:
    status = file.stat()
    return str(file), status.st_size, status.st_mtime_ns, status.st_ino


def _stored(path: Path) -> ClientExamples | None:
    """Read a file of examples, if it is there and whole."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return ClientExamples(*(arrays[name] for name in ClientExamples._fields))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _read(path: Path, job: Job, client: int) -> ClientExamples | None:
    """Read stored examples that fit the job; a broken file is made again."""
    kept = _stored(path)
    if kept is None:
        return None
    places = len(kept.features)
    fits = places == job.places_of(client) and kept.features.shape[1:] == (job.width,)
    whole = fits and all(len(part) == places for part in kept[:-1])
    return kept if whole else None


def _part(source: NodeSource, job: Job) -> ClientExamples:
    """This client's share of a known, public data set."""
    from fedpdm.data.prepare import build_federation  # slow to import, and rarely needed

    known = build_federation(job.config, source.data_dir, progress=False)
    if not 0 <= source.client < known.clients:
        raise DataError(f"Client {source.client} does not exist among {known.clients} clients: count from 0.")
    size = int(known.sizes[source.client])
    rows = Rows(known.features[source.client, :size], known.labels[source.client, :size], np.ones(size, bool))
    return in_slots(rows, deal(rows, job, source.client), job, source.client, "")


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
    return _file(source, job, np.arange(job.slots_of(source.client)))


def _file(source: NodeSource, job: Job, order: np.ndarray | None = None) -> ClientExamples:
    check_schema(source, job)
    assert source.path is not None
    rows = _read_file(source.path, job, Places(job.slots_of(source.client), job.unit_rows))
    dealt = deal(rows, job, source.client, order)
    names, width = tuple(job.features), job.width
    features = np.zeros((len(rows.good), width), np.float32)
    with np.errstate(all="ignore"):
        for row in np.flatnonzero(dealt.places >= 0):  # one by one: in a batch the last digits of a row may depend on others
            features[row] = _mapped(job, rows.features[row], names, width)
    return in_slots(rows._replace(features=features), dealt, job, source.client, str(source.path))


def _mapped(job: Job, row: np.ndarray, names: tuple[str, ...], width: int) -> np.ndarray:
    """Return one row after the public map; NaN, so that its slot stays empty, if the map does not take it."""
    from fedpdm.data.prepare import map_row

    try:
        mapped = map_row(job.config, row, names)
        if mapped.shape != (width,):
            raise DataError(f"it gives {len(mapped)} numbers, not {width}")
    except Exception as error:  # a plugin's map, or an encoder, may raise any error at an odd row
        warn(f"the map does not take a row: {type(error).__name__}: {error}")
        return np.full(width, np.nan, np.float32)
    return mapped


def _read_file(path: Path, job: Job, places: Places) -> Rows:
    # of the public places, before any row is read: the number of rows decides nothing
    require_memory(4 * places.slots * (places.unit_rows + (places.unit_rows > 1)) * len(job.features))
    if job.table is None:
        if path.suffix != ".npz":
            raise DataError(f"{path} is a table, but the job has no schema: make it with `fedpdm flower init --schema`.")
        return read_arrays(path, len(job.features), len(job.classes), places)
    check_table(job.table)
    return read_rows(path, job.table, places)
