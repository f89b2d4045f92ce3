"""Encode the rows of a table by a public schema. Nothing is fitted, and each row is encoded by itself."""

__all__ = ["NOT_SEEN", "SEEN", "Encoded", "Members", "encode", "as_numbers", "as_words", "event_seen", "known_numbers"]

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpdm.data.blocks import BLOCKS, Blocks, RowBlocks, keep_rows
from fedpdm.data.images import is_image_column, pixels_of, rows_of_images
from fedpdm.data.limits import require_memory
from fedpdm.data.schema import Category, Image, Number, Schema, Target, Text, some
from fedpdm.data.tables import MISSING, MISSING_NUMBERS, Table
from fedpdm.data.texts import bytes_of
from fedpdm.data.values import number_word
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
        [rows] int32 classes, float32 numbers in [0, 1], or shares of a time (`Target.scale_times`); empty if the call does not
        ask for labels.
    clients : Members
        The owners of the rows; empty if the schema has no client column or the call does not ask for labels.
    notes : tuple of str
        Counts of values that did not fit, and how they were encoded.
    units : ndarray, optional
        [rows] equal numbers for rows of one person, if the schema names a unit column.
    """

    features: np.ndarray
    labels: np.ndarray
    clients: "Members"
    notes: tuple[str, ...]
    units: np.ndarray | None = None


class Members(NamedTuple):
    """The owners of rows: [rows] positions among the clients' names."""

    places: np.ndarray
    names: tuple[str, ...]


def encode(schema: Schema, table: Table, labelled: bool = True, consume: bool = False) -> Encoded:
    """Encode a table's rows. Rows without a label are left out, and counted.

    Parameters
    ----------
    schema, table : Schema, Table
        The public description, and the rows.
    labelled : bool
        Read the label (and the client, if there is one) too; otherwise the table may lack those columns.
    consume : bool
        Remove a column from the table when it is encoded, so that a large table is never in memory twice.

    Returns
    -------
    Encoded
        The features, labels and clients, and notes on values that did not fit.

    Raises
    ------
    DataError
        If a column is missing, a number is a word, or a label is none of the classes.
    """
    notes: list[str] = []
    extra = [name for name in table.columns if name not in (*schema.columns, *schema.roles)]
    features = _encode_features(schema, table, notes, consume)
    if not labelled:
        return Encoded(features, np.zeros(0, np.int32), _client_places(None), tuple(notes))
    if extra:
        notes.append(f"{_amount(len(extra), 'column')} not in the schema, left out: {some(extra)}")
    labels = _encode_labels(schema, table, notes)
    clients = _client_places(_clients(table, schema.client) if schema.client else None)
    units = _units(table, schema.unit_column) if schema.unit_column else None
    if consume:
        table.columns.clear()
    kept = ~np.isnan(labels) if schema.target else labels >= 0
    if not kept.all():
        features, labels = keep_rows(features, np.flatnonzero(kept)), labels[kept]
        clients = _with_rows(Members(clients.places[kept], clients.names), notes) if schema.client else clients
        units = units[kept] if units is not None else None
    return Encoded(features, labels, clients, tuple(notes), units)


def _encode_features(schema: Schema, table: Table, notes: list[str], consume: bool) -> np.ndarray:
    """Encode column after column, so that no part is in memory twice."""
    everything = len(schema.feature_names)
    require_memory(table.rows * everything * 4)
    images = any(isinstance(column, Image) for column in schema.columns.values())
    # images and texts come row by row, and with others the features need no second form
    by_rows = not consume or images or any(isinstance(column, Text) for column in schema.columns.values())
    features = RowBlocks(table.rows, everything, 1 if by_rows else BLOCKS)
    place = 0
    for name, column in schema.columns.items():
        width = 0
        if isinstance(column, Number):
            width = 1 + column.missing_column
            _encode_number(column, table, name, notes, features.columns(place, width))
        elif isinstance(column, Category):
            width = len(column.levels)
            _encode_category(column, table, name, notes, features.columns(place, width))
        elif isinstance(column, Image):
            width = math.prod(column.shape)
            _encode_images(column, table, name, features.columns(place, width)[0][1])
        elif isinstance(column, Text):
            width = column.length
            _encode_texts(column, table, name, notes, features.columns(place, width)[0][1])
        place += width
        if consume and not (images and name == "file"):  # it names a broken image
            table.columns.pop(name, None)
    if schema.bias:
        for _, block in features.columns(everything - 1, 1):  # behind the bands of times, which stay zero here
            block[:] = 1
    return features.joined()


def _client_places(words: "polars.Series | None") -> "Members":
    """Return the clients' names in order, and the owner of each row as a position among them."""
    if words is None:
        return Members(np.zeros(0, np.int32), ())
    names = sorted(words.unique().to_list())
    return Members(_places(words, names), tuple(names))


