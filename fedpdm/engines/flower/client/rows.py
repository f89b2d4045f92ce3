"""A node's own rows, each read by itself: one that is malformed is empty, whatever it holds, and changes no other row.

A CSV or LibSVM file has one row per line here. So an open quote, too many fields or bytes that are no text spoil their own line
and nothing else; `fedpdm.data.tables`, which is for an owner's eyes, refuses the whole file instead.
"""

import csv
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.data.encoding import as_words, encode, known_numbers
from fedpdm.data.schema import Number, Schema
from fedpdm.data.tables import Table, number_word, read_table, table_from_columns
from fedpdm.errors import DataError

__all__ = ["Rows", "read_rows", "read_arrays"]

_DECIMAL_COMMA = re.compile(r"^(\s*[+-]?\d+),(\d+\s*)$")


class Rows(NamedTuple):
    """Rows before the public map; those that are not `good` count as empty slots."""

    features: np.ndarray  # [n, d] float32
    labels: np.ndarray  # [n] int32
    good: np.ndarray  # [n] bool


def read_rows(path: Path, schema: Schema) -> Rows:
    """The rows of a table by a public schema: nothing about the encoding is read off them."""
    if not path.is_file():
        raise DataError(f"The file {path} is not there.")
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return _encoded(schema, *_read_lines(path))
    if kind in (".libsvm", ".svm", ".svmlight"):
        return _encoded(schema, *_read_libsvm(path, schema))
    table = read_table(path)
    return _encoded(schema, table, np.ones(table.rows, bool))


def read_arrays(path: Path, features: int, classes: int) -> Rows:
    """The rows of an NPZ file with arrays `features` [n, d] and `labels` [n]; d and the number of classes are the job's."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x, y = arrays["features"], arrays["labels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is not an NPZ file with features and labels ({error}): write it with "
            "numpy.savez(path, features=..., labels=...)."
        ) from None
    if (
        x.ndim != 2
        or x.shape[1] != features
        or y.shape != (len(x),)
        or x.dtype.kind not in "iufb"
        or y.dtype.kind not in "iufb"
    ):
        raise DataError(f"{path} has features {x.shape} and labels {y.shape}; the job's model has {features} columns.")
    with np.errstate(all="ignore"):
        labels = np.where(np.isin(y, np.arange(classes)), y, -1).astype(np.int32)
        return Rows(x.astype(np.float32), labels, labels >= 0)


def _encoded(schema: Schema, table: Table, good: np.ndarray) -> Rows:
    """The rows as features and labels; a word where a number should be, or an unknown label, makes its row a bad one."""
    import polars as pl

    columns = dict(table.columns)
    for name, column in schema.columns.items():
        if isinstance(column, Number):
            known = known_numbers(table.column(name))
            numbers = known.cast(pl.Float64, strict=False)
            wrong = known.is_not_null() & ~numbers.is_finite().fill_null(False)
            good = good & ~wrong.to_numpy()
            columns[name] = numbers.set(wrong, None)
    places = {word: place for place, word in enumerate(schema.classes)}
    words = as_words(table.column(schema.label, "label column"), schema.classes)
    labels = np.array([-1 if word is None else places.get(word, -1) for word in words], np.int32)
    features = encode(schema, table._replace(columns=columns), labelled=False).features
    return Rows(features, labels, good & (labels >= 0))


def _lines(path: Path) -> list[str]:
    """The lines of a file that are not blank."""
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DataError(f"The file {path} cannot be read: {error.strerror}.") from None
    lines = []
    for line in content.split(b"\n"):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("latin-1")
        if text.strip():
            lines.append(text.rstrip("\r"))
    return lines


def _fields(line: str, separator: str) -> list[str]:
    """The fields of one line; none at all if it is no line of a CSV file by itself."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True))
    except (csv.Error, StopIteration):
        return []


def _read_lines(path: Path) -> tuple[Table, np.ndarray]:
    """A CSV file, whose first line has the public names of the columns."""
    lines = _lines(path)
    if not lines:
        raise DataError(f"{path} is empty: its first line must name the columns.")
    separator = max(",;\t|", key=lines[0].count)
    names = [name.strip() for name in _fields(lines[0], separator)]
    if not names or len(set(names)) < len(names):
        raise DataError(f"{path}: its first line does not name every column once.")
    rows = [_fields(line, separator) for line in lines[1:]]
    good = np.array([len(row) == len(names) for row in rows], bool)
    whole = [row if fits else [None] * len(names) for row, fits in zip(rows, good, strict=True)]
    if separator != ",":
        whole = [[_DECIMAL_COMMA.sub(r"\1.\2", word) if word else word for word in row] for row in whole]
    columns = {name: [row[place] for row in whole] for place, name in enumerate(names)}
    return _table(path, columns, len(rows)), good


def _read_libsvm(path: Path, schema: Schema) -> tuple[Table, np.ndarray]:
    """A LibSVM file: the columns are the schema's, whichever occur."""
    lines = _lines(path)
    names = [name for name in schema.columns if re.fullmatch(r"x[1-9]\d*", name)]
    places = {name: place for place, name in enumerate(names)}
    values, labels = np.zeros((len(lines), len(names))), ["" for _ in lines]
    good = np.ones(len(lines), bool)
    for row, line in enumerate(lines):
        try:
            label, *pairs = line.split("#", 1)[0].split()
            labels[row] = number_word(float(label))
            for index, value in (pair.split(":") for pair in pairs):
                if (place := places.get(f"x{int(index)}")) is not None:
                    values[row, place] = float(value)
        except ValueError:
            good[row], values[row] = False, 0.0
    columns = {schema.label: labels, **{name: values[:, place] for name, place in places.items()}}
    return _table(path, columns, len(lines)), good


def _table(path: Path, columns: Mapping[str, object], rows: int) -> Table:
    if not rows:
        raise DataError(f"{path} has no rows: give at least one.")
    return table_from_columns(columns, path.name)
