"""The user's own table as a data set: its schema, its test rows, its clients."""

__all__ = ["READERS", "CustomData", "load_custom"]

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.choices.words import LARGE_FILE
from fedpdm.config import DataSection
from fedpdm.data.blocks import keep_rows
from fedpdm.data.datasets import Dataset
from fedpdm.data.encoding import encode
from fedpdm.data.schema import Ignored, Image, Schema, Text, describe, read_schema, some, to_toml
from fedpdm.data.schema_inference import check_roles, infer_schema
from fedpdm.data.split import gather_small, split
from fedpdm.data.survival import band_places, expand
from fedpdm.data.tables import SKLEARN, Table, read_table
from fedpdm.errors import ConfigError, DataError

TEST_SHARE = 0.2
READERS = ("auto", "hashed", "onnx")  # feature maps that read texts


class CustomData(NamedTuple):
    """The user's own table, ready for clients, and notes about it for the user."""

    dataset: Dataset
    schema: Schema
    notes: tuple[str, ...]


def load_custom(
    data: DataSection,
    private: bool = False,
    target: str | None = None,
    say: Callable[[str], None] | None = None,
) -> CustomData:
    """Read the table that the section [data] of the settings names, encode it, and set test rows apart.

    Parameters
    ----------
    data : DataSection
        The settings; `data.name` is the path.
    private : bool
        Whether the run claims a guarantee for the rows: then a schema that was inferred from them is refused.
    target : str, optional
        "classes", "number" or "time": the kind of label that the loss needs. None: by the schema, or by the rows.
    say : callable, optional
        Is told what is done with a large file, before it is done.

    Returns
    -------
    CustomData
        The data set, its schema, and notes.
    """
    if data.event_column is not None and data.features != "raw":
        raise ConfigError(f"data.features={data.features} does not go with a time to an event: set data.features=raw.")
    path = Path(data.name).expanduser()
    large = path.is_file() and path.stat().st_size > LARGE_FILE
    tell = say if say is not None and large else lambda words: None
    tell(f"reading {path.stat().st_size / 1e6:.0f} MB" if large else "")
    table = read_table(data.name)
    tell(f"encoding {table.rows} rows of {len(table.columns)} columns")
    check_roles(table.name, data.label, data.client_column, data.unit_column)
    schema, notes = _schema(data, table, private, target)
    rows = encode(schema, table, consume=True)
    name, count, checksums = table.name, table.rows, {table.name: table.checksum, "schema": _digest(schema)}
    if any(isinstance(column, Image) for column in schema.columns.values()):  # the table may hold paths only
        checksums["images"] = hashlib.sha256(rows.features.data).hexdigest()
    del table  # its columns are not needed beside the features
    if private and len(rows.labels) < count:
        raise DataError(_unlabelled(name, schema, count - len(rows.labels), count))
    tell("setting test rows apart")
    rows, said = gather_small(rows, data.min_rows)
    notes = (*notes, *rows.notes, *said)
    if schema.client and len(rows.clients.names) == 1:
        raise DataError(
            f"{name}: the column {schema.client!r} has only one client, {rows.clients.names[0]!r}: give another column, or none"
        )
    if data.test_file is None:
        train, test = split(rows, data.test_share or TEST_SHARE, data.partition_seed, name)
        held_out = rows._replace(features=rows.features[test], labels=rows.labels[test])
    else:
        train, test, other = np.arange(len(rows.labels)), np.zeros(0, np.int64), read_table(data.test_file)
        held_out = encode(_without_client(schema.model_copy(update={"unit_column": None})), other)
        checksums[other.name] = other.checksum
        notes += tuple(f"test rows: {note}" for note in held_out.notes)
    dataset = Dataset(
        name=name,
        features=keep_rows(rows.features, train),
        labels=rows.labels[train],
        test_features=held_out.features,
        test_labels=held_out.labels,
        class_names=schema.outputs,
        feature_names=schema.feature_names,
        checksums=checksums,
        clients=rows.clients.places[train] if schema.client else rows.clients.places,
        client_names=rows.clients.names,
        units=np.zeros(0, np.int64) if rows.units is None else rows.units[train],
        test_units=np.zeros(0, np.int64) if rows.units is None or data.test_file else rows.units[test],
    )
    notes = (*notes, _shape(dataset, schema))
    return CustomData(_in_bands(dataset, schema) if schema.target and schema.target.event else dataset, schema, notes)


def _in_bands(dataset: Dataset, schema: Schema) -> Dataset:
    """Rows of time bands in place of subjects. A subject's rows stay together, and each counts one over the bands."""
    places = band_places(schema.label.replace("=", ":"), dataset.feature_names)
    train = expand(dataset.features, dataset.labels, places)
    test = expand(dataset.test_features, dataset.test_labels, places)
    return dataset._replace(
        features=train.features,
        labels=train.labels,
        test_features=test.features,
        test_labels=test.labels,
        clients=dataset.clients[train.subjects] if len(dataset.clients) else dataset.clients,
        units=train.subjects,
        most_rows=len(places) + 1,
    )


def _digest(schema: Schema) -> str:
    return hashlib.sha256(to_toml(schema).encode()).hexdigest()