def _with_rows(clients: Members, notes: list[str]) -> Members:
    """Leave out the clients that have no row with a label."""
    present = np.bincount(clients.places, minlength=len(clients.names)) > 0
    if present.all():
        return clients
    without = [name for name, has in zip(clients.names, present, strict=True) if not has]
    verb = "has" if len(without) == 1 else "have"
    notes.append(f"{_amount(len(without), 'client')} {verb} no row with a label, left out: {some(without)}")
    places = (np.cumsum(present) - 1).astype(clients.places.dtype)
    return Members(places[clients.places], tuple(name for name in clients.names if name not in set(without)))


def as_numbers(series: "polars.Series", where: str) -> np.ndarray:
    """Read a column as numbers.

    Parameters
    ----------
    series : polars.Series
        A column.
    where : str
        Name of the column, for the error.

    Returns
    -------
    ndarray
        float64, with NaN for missing values.

    Raises
    ------
    DataError
        If a value is a word; it names the row, counted from 1.
    """
    import polars as pl

    if is_image_column(series):
        raise DataError(f'{where} holds images, not numbers: write kind = "image" in the schema')
    series = known_numbers(series)
    numbers = series.cast(pl.Float64, strict=False)
    wrong = series.is_not_null() & ~(numbers.is_finite().fill_null(False))
    if wrong.any():
        row = wrong.arg_max() or 0
        raise DataError(
            f"{where}: row {row + 1} is {series[row]!r}, which is not a number ({wrong.sum()} such of {len(series)}): correct "
            'it, leave the cell empty if the value is unknown, or make the column a category (kind = "category" in the schema)'
        )
    return numbers.to_numpy().astype(np.float64, copy=False)


def known_numbers(series: "polars.Series") -> "polars.Series":
    """Replace the words for a missing number by null.

    Parameters
    ----------
    series : polars.Series
        A column.

    Returns
    -------
    polars.Series
        The column without these words.
    """
    if series.dtype.is_numeric():
        return series
    return series.set(series.str.to_lowercase().is_in(MISSING_NUMBERS).fill_null(False), None)


def as_words(series: "polars.Series", declared: Sequence[str] = ()) -> "polars.Series":
    """Read a column as words; the number 7.0 is the word "7".

    Parameters
    ----------
    series : polars.Series
        A column.
    declared : sequence of str
        Levels or classes of the schema. They never count as missing.

    Returns
    -------
    list of str or None
        The words, with None for missing values.
    """
    import polars as pl

    if is_image_column(series):
        raise DataError(f'column {series.name!r} holds images, not words: write kind = "image" in the schema')
    if series.dtype.is_numeric():
        series = series.set((series == 0).fill_null(False), 0)  # -0 too: else one of the two would have the other's word
        values = series.drop_nulls().unique()
        if values.len() == 0:
            return series.cast(pl.String)
        words = [number_word(value) for value in values.to_list()]
        return series.replace_strict(values, words, default=None, return_dtype=pl.String)
    missing = series.str.to_lowercase().is_in(MISSING) & ~series.is_in(list(declared))
    return series.set(missing.fill_null(False), None)


def _encode_number(column: Number, table: Table, name: str, notes: list[str], blocks: Blocks) -> None:
    values = as_numbers(table.column(name, numbers=True), f"{table.name}, column {name!r}")
    missing = np.isnan(values)
    outside = int(((values < column.low) | (values > column.high)).sum())
    if outside:
        notes.append(f"{name}: {_amount(outside, 'value')} outside [{column.low:g}, {column.high:g}] {_is(outside)} cut to it")
    if count := int(missing.sum()):
        middle = (column.low + column.high) / 2
        verb = "stands" if count == 1 else "stand"
        notes.append(f"{name}: {_amount(count, 'missing value')} {verb} at the middle of the bounds, {middle:g}")
    for rows, block in blocks:
        shares = np.clip((values[rows] - column.low) / (column.high - column.low), 0, 1)
        block[:, 0] = np.where(missing[rows], 0.5, shares)
        if column.missing_column:
            block[:, 1] = missing[rows]


def _encode_category(column: Category, table: Table, name: str, notes: list[str], blocks: Blocks) -> None:
    words = as_words(table.column(name), [*column.levels, *([column.baseline] if column.baseline else [])])
    places = _places(words, column.levels)
    known = places >= 0
    for rows, block in blocks:
        block[np.flatnonzero(known[rows]), places[rows][known[rows]]] = 1
    if not known.all():
        others = words.filter(~known).drop_nulls()
        others = others.filter(others != column.baseline) if column.baseline is not None else others
        if count := others.len():
            own = "its" if count == 1 else "their"
            notes.append(
                f"{name}: {_amount(count, 'value')} {_is(count)} none of the levels ({some(sorted(others.unique()))}): all of "
                f"{own} indicators are 0"
            )
    if count := words.null_count():
        notes.append(f"{name}: {_amount(count, 'missing value')} {_is(count)} encoded as 0 in every indicator")


def _encode_images(column: Image, table: Table, name: str, block: np.ndarray) -> None:
    for row, image in enumerate(rows_of_images(table.column(name), table.folder)):
        try:
            block[row] = pixels_of(image, column.full_shape, column.white)
        except DataError as error:
            file = f" ({table.columns['file'][row]})" if "file" in table.columns else ""
            raise DataError(f"{table.name}, column {name!r}, row {row + 1}{file}: {error}") from None


