"""A table of one's own as a data set: its schema, its test rows, its clients."""

__all__ = ["CustomData", "load_custom"]

import hashlib
from typing import NamedTuple

import numpy as np

from fedpdm.config import DataSection
from fedpdm.data.datasets import Dataset
from fedpdm.data.encoding import Encoded, encode
from fedpdm.data.schema import Ignored, Schema, describe, read_schema, some, to_toml
from fedpdm.data.schema_inference import infer_schema
from fedpdm.data.tables import SKLEARN, Table, read_table
from fedpdm.errors import ConfigError, DataError

TEST_SHARE = 0.2
LEAST_ROWS = 2  # of a client: one to learn from, one to test with


class CustomData(NamedTuple):
    """An own table, ready to be dealt to clients, and what a person should be told about it."""

    dataset: Dataset
    schema: Schema
    notes: tuple[str, ...]


def load_custom(data: DataSection, private: bool = False) -> CustomData:
    """Read the table that the section [data] of the settings names, encode it, and set test rows apart.

    Parameters
    ----------
    data : DataSection
        The settings; `data.name` is the path.
    private : bool
        A guarantee is claimed for the rows: then a schema that is read off them is refused.
    """
    table = read_table(data.name)
    schema, notes = _schema(data, table, private)
    rows = encode(schema, table)
    if private and len(rows.labels) < table.rows:
        raise DataError(
            f"{table.name}: {table.rows - len(rows.labels)} rows have no label in {schema.label!r}: under "
            'privacy.mechanism="sound" take them out of the file, as the number of rows that count is made public'
        )
    notes += rows.notes
    checksums = {table.name: table.checksum, "schema": hashlib.sha256(to_toml(schema).encode()).hexdigest()}
    members = _clients(rows, schema, table.name) if schema.client else [np.arange(len(rows.labels))]
    if data.test_file is None:
        train, test = _split(members, data.test_share or TEST_SHARE, data.partition_seed, table.name)
        held_out = Encoded(rows.features[test], rows.labels[test], rows.clients, ())
    else:
        train, other = np.arange(len(rows.labels)), read_table(data.test_file)
        held_out = encode(_without_client(schema), other)
        checksums[other.name] = other.checksum
        notes += tuple(f"test rows: {note}" for note in held_out.notes)
    names, places = np.unique(rows.clients, return_inverse=True)
    dataset = Dataset(
        name=table.name,
        features=rows.features[train],
        labels=rows.labels[train],
        test_features=held_out.features,
        test_labels=held_out.labels,
        class_names=tuple(schema.classes),
        feature_names=schema.feature_names,
        checksums=checksums,
        clients=places[train].astype(np.int32) if schema.client else np.zeros(0, np.int32),
        client_names=tuple(map(str, names)),
    )
    return CustomData(dataset, schema, (*notes, _shape(dataset)))


def _schema(data: DataSection, table: Table, private: bool) -> tuple[Schema, tuple[str, ...]]:
    """The schema that is named, or else one from the rows, with the lines that tell of it."""
    client = data.client_column
    if data.schema_file is not None:
        schema = read_schema(data.schema_file)
        if private and schema.from_rows:
            raise ConfigError(
                f"{data.schema_file}: its bounds and levels were read off the rows (from_rows = true), so under "
                'privacy.mechanism="sound" they would tell about them: put in what is known without the rows, and take that '
                "line out"
            )
        if data.label not in (None, schema.label):
            raise ConfigError(f"data.label={data.label} is not the label of {data.schema_file}, {schema.label!r}: change one")
        if data.partition == "column" and client is not None and client != schema.client:
            others = {name: column for name, column in schema.columns.items() if name != client}
            schema = Schema.model_validate(schema.model_dump() | {"client": client, "columns": others})
        if data.partition != "column":
            schema = _without_client(schema)
        notes: tuple[str, ...] = (f"schema {data.schema_file}, {len(schema.feature_names)} features:\n{describe(schema)}",)
    else:
        label = data.label or ("target" if table.name.startswith(SKLEARN) else None)
        if label is None:
            columns = some(list(table.columns), 12)
            raise ConfigError(f"{table.name}: say with --label (data.label) which column to predict; its columns are {columns}")
        if private:
            raise ConfigError(_refusal(table.name, label, client))
        schema, more = infer_schema(table, label, client)
        said = f"schema read off the rows, {len(schema.feature_names)} features:\n{describe(schema)}"
        notes = (said, *more)
    if data.partition == "column" and schema.client is None:
        raise ConfigError(
            'data.partition="column" needs the column that says whose row it is: --client-column (data.client_column)'
        )
    return schema, notes


def _refusal(table: str, label: str, client: str | None) -> str:
    column = f" --client-column {client}" if client else ""
    return (
        f'{table}: under privacy.mechanism="sound" bounds and levels must not be read off the private rows, as they would tell '
        f"about them: write them down with `fedpdm data schema {table} --label {label}{column} > my.schema.toml`, put in what "
        "is known without the rows, and pass --schema my.schema.toml (data.schema_file); or have them read privately, as "
        "a part of the budget, with `fedpdm data schema ... --epsilon 0.5 > my.schema.toml`"
    )


def _without_client(schema: Schema) -> Schema:
    """The schema for rows that need no client; the column, if it is there, is ignored."""
    if schema.client is None:
        return schema
    return schema.model_copy(update={"client": None, "columns": {**schema.columns, schema.client: Ignored()}})


def _clients(rows: Encoded, schema: Schema, table: str) -> list[np.ndarray]:
    """The rows of every client."""
    members = [np.flatnonzero(rows.clients == name) for name in np.unique(rows.clients)]
    for part in members:
        if len(part) < LEAST_ROWS:
            raise DataError(
                f"{table}: the client {str(rows.clients[part[0]])!r} in {schema.client!r} has {len(part)} row, but needs at "
                f"least {LEAST_ROWS}: join it with another client, or leave it out"
            )
    if len(members) < 2:
        raise DataError(
            f"{table}: the column {schema.client!r} names one client, {str(rows.clients[0])!r}: name another column, or none"
        )
    return members


def _split(members: list[np.ndarray], share: float, seed: int, table: str) -> tuple[np.ndarray, np.ndarray]:
    """A share of every client's rows to test with, at least one, drawn from the partition's seed."""
    rng, train, test = np.random.default_rng(seed), [], []
    for part in members:
        if len(part) < LEAST_ROWS:
            raise DataError(f"{table} has {len(part)} row with a label: give at least {LEAST_ROWS}")
        order = rng.permutation(part)
        count = min(max(1, round(share * len(part))), len(part) - 1)
        test.append(order[:count])
        train.append(order[count:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def _shape(dataset: Dataset) -> str:
    clients = f" of {len(dataset.client_names)} clients" if dataset.client_names else ""
    return f"{len(dataset.labels)} rows{clients} to learn from, {len(dataset.test_labels)} to test with"
