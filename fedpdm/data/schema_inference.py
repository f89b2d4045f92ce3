"""A schema read off a table. Its bounds and levels come from the rows, so it is public only if the rows are."""

__all__ = ["Inferred", "infer_schema", "in_order", "MAX_LEVELS", "MAX_CLASSES"]

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpdm.data.encoding import as_numbers, as_words, known_numbers
from fedpdm.data.schema import Category, Column, Ignored, Number, Schema
from fedpdm.data.tables import Table
from fedpdm.errors import DataError

if TYPE_CHECKING:
    import polars

MAX_LEVELS = 50  # a column with more different words is taken for names or numbers of people, and ignored
MAX_CLASSES = 100
MANY = 20  # rows of which it is no accident that all of their numbers differ


class Inferred(NamedTuple):
    """A schema that was read off rows, and what a person should know about it."""

    schema: Schema
    notes: tuple[str, ...]


def infer_schema(table: Table, label: str, client: str | None = None) -> Inferred:
    """Take the kind, the bounds and the levels of every column from the rows.

    A column of numbers is a number between the least and the largest; all else, codes such as 007 too, is a category of
    the words that occur. Columns with one value, or with more than `MAX_LEVELS` words, are ignored.

    Parameters
    ----------
    table : Table
        The rows.
    label, client : str
        The column to predict, and the one that says whose row it is.
    """
    classes = _classes(table, label)
    if client is not None:
        table.column(client, "client column")
    notes: list[str] = []
    columns: dict[str, Column] = {
        name: _infer_column(table, name, series, notes) for name, series in table.columns.items() if name not in (label, client)
    }
    if all(isinstance(column, Ignored) for column in columns.values()):
        raise DataError(
            f"{table.name} has no column to learn from beside the label {label!r}: {'; '.join(notes) or 'add some'}"
        )
    return Inferred(Schema(label=label, classes=classes, client=client, from_rows=True, columns=columns), tuple(notes))


def _classes(table: Table, label: str) -> list[str]:
    found = {word for word in as_words(table.column(label, "label column")) if word is not None}
    if len(found) < 2:
        what = f"the single value {min(found)!r}" if found else "no values"
        raise DataError(f"{table.name}: the label column {label!r} has {what}: a classifier needs at least 2 classes")
    if len(found) > MAX_CLASSES:
        raise DataError(
            f"{table.name}: the label column {label!r} has {len(found)} different values, more than {MAX_CLASSES}: "
            "name a column of classes, or write the classes into a schema"
        )
    return in_order(found)


def in_order(words: set[str]) -> list[str]:
    """As numbers if all of them are, else by the alphabet."""
    try:
        return sorted(words, key=float)
    except ValueError:
        return sorted(words)


def _infer_column(table: Table, name: str, series: "polars.Series", notes: list[str]) -> Column:
    import polars as pl

    words = [word for word in as_words(series) if word is not None]
    if not words:
        notes.append(f"{name}: ignored, since it is missing in every row")
        return Ignored()
    known = known_numbers(series).drop_nulls()
    numbers = int(known.cast(pl.Float64, strict=False).is_finite().fill_null(False).sum())
    code = known.dtype == pl.String and known.str.contains(r"^0\d").any()  # 007 is a name, not the number 7
    # mostly numbers: then a word among them is a slip, which as_numbers tells with its row
    if len(known) and numbers >= len(known) / 2 and not code:
        values = as_numbers(series, f"{table.name}, column {name!r}")
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        if low < high:
            notes += _doubts(name, values[~np.isnan(values)])
            return Number(low=low, high=high, missing_column=bool(np.isnan(values).any()))
        notes.append(f"{name}: ignored, since it is {low:g} in every row")
        return Ignored()
    levels = set(words)
    if len(levels) == 1 and len(words) == len(series):
        notes.append(f"{name}: ignored, since it is {min(levels)!r} in every row")
        return Ignored()
    if len(levels) > MAX_LEVELS:
        notes.append(f"{name}: ignored, since it has {len(levels)} different words, more than {MAX_LEVELS}")
        return Ignored()
    return Category(levels=in_order(levels))


def _doubts(name: str, values: np.ndarray) -> list[str]:
    """Numbers that look like something else: said, not acted on."""
    whole = bool((values == np.floor(values)).all())
    if whole and all(_is_date(int(value)) for value in np.unique(values)):
        return [f'{name}: looks like dates written as numbers; if so, make it kind = "ignored" in a schema']
    if whole and len(values) >= MANY and len(np.unique(values)) == len(values):
        return [
            f'{name}: a different whole number in every row; if it only names the row, make it kind = "ignored" in a schema'
        ]
    return []


def _is_date(number: int) -> bool:
    return 1900 <= number // 10000 <= 2100 and 1 <= number // 100 % 100 <= 12 and 1 <= number % 100 <= 31
