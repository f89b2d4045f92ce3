"""Files of a node's rows as columns of any type: no line damages another one.

A CSV or LibSVM file has one row per line here. So an open quote, too many fields or bytes that are not text damage only their
own line. `fedpdm.data.tables`, whose messages only the owner sees, refuses the whole file instead.
"""

import csv
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpdm.data.schema import Schema
from fedpdm.data.tables import npz_columns
from fedpdm.data.values import number_word
from fedpdm.engines.flower.client.cells import column_of
from fedpdm.errors import DataError

if TYPE_CHECKING:
    import polars

__all__ = ["Columns", "load_npz", "read_columns", "without_rows"]

_DECIMAL_COMMA = re.compile(r"^(\s*[+-]?\d+),(\d+\s*)$")
Columns = Mapping[str, "polars.Series"]


def read_columns(path: Path, schema: Schema) -> tuple[Columns, np.ndarray]:
    """Read the columns of a file.

    Parameters
    ----------
    path : Path
        CSV, LibSVM, Parquet or NPZ.
    schema : Schema
        The public schema; it names the columns of a LibSVM file.

    Returns
    -------
    mapping of str to polars.Series, ndarray
        The columns; [rows] bool, whether a line could be read.
    """
    if not path.is_file():
        raise DataError(f"The file {path} does not exist: check data-path in the node's configuration.")
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return _read_lines(path)
    if kind in (".libsvm", ".svm", ".svmlight"):
        return _read_libsvm(path, schema)
    columns = _read_columns(path)
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise DataError(f"{path} has columns of different lengths, or none.")
    return columns, np.ones(lengths.pop(), bool)


def load_npz(path: Path, read: Any, written: str) -> Any:
    """Read an NPZ file.

    Parameters
    ----------
    path : Path
        The file.
    read : callable
        From the open archive to the result.
    written : str
        How to write such a file, for the message.

    Returns
    -------
    Any
        The result of `read`.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return read(arrays)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not an NPZ file as it should be ({error}): write it with {written}.") from None


def without_rows(path: Path, rows: set[int]) -> tuple[int, bytes]:
    """Count the rows of a file, and leave some of them out.

    Parameters
    ----------
    path : Path
        CSV, LibSVM, Parquet or NPZ.
    rows : set of int
        Places of the rows to leave out, counted from 0.

    Returns
    -------
    int, bytes
        The number of rows in the file, and the content without those rows.
    """
    import polars as pl

    if path.is_dir():
        raise DataError(f"{path} is a folder of images: an audit leaves out rows of a file, so give a .npz or .parquet file.")
    kind, out = path.suffix.lower(), io.BytesIO()
    if kind in (".csv", ".tsv", ".libsvm", ".svm", ".svmlight"):
        head = 1 if kind in (".csv", ".tsv") else 0
        lines = _lines(path)
        kept = [line for place, line in enumerate(lines) if place - head not in rows]
        return len(lines) - head, ("\n".join(kept) + "\n").encode()
    if kind == ".parquet":
        frame = pl.read_parquet(path)
        frame.filter([place not in rows for place in range(len(frame))]).write_parquet(out)
        return len(frame), out.getvalue()
    arrays = load_npz(path, lambda found: {name: found[name] for name in found}, "numpy.savez(path, NAME=column, ...)")
    count = max((len(array) for name, array in arrays.items() if name != "feature_names"), default=0)
    left_out = sorted(rows)
    np.savez(out, **{name: a if name == "feature_names" else np.delete(a, left_out, axis=0) for name, a in arrays.items()})
    return count, out.getvalue()


def _read_columns(path: Path) -> Columns:
    """Read the columns of a Parquet or NPZ file, of any type."""
    import polars as pl

    if path.suffix.lower() == ".npz":
        arrays = load_npz(path, npz_columns, "numpy.savez(path, NAME=column, ...)")
        return {name: column_of(name, array) if array.ndim == 1 else pl.Series(name, array) for name, array in arrays.items()}
    if path.suffix.lower() != ".parquet":
        raise DataError(f"{path}: a node reads .csv, .tsv, .parquet, .npz and .svm files.")
    try:
        return {column.name: column for column in pl.read_parquet(path).iter_columns()}
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} is not a valid Parquet file: {' '.join(str(error).split())[:200]}.") from None


def _lines(path: Path) -> list[str]:
    """Return the lines of a file that are not blank."""
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
    """Return the fields of one line; none if the line alone is not valid CSV."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True))
    except (csv.Error, StopIteration):
        return []


def _read_lines(path: Path) -> tuple[Columns, np.ndarray]:
    """Read a CSV file, whose first line has the public names of the columns."""
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
    return {name: _words(name, [row[place] for row in whole]) for place, name in enumerate(names)}, good


def _read_libsvm(path: Path, schema: Schema) -> tuple[Columns, np.ndarray]:
    """Read a LibSVM file with the columns of the schema; others do not matter."""
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
    columns = {name: column_of(name, values[:, place]) for name, place in places.items()}
    return {schema.label: _words(schema.label, labels), **columns}, good


def _words(name: str, cells: list[str] | list[str | None]) -> "polars.Series":
    import polars as pl

    return pl.Series(name, cells, pl.String)
