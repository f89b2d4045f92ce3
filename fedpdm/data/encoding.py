"""Rows of a table as the model sees them, by a public schema: nothing is fitted, each row is encoded by itself."""

__all__ = ["Encoded", "encode", "as_numbers", "as_words", "known_numbers"]

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpdm.data.schema import Category, Number, Schema, some
from fedpdm.data.tables import MISSING, MISSING_NUMBERS, Table, number_word
from fedpdm.errors import DataError

if TYPE_CHECKING:
    import polars


class Encoded(NamedTuple):
    """Rows as the model sees them.

    Attributes
    ----------
    features : ndarray
        [rows, features] float32 in [0, 1].
    labels : ndarray
        [rows] int32; empty if they were not asked for.
    clients : ndarray
        [rows] str, whose row it is; empty if the schema has no client column or labels were not asked for.
    notes : tuple of str
        What was done to values that did not fit, with counts.
    """

    features: np.ndarray
    labels: np.ndarray
    clients: np.ndarray
    notes: tuple[str, ...]


def encode(schema: Schema, table: Table, labelled: bool = True) -> Encoded:
    """Encode a table's rows. Rows without a label are left out, and counted.

    Parameters
    ----------
    schema, table : Schema, Table
        The public description, and the rows.
    labelled : bool
        Read the label (and the client, if there is one) too; otherwise those columns need not be there.

    Raises
    ------
    DataError
        If a column is missing, a number is a word, or a label is none of the classes.
    """
    notes: list[str] = []
    blocks = [np.zeros((table.rows, 0))]
    for name, column in schema.columns.items():
        if isinstance(column, Number):
            blocks.append(_encode_number(column, table, name, notes))
        elif isinstance(column, Category):
            blocks.append(_encode_category(column, table, name, notes))
    if schema.bias:
        blocks.append(np.ones((table.rows, 1)))
    features = np.concatenate(blocks, axis=1, dtype=np.float32)
    if not labelled:
        return Encoded(features, np.zeros(0, np.int32), np.zeros(0, str), tuple(notes))
    if extra := [name for name in table.columns if name not in (*schema.columns, schema.label, schema.client)]:
        notes.append(f"{_amount(len(extra), 'column')} not in the schema, left out: {some(extra)}")
    labels = _encode_labels(schema, table, notes)
    kept = labels >= 0
    clients = np.array(_clients(table, schema.client) if schema.client else [], str)
    return Encoded(features[kept], labels[kept], clients[kept] if schema.client else clients, tuple(notes))


def as_numbers(series: "polars.Series", where: str) -> np.ndarray:
    """float64 with NaN where a value is missing; a word is an error that names its row, counted from 1."""
    import polars as pl

    series = known_numbers(series)
    numbers = series.cast(pl.Float64, strict=False)
    wrong = series.is_not_null() & ~(numbers.is_finite().fill_null(False))
    if wrong.any():
        row = wrong.arg_max() or 0
        raise DataError(
            f"{where}: row {row + 1} is {series[row]!r}, which is not a number ({wrong.sum()} such of {len(series)}): mend it, "
            'write it as an empty cell if it is not known, or make the column a category (kind = "category" in the schema)'
        )
    return numbers.to_numpy().astype(np.float64, copy=False)


def known_numbers(series: "polars.Series") -> "polars.Series":
    """The column without the words that stand for a missing number."""
    if series.dtype.is_numeric():
        return series
    return series.set(series.str.to_lowercase().is_in(MISSING_NUMBERS).fill_null(False), None)


def as_words(series: "polars.Series", declared: Sequence[str] = ()) -> list[str | None]:
    """Words, with None where a value is missing; the number 7.0 is the word "7".

    A word that is `declared` (a level or class of the schema) is never missing, whatever it looks like.
    """
    if not series.dtype.is_numeric():
        return [
            None if word is None or (word.lower() in MISSING and word not in declared) else word for word in series.to_list()
        ]
    return [None if value is None else number_word(value) for value in series.to_list()]


def _encode_number(column: Number, table: Table, name: str, notes: list[str]) -> np.ndarray:
    values = as_numbers(table.column(name), f"{table.name}, column {name!r}")
    missing = np.isnan(values)
    outside = int(((values < column.low) | (values > column.high)).sum())
    if outside:
        notes.append(f"{name}: {_amount(outside, 'value')} outside [{column.low:g}, {column.high:g}] {_is(outside)} cut to it")
    if count := int(missing.sum()):
        middle = (column.low + column.high) / 2
        verb = "stands" if count == 1 else "stand"
        notes.append(f"{name}: {_amount(count, 'missing value')} {verb} at the middle of the bounds, {middle:g}")
    scaled = np.where(missing, 0.5, np.clip((values - column.low) / (column.high - column.low), 0, 1))
    return np.stack([scaled, missing], axis=1) if column.missing_column else scaled[:, None]


def _encode_category(column: Category, table: Table, name: str, notes: list[str]) -> np.ndarray:
    words = as_words(table.column(name), [*column.levels, *([column.baseline] if column.baseline else [])])
    places = {level: place for place, level in enumerate(column.levels)}
    block = np.zeros((table.rows, len(places)))
    unseen: dict[str, int] = {}
    for row, word in enumerate(words):
        if word in places:
            block[row, places[word]] = 1
        elif word not in (None, column.baseline):
            unseen[word] = unseen.get(word, 0) + 1
    if count := sum(unseen.values()):
        own = "its" if count == 1 else "their"
        notes.append(
            f"{name}: {_amount(count, 'value')} {_is(count)} none of the levels ({some(sorted(unseen))}): all of {own} "
            "indicators are 0"
        )
    if count := words.count(None):
        notes.append(f"{name}: {_amount(count, 'missing value')} {_is(count)} encoded as 0 in every indicator")
    return block


def _encode_labels(schema: Schema, table: Table, notes: list[str]) -> np.ndarray:
    words = as_words(table.column(schema.label, "label column"), schema.classes)
    places: dict[str | None, int] = {name: place for place, name in enumerate(schema.classes)}
    places[None] = -1
    for row, word in enumerate(words):
        if word not in places:
            raise DataError(
                f"{table.name}: row {row + 1} has the label {word!r}, which is none of the classes {some(schema.classes)}: "
                "mend it, leave the row out, or add it to the classes of the schema"
            )
    if count := words.count(None):
        notes.append(f"{schema.label}: {_amount(count, 'row')} without a label {_is(count)} left out")
    labels = np.array([places[word] for word in words], np.int32)
    if not (labels >= 0).any():
        raise DataError(f"{table.name}: no row has a label in {schema.label!r}: fill that column")
    return labels


def _clients(table: Table, column: str) -> list[str]:
    """Whose row it is. Two names that differ in case or spaces only are taken for a slip of the pen."""
    words = as_words(table.column(column, "client column"))
    alike: dict[str, str] = {}
    for row, word in enumerate(words):
        if word is None:
            raise DataError(f"{table.name}: row {row + 1} has no client in {column!r}: fill it, or leave the row out")
        other = alike.setdefault("".join(word.lower().split()), word)
        if other != word:
            raise DataError(
                f"{table.name}: the clients {other!r} and {word!r} in {column!r} differ in case or spaces only: "
                "give one client one name, and two clients names that can be told apart"
            )
    return [str(word) for word in words]


def _amount(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
