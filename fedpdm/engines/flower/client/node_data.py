"""A client's own examples: a part of a known data set, or a file of its own."""

import hashlib
import io
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.choices import is_table
from fedpdm.config import Config
from fedpdm.data.datasets import Dataset
from fedpdm.engines.flower.protocol import Refused
from fedpdm.errors import DataError
from fedpdm.runs.folder import atomic_write

__all__ = ["ClientExamples", "NodeSource", "load_examples", "cut_norms"]


class NodeSource(NamedTuple):
    """Where a node finds its examples."""

    client: int
    path: Path | None  # None: this client's part of the data set that the settings name
    schema: Path | None  # the public description of a table; None: the file has arrays
    data_dir: Path | None  # where known data sets are looked for


class ClientExamples(NamedTuple):
    """A client's examples behind the public map, and the public number of classes."""

    features: np.ndarray  # [n, d] float32
    labels: np.ndarray  # [n] int32
    classes: int


def load_examples(source: NodeSource, config: Config, cache: Path) -> ClientExamples:
    """The examples, prepared as the settings say.

    A new process starts for every message, so what was prepared is kept in the folder `cache` under a name made of the
    settings and of the file's size and time.
    """
    path = cache / f"examples-{_key(source, config)}.npz"
    if path.is_file():
        with np.load(path) as arrays:
            return ClientExamples(arrays["features"], arrays["labels"], int(arrays["classes"]))
    examples = _part(source, config) if source.path is None else _file(source.path, source.schema, config)
    content = io.BytesIO()
    np.savez(content, features=examples.features, labels=examples.labels, classes=examples.classes)
    atomic_write(path, content.getvalue())
    return examples


def cut_norms(features: np.ndarray, radius: float) -> np.ndarray:
    """The features in float64, their norms at most `radius`: float32 alone would let them exceed it in the last digits."""
    exact = features.astype(np.float64)
    limit = radius * (1 - 1e-12)
    norms = np.sqrt(np.sum(exact**2, axis=1, keepdims=True))
    return exact * np.minimum(1.0, limit / np.maximum(norms, limit))


def _key(source: NodeSource, config: Config) -> str:
    about = [config.data.model_dump(mode="json"), config.privacy.mechanism, source.client]
    for path in (source.path, source.schema):
        if path is None:
            continue
        try:
            status = path.stat()
        except OSError as error:
            raise DataError(f"The file {path} cannot be read: {error.strerror}.") from None
        about += [str(path.absolute()), status.st_size, status.st_mtime_ns]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def _part(source: NodeSource, config: Config) -> ClientExamples:
    from fedpdm.data.prepare import build_federation  # slow to import, and seldom needed

    if is_table(config.data.name):
        raise Refused(
            "data-path",
            f"data.name={config.data.name!r} is a file; a node reads no file but the data-path of its own configuration.",
        )
    known = build_federation(config, source.data_dir, progress=False)
    if not 0 <= source.client < known.clients:
        raise DataError(f"Client {source.client} is none of the {known.clients} clients: count from 0.")
    size = int(known.sizes[source.client])
    return ClientExamples(known.features[source.client, :size], known.labels[source.client, :size], known.classes)


def _file(path: Path, schema: Path | None, config: Config) -> ClientExamples:
    from fedpdm.data.prepare import prepare

    dataset = prepare(config, _read_npz(path) if schema is None else _read_table(path, schema))
    return ClientExamples(dataset.features, dataset.labels, len(dataset.class_names))


def _read_table(path: Path, schema_path: Path) -> Dataset:
    """Rows by a public schema, which all nodes share: nothing about the encoding is read off the rows."""
    from fedpdm.data.encoding import encode
    from fedpdm.data.schema import read_schema
    from fedpdm.data.tables import read_table

    schema = read_schema(schema_path)
    if schema.cost:
        raise DataError(
            f"{schema_path} was read off rows at a cost of epsilon={schema.cost.epsilon:g}, which a node's ledger "
            "does not know: lower the budget in the policy by it, and take [cost] out of the schema."
        )
    if schema.from_rows:
        raise DataError(
            f"{schema_path}: its bounds and levels were read off rows (from_rows = true): put in what is known without them, "
            "the same at all nodes, and take that line out."
        )
    table = read_table(path)
    rows = encode(schema, table)
    for note in rows.notes:
        print(f"fedpdm: {path}: {note}", file=sys.stderr)
    if len(rows.labels) < table.rows:  # the number of a node's examples is taken for public
        raise DataError(f"{path}: {table.rows - len(rows.labels)} rows have no label in {schema.label!r}: leave them out.")
    if not table.rows:
        raise DataError(f"{path} has no rows: give at least one.")
    return Dataset(
        path.name,
        rows.features,
        rows.labels,
        rows.features[:1],
        rows.labels[:1],
        tuple(schema.classes),
        schema.feature_names,
        {},
    )


def _read_npz(path: Path) -> Dataset:
    """Arrays `features` [n, d] and `labels` [n], and the public number `classes`."""
    from fedpdm.data.federation import federation_from_arrays

    if path.suffix != ".npz":
        raise DataError(f"{path} is a table: the node's configuration must name its public schema too (schema='...').")
    try:
        with np.load(path) as arrays:
            features, labels, classes = arrays["features"], arrays["labels"], int(arrays["classes"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} is not an NPZ file with features, labels and the number of classes ({error}): write it with "
            "numpy.savez(path, features=..., labels=..., classes=...)."
        ) from None
    checked = federation_from_arrays([(features, labels)], features[:1], labels[:1])
    if int(labels.max()) >= classes:
        raise DataError(f"{path} has label {int(labels.max())}, but {classes} classes: labels count from 0.")
    names = tuple(map(str, range(classes)))
    own, test = (checked.features[0], checked.labels[0]), (checked.test_features, checked.test_labels)
    return Dataset(path.name, *own, *test, names, checked.feature_names, {})