def _schema(data: DataSection, table: Table, private: bool, target: str | None) -> tuple[Schema, tuple[str, ...]]:
    """Return the schema of the settings, or else one inferred from the rows, with notes about it."""
    client = data.client_column
    if data.schema_file is not None:
        schema = read_schema(data.schema_file)
        if private and schema.from_rows:
            raise ConfigError(
                f"{data.schema_file}: its bounds and levels were inferred from the rows (from_rows = true), so under "
                'privacy.mechanism="sound" they would reveal something about them: replace them by values that are known '
                "without the rows, and remove that line"
            )
        if data.event_column not in (None, schema.target.event if schema.target else None):
            raise ConfigError(f"data.event_column={data.event_column} is not the event of {data.schema_file}: change one")
        if data.label not in (None, schema.label):
            raise ConfigError(f"data.label={data.label} is not the label of {data.schema_file}, {schema.label!r}: change one")
        if data.partition == "column" and client is not None and client != schema.client:
            others = {name: column for name, column in schema.columns.items() if name != client}
            schema = Schema.model_validate(schema.model_dump() | {"client": client, "columns": others})
        if data.unit_column not in (None, schema.unit_column):
            others = {name: column for name, column in schema.columns.items() if name != data.unit_column}
            schema = Schema.model_validate(schema.model_dump() | {"unit_column": data.unit_column, "columns": others})
        if schema.unit_column and schema.cost:
            raise ConfigError(
                f"{data.schema_file} was inferred from the rows with a guarantee for one row (cost), which does not cover all "
                f"rows of one {schema.unit_column}: write a schema from values that are known without the rows"
            )
        if data.partition != "column":
            schema = _without_client(schema)
        notes: tuple[str, ...] = (f"schema {data.schema_file}, {len(schema.feature_names)} features:\n{describe(schema)}",)
    else:
        folder = {"image", "label"} <= table.columns.keys() and Path(data.name).expanduser().is_dir()
        label = data.label or ("target" if table.name.startswith(SKLEARN) else "label" if folder else None)
        if label is None:
            columns = some(list(table.columns), 12)
            raise ConfigError(f"{table.name}: name the column to predict with --label (data.label); its columns are {columns}")
        if private:
            raise ConfigError(_refusal(data, table.name, label))
        schema, more = infer_schema(table, label, client, data.unit_column, target, data.event_column)
        schema, more = _without_texts(schema, more) if data.features not in READERS else (schema, more)
        said = f"schema inferred from the rows, {len(schema.feature_names)} features:\n{describe(schema)}"
        notes = (said, *more)
    if data.partition == "column" and schema.client is None:
        raise ConfigError(
            'data.partition="column" needs the column with the owner of a row: --client-column (data.client_column)'
        )
    return schema, notes


def _without_texts(schema: Schema, notes: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
    """Leave out the texts of an inferred schema if the feature map of the settings does not read them."""
    texts = [name for name, column in schema.columns.items() if isinstance(column, Text)]
    if not texts:
        return schema, notes
    columns = {name: Ignored() if name in texts else column for name, column in schema.columns.items()}
    if all(isinstance(column, Ignored) for column in columns.values()):
        return schema, notes  # there is nothing else to learn from: `prepare` names the maps that read texts
    said = f"left out, as {some(texts)} looks like text: `fedpdm run mapped ...` (data.features=auto) reads it"
    return schema.model_copy(update={"columns": columns}), (*notes, said)


def _refusal(data: DataSection, table: str, label: str) -> str:
    flags = {"--client-column": data.client_column, "--unit": data.unit_column, "--event": data.event_column}
    named = "".join(f" {flag} {column}" for flag, column in flags.items() if column)
    private = "Or infer them privately, with a part of the budget: `fedpdm data schema ... --epsilon 0.5 > my.schema.toml`"
    if data.unit_column or data.event_column:
        private = "They cannot be inferred with noise here: that is for classes, and for one row as the unit"
    return (
        f'{table}: under privacy.mechanism="sound" bounds and levels must not come from the private rows, because they would '
        f"reveal something about them. Run `fedpdm data schema {table} --label {label}{named} > my.schema.toml`, replace its "
        f"values by ones that are known without the rows, and pass --schema my.schema.toml (data.schema_file). {private}"
    )


def _unlabelled(table: str, schema: Schema, missing: int, rows: int) -> str:
    secret = "if not, write 'unknown' into these cells and into `classes` of the schema. " if not schema.target else ""
    return (
        f'{table}: {missing} of {rows} rows have no label in {schema.label!r}. Under privacy.mechanism="sound" the number of a '
        "client's rows is public, so leaving them out would tell how many have a label. If everybody may know that, remove "
        f"these rows from the file; {secret}Deployed nodes need no such step: a row without a label is an empty slot there"
    )


def _without_client(schema: Schema) -> Schema:
    """Return the schema for rows that need no client; the column is ignored if it exists."""
    if schema.client is None:
        return schema
    return schema.model_copy(update={"client": None, "columns": {**schema.columns, schema.client: Ignored()}})


def _shape(dataset: Dataset, schema: Schema) -> str:
    clients = f" of {len(dataset.client_names)} clients" if dataset.client_names else ""
    persons = f", with {len(np.unique(dataset.units))} different {schema.unit_column!r}," if len(dataset.units) else ""
    return f"{len(dataset.labels)} rows{clients}{persons} to learn from, {len(dataset.test_labels)} to test with"
