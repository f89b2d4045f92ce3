"""A node's own rows, each read by itself: a malformed row counts as empty and changes no other row.

The schema decides the meaning of a cell, never the column's type (`cells`). In a file without rows all slots are empty.

Only rows that can get a place are encoded, so memory depends on the job's public slots and not on the number of rows.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpdm.data.encoding import NOT_SEEN, SEEN, encode
from fedpdm.data.schema import Category, Image, Number, Schema, Target, Text
from fedpdm.data.survival import band_places, expand
from fedpdm.data.tables import Table
from fedpdm.engines.flower.client.cells import column_of, numbers_of, text_of, words_of
from fedpdm.engines.flower.client.files import Columns, load_npz, read_columns
from fedpdm.engines.flower.client.images import folder_columns, pixels_and_faults
from fedpdm.errors import DataError

if TYPE_CHECKING:
    import polars

__all__ = ["Places", "Rows", "rank_in_unit", "read_rows", "read_arrays", "unit_numbers"]


class Rows(NamedTuple):
    """Rows before the public map; those that are not `good` count as empty slots."""

    features: np.ndarray  # [n, d] float32
    labels: np.ndarray  # [n] int32, or float32 in [0, 1] if the label is a number
    good: np.ndarray  # [n] bool
    units: tuple[str | None, ...] | None = None  # the person of each row, if the schema names the column; the subject of a time
    beyond: int = 0  # units of the file that are not here: there are more than slots
    cut: int = 0  # good rows that are not here: their person has more of them than count


class Places(NamedTuple):
    """The public number of places for rows."""

    slots: int
    unit_rows: int = 1  # of one person


def read_rows(path: Path, schema: Schema, places: Places | None = None) -> Rows:
    """Read the rows of a table by a public schema; the encoding does not depend on the rows.

    Parameters
    ----------
    path : Path
        The file, or a folder of images.
    schema : Schema
        The public schema.
    places : Places, optional
        The places for rows. Rows that get none are left out; the first one of each person stays. None: all rows stay.

    Returns
    -------
    Rows
        The rows.
    """
    if path.is_dir():
        columns, good, beyond = folder_columns(path, schema, places.slots if places and not schema.unit_column else None)
        found = _encoded(path.name, schema, columns, good, places)
        return found._replace(beyond=found.beyond + beyond)
    return _encoded(path.name, schema, *read_columns(path, schema), places)


def read_arrays(path: Path, features: int, classes: int, places: Places | None = None) -> Rows:
    """Read the rows of an NPZ file with arrays `features` [n, d] and `labels` [n].

    Parameters
    ----------
    path : Path
        The file.
    features, classes : int
        The job's number of columns and of classes.
    places : Places, optional
        The places for rows; further rows are left out. None: all rows stay.

    Returns
    -------
    Rows
        The rows.
    """
    x, y = load_npz(path, lambda arrays: (arrays["features"], arrays["labels"]), "numpy.savez(path, features=..., labels=...)")
    if x.ndim != 2 or x.shape[1] != features or y.shape != (len(x),):
        raise DataError(f"{path} has features {x.shape} and labels {y.shape}; the job's model has {features} columns.")
    most = len(x) if places is None else min(len(x), places.slots)
    with np.errstate(all="ignore"):
        numbers = _plain(y[:most])
        labels = np.where(np.isin(numbers, np.arange(classes)), numbers, -1).astype(np.int32)
        return Rows(_plain(x[:most]).astype(np.float32), labels, labels >= 0, beyond=len(x) - most)


def unit_numbers(units: tuple[str | None, ...] | None, rows: int) -> np.ndarray:
    """Number the units in the order of the file; a row without a person is a unit of its own.

    Parameters
    ----------
    units : tuple or None
        The person of each row; None: every row is a unit.
    rows : int
        The number of rows.

    Returns
    -------
    ndarray
        [rows].
    """
    if units is None:
        return np.arange(rows)
    known: dict[object, int] = {}
    return np.array([known.setdefault(row if unit is None else unit, len(known)) for row, unit in enumerate(units)], np.int64)


def rank_in_unit(units: np.ndarray, good: np.ndarray) -> np.ndarray:
    """Return how many good rows of the same unit come before each row.

    Parameters
    ----------
    units, good : ndarray
        [rows], the number of the unit, and whether the row is a good one.

    Returns
    -------
    ndarray
        [rows].
    """
    order = np.argsort(units, kind="stable")
    before = np.cumsum(good[order]) - good[order]
    firsts = np.diff(units[order], prepend=-1) > 0
    rank = np.empty(len(units), np.int64)
    rank[order] = before - np.maximum.accumulate(np.where(firsts, before, 0))
    return rank


def _plain(array: np.ndarray) -> np.ndarray:
    """Return every number as float64, for any type of the array; NaN for other values."""
    if array.dtype.kind in "iufb":
        return array.astype(np.float64)
    return numbers_of(column_of("", array.ravel()))[0].to_numpy().astype(np.float64).reshape(array.shape)


def _encoded(name: str, schema: Schema, columns: Columns, good: np.ndarray, places: Places | None) -> Rows:
    """Encode rows as features and labels; a word instead of a number, or an unknown label, makes its row a bad one."""
    table = Table(name, dict(columns), len(good), "")
    table, good, units, beyond = _first_units(schema, table, good, places)
    read, good = _read_cells(schema, table, good)
    if schema.target and schema.target.event:
        features = encode(schema, table._replace(columns=read), labelled=False).features
        return _in_bands(schema, schema.target, table, features, good)._replace(beyond=beyond)
    labels, good = _labels(schema, table, good)
    rows, cut = _with_a_place(units, good, places)
    read = {own: column.filter(rows) for own, column in read.items()}
    features = encode(schema, Table(name, read, int(rows.sum()), ""), labelled=False).features
    kept = None if units is None else tuple(unit for unit, here in zip(units, rows, strict=True) if here)
    return Rows(features, labels[rows], good[rows], kept, beyond, cut)


def _first_units(
    schema: Schema, table: Table, good: np.ndarray, places: Places | None
) -> tuple[Table, np.ndarray, tuple[str | None, ...] | None, int]:
    """Leave out the rows of units beyond the slots, unread. Return their number too."""
    by_person = schema.unit_column is not None and not (schema.target and schema.target.event)
    units = tuple(text_of(table.column(schema.unit_column, "unit column"))) if by_person and schema.unit_column else None
    if places is None:
        return table, good, units, 0
    numbers = unit_numbers(units, len(good))
    first = numbers < places.slots
    beyond = max(0, int(numbers.max(initial=-1)) + 1 - places.slots)
    if not beyond:
        return table, good, units, 0
    columns = {name: column.filter(first) for name, column in table.columns.items()}
    units = None if units is None else tuple(unit for unit, here in zip(units, first, strict=True) if here)
    return table._replace(columns=columns, rows=int(first.sum())), good[first], units, beyond


def _with_a_place(units: tuple[str | None, ...] | None, good: np.ndarray, places: Places | None) -> tuple[np.ndarray, int]:
    """Mark the rows that can get a place, and the first row of each unit, so that units keep their order. Count the others."""
    if places is None or units is None:
        return np.ones(len(good), bool), 0
    numbers = unit_numbers(units, len(good))
    fits = rank_in_unit(numbers, good) < places.unit_rows
    firsts = np.zeros(len(good), bool)
    firsts[np.unique(numbers, return_index=True)[1]] = True
    return (good & fits) | firsts, int((good & ~fits).sum())


def _read_cells(schema: Schema, table: Table, good: np.ndarray) -> tuple[dict[str, "polars.Series"], np.ndarray]:
    """Read the cells of all columns, and mark the rows that have no faults."""
    read = {}
    for own, column in schema.columns.items():
        wrong = np.zeros(len(good), bool)
        if isinstance(column, Number):
            read[own], wrong = numbers_of(table.column(own))
        elif isinstance(column, Category):
            baseline = [column.baseline] if column.baseline else []
            read[own] = words_of(table.column(own), [*column.levels, *baseline])
        elif isinstance(column, Text):
            read[own] = text_of(table.column(own))
        elif isinstance(column, Image):
            read[own], wrong = pixels_and_faults(table.column(own), column)
        good = good & ~wrong
    return read, good


def _labels(schema: Schema, table: Table, good: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels, and mark the rows that have one too."""
    if schema.target:
        numbers, wrong = numbers_of(table.column(schema.label, "label column"))
        labels = schema.target.scale(numbers.to_numpy().astype(np.float64))
        return np.nan_to_num(labels), good & ~wrong & ~np.isnan(labels)
    places = {word: place for place, word in enumerate(schema.classes)}
    words = words_of(table.column(schema.label, "label column"), schema.classes)
    labels = np.array([-1 if word is None else places.get(word, -1) for word in words], np.int32)
    return labels, good & (labels >= 0)


def _in_bands(schema: Schema, target: Target, table: Table, features: np.ndarray, good: np.ndarray) -> Rows:
    """Rows of the time bands that each subject enters; its place in the file stands for its name."""
    numbers, wrong = numbers_of(table.column(schema.label, "label column"))
    words = [(word or "").lower() for word in words_of(table.column(target.event or "", "event column"), [*SEEN, *NOT_SEEN])]
    known = np.isin(words, [*SEEN, *NOT_SEEN])
    labels = target.scale_times(numbers.to_numpy().astype(np.float64), np.isin(words, SEEN))
    whole = good & ~wrong & known & ~np.isnan(labels)
    rows = expand(features, np.where(whole, labels, np.float32(1e-6)), band_places(schema.label, schema.feature_names))
    return Rows(rows.features, rows.labels, whole[rows.subjects], tuple(map(str, rows.subjects.tolist())))