def _encode_texts(column: Text, table: Table, name: str, notes: list[str], block: np.ndarray) -> None:
    series = table.column(name)
    texts = (as_words(series) if series.dtype.is_numeric() or is_image_column(series) else series).to_list()
    for row, text in enumerate(texts):
        block[row] = bytes_of(text, column.length)
    if cut := sum(len(text.encode(errors="replace")) > column.length for text in texts if text):
        notes.append(f"{name}: {_amount(cut, 'text')} {_is(cut)} cut to {column.length} bytes")
    if missing := sum(text is None for text in texts):
        notes.append(f"{name}: {_amount(missing, 'missing text')} {_is(missing)} empty")


def _places(words: "polars.Series", levels: Sequence[str]) -> np.ndarray:
    """Return the position of every word among the levels; -1 for other words and for missing ones."""
    import polars as pl

    found = words.replace_strict(list(levels), list(range(len(levels))), default=-1, return_dtype=pl.Int32)
    return found.fill_null(-1).to_numpy()


def _encode_labels(schema: Schema, table: Table, notes: list[str]) -> np.ndarray:
    labels = _encode_target(schema.target, schema, table, notes) if schema.target else _encode_classes(schema, table, notes)
    if np.isnan(labels).all() if schema.target else (labels < 0).all():
        raise DataError(f"{table.name}: no row has a label in {schema.label!r}: fill that column")
    return labels


def _encode_target(target: Target, schema: Schema, table: Table, notes: list[str]) -> np.ndarray:
    label = table.column(schema.label, "label column", numbers=True)
    values = as_numbers(label, f"{table.name}, label column {schema.label!r}")
    outside = int(((values < target.low) | (values > target.high)).sum())
    if outside:
        bounds = f"[{target.low:g}, {target.high:g}]"
        notes.append(f"{schema.label}: {_amount(outside, 'label')} outside {bounds} {_is(outside)} cut to it")
    seen = None
    if target.event:
        seen = event_seen(table.column(target.event, "event column"), f"{table.name}, event column {target.event!r}")
        values = np.where(np.isnan(seen), np.nan, values)
    if count := int(np.isnan(values).sum()):
        notes.append(f"{schema.label}: {_amount(count, 'row')} without a label {_is(count)} left out")
    return target.scale(values) if seen is None else target.scale_times(values, seen > 0)


SEEN, NOT_SEEN = ("1", "yes", "true", "y", "t"), ("0", "no", "false", "n", "f")


def event_seen(series: "polars.Series", where: str) -> np.ndarray:
    """Read whether an event was seen: 1, yes, true, y, t against 0, no, false, n, f.

    Parameters
    ----------
    series : polars.Series
        A column.
    where : str
        Name of the column, for the error.

    Returns
    -------
    ndarray
        float64: 1 or 0, NaN where it is missing.
    """
    words = as_words(series).str.to_lowercase()
    places = _places(words, (*SEEN, *NOT_SEEN))
    wrong = (places < 0) & words.is_not_null().to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{where}: row {row + 1} is {words[row]!r}; write {', '.join(SEEN)} or {', '.join(NOT_SEEN)}")
    return np.where(places < 0, np.nan, places < len(SEEN))


def _encode_classes(schema: Schema, table: Table, notes: list[str]) -> np.ndarray:
    words = as_words(table.column(schema.label, "label column"), schema.classes)
    labels = _places(words, schema.classes)
    wrong = (labels < 0) & words.is_not_null().to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"{table.name}: row {row + 1} has the label {words[row]!r}, which is none of the classes {some(schema.classes)}: "
            "correct it, remove the row, or add it to the classes of the schema"
        )
    if count := words.null_count():
        notes.append(f"{schema.label}: {_amount(count, 'row')} without a label {_is(count)} left out")
    return labels.astype(np.int32)


def _clients(table: Table, column: str) -> "polars.Series":
    """Return the owner of each row. Two names that differ in case or spaces only are refused as a likely typing error."""
    words = as_words(table.column(column, "client column"))
    if words.null_count():
        row = words.is_null().arg_max() or 0
        raise DataError(f"{table.name}: row {row + 1} has no client in {column!r}: fill it, or remove the row")
    alike: dict[str, str] = {}
    for word in words.unique(maintain_order=True).to_list():
        other = alike.setdefault("".join(word.lower().split()), word)
        if other != word:
            raise DataError(
                f"{table.name}: the clients {other!r} and {word!r} in {column!r} differ in case or spaces only: "
                "use one name for one client, and clearly different names for two clients"
            )
    return words


def _units(table: Table, column: str) -> np.ndarray:
    """Return a number per row, equal for rows of one person. A row without a person is a person of its own."""
    import polars as pl

    words = as_words(table.column(column, "unit column"))
    numbers = words.cast(pl.Categorical).to_physical().cast(pl.Int64)
    alone = words.is_null().to_numpy()
    found = numbers.fill_null(-1).to_numpy().copy()
    found[alone] = found.max(initial=-1) + 1 + np.arange(alone.sum())
    return found


def _amount(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
