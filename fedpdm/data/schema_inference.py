"""A schema inferred from a table. Its bounds and levels come from the rows, so it is public only if the rows are."""

__all__ = [
    "Inferred",
    "infer_columns",
    "infer_schema",
    "in_order",
    "check_roles",
    "MAX_LEVELS",
    "MAX_CLASSES",
    "MAX_NUMBERED_CLASSES",
    "NAMELESS",
]

import math
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpdm.data.encoding import as_numbers, as_words, known_numbers
from fedpdm.data.images import decoded_shape, holds_pixels, is_image_column, names_images, rows_of_images
from fedpdm.data.schema import Category, Column, Ignored, Image, Number, Schema, Target, Text, some
from fedpdm.data.tables import Table
from fedpdm.errors import DataError

if TYPE_CHECKING:
    import polars

MAX_LEVELS = 100  # a column with more different words probably holds names or ids, and is ignored
MANY, ROWS_PER_NAME = 20, 5  # and so does one with more than 20 different words that occur less than 5 times each on average
MANY_NUMBERS = 50  # a column of whole numbers that identifies something has more different ones
MISTAKES = 0.01  # words in fewer cells than this share of a column of numbers are mistakes
MAX_CLASSES = 100
MAX_SIDE = 64  # pixels of an inferred image's longer side: enough for wavelets, and small enough for memory
MIN_SPACES, MAX_BYTES = 3, 2000  # a column of texts has this many spaces on average, and is cut to these bytes
MAX_NUMBERED_CLASSES = 20  # a label with more different whole numbers is a number
# Words in the name of a column that identifies something instead of measuring it: patient_id, "Case No.", recordKey; or, at the
# end of the name, "number" and "code" (politycode too): "number of visits" is a measurement
NAMES_OF_IDS = re.compile(
    r"(?i:(^|[\W_])(id|ids|pid|uid|uuid|guid|mrn|ssn|rowid|barcode|phone|zip|postcode)([\W_]|$))"
    r"|(?i:(^|[\W_])(no|nr|num|number|key|code|record)[\W_]*$)"
    r"|[a-z](ID|Id|Nr|No|Key|Code)$"
    r"|(?i:code\d*$)"
    r"|^(Unnamed: \d+|rownames)?$"  # numbers of rows, as R and pandas write them: behind no name, or a made-up one
)
ENDS_LIKE_AN_ID = re.compile(r"(?i)(id|no|nr|num|number|key|code|^index)$")  # pidnum: enough if every row has its own number
NAMELESS = "a column without a name"
DATES = r"^\d{4}-\d{1,2}-\d{1,2}([T ].*)?$|^\d{1,2}[./]\d{1,2}[./]\d{2,4}([T ].*)?$"


class Inferred(NamedTuple):
    """A schema that was inferred from rows, and notes about it for the user."""

    schema: Schema
    notes: tuple[str, ...]


def infer_schema(
    table: Table,
    label: str,
    client: str | None = None,
    unit: str | None = None,
    target: str | None = None,
    event: str | None = None,
) -> Inferred:
    """Infer the kind, the bounds and the levels of every column from the rows.

    A column of numbers becomes a number between the smallest and the largest. A word among them is refused as a mistake,
    unless words are in a hundredth of the cells or more and there are at most `MANY` different values. Every other column,
    also codes such as 007, becomes a category of the words that occur. Columns with one value are ignored, and so are columns
    that look like ids or names: more than `MAX_LEVELS` words, more than `MANY` that occur a few times each, or whole numbers
    that identify a row instead of measuring something. A column of images becomes an image, and all others are ignored then.
    A label is a number if it has more than `MAX_NUMBERED_CLASSES` different values, all of them numbers; half as many are
    enough if some are not whole.

    Parameters
    ----------
    table : Table
        The rows.
    label, client, unit : str
        The column to predict, the column with the owner of a row, and the column with the person of a row.
    target : str, optional
        "classes" or "number": the kind of label, whatever its values.
    event : str, optional
        The column that says whether the event was observed: then the label is the time to it.

    Returns
    -------
    Inferred
        The schema, with `from_rows`, and notes.
    """
    check_roles(table.name, label, client, unit)
    found, notes = _label(table, label, "number" if event else target)
    if event is not None:
        table.column(event, "event column")
        found["target"] = found["target"].model_copy(update={"event": event})
    for role, name in (("client column", client), ("unit column", unit)):
        if name is not None:
            table.column(name, role)
    columns, more = infer_columns(table, (label, client, unit, event))
    notes += more
    if "classes" in found:
        notes += _telling(table, label, columns)
    if all(isinstance(column, Ignored) for column in columns.values()):
        raise DataError(
            f"{table.name} has no column to learn from beside the label {label!r}: {'; '.join(notes) or 'add some'}"
        )
    schema = Schema(label=label, **found, client=client, unit_column=unit, from_rows=True, columns=columns)
    return Inferred(schema, tuple(notes))


def _telling(table: Table, label: str, columns: dict[str, Column]) -> list[str]:
    """A line about columns that tell the label by themselves."""
    from fedpdm.data.telling import telling_columns

    used = [table.columns[name] for name, column in columns.items() if isinstance(column, Category | Number)]
    telling = telling_columns(table.columns[label], used)
    if not telling:
        return []
    verb, pronoun = ("tells", "it") if len(telling) == 1 else ("each tell", "they")
    known = f"if {pronoun} would not be known beforehand"
    return [f'{some(telling)} {verb} {label} alone in every row; {known}, write kind = "ignored" in a schema']


def infer_columns(table: Table, roles: Collection[str | None] = ()) -> tuple[dict[str, Column], list[str]]:
    """Infer the columns that a model learns from.

    Parameters
    ----------
    table : Table
        The rows.
    roles : collection of str
        Columns with another role, such as the label.

    Returns
    -------
    columns : dict of str to Column
        The columns by name.
    notes : list of str
        Notes for the user.
    """
    notes: list[str] = []
    names: list[str] = []
    columns: dict[str, Column] = {}
    paths = [name for name, series in table.columns.items() if name not in roles and names_images(series, table.folder)]
    for name, series in table.columns.items():
        if name in paths:
            columns[name] = Ignored()
        elif name not in roles:
            images = is_image_column(series)
            columns[name] = _infer_image(table, name, notes) if images else _infer_column(table, name, series, notes, names)
    if len(paths) == 1 and all(isinstance(column, Ignored) for column in columns.values()):
        columns[paths[0]] = _infer_image(table, paths[0], notes)
    elif paths and not any(is_image_column(series) for series in table.columns.values()):
        notes.append(f'left out, as it holds paths of images: {some(paths)} (to use one, write kind = "image" in a schema)')
    if any(isinstance(column, Image) for column in columns.values()):
        columns = {name: column if isinstance(column, Image) else Ignored() for name, column in columns.items()}
        names = []
    if names:
        pronoun = "it looks like an id or a name" if len(names) == 1 else "they look like ids or names"
        notes.append(f"left out, as {pronoun}: {some(names, 12)} (to keep one, write it into a schema)")
    return columns, notes


def check_roles(table: str, label: str | None, client: str | None, unit: str | None) -> None:
    """Refuse one column in two roles.

    Parameters
    ----------
    table : str
        The name of the table, for the error.
    label, client, unit : str, optional
        The columns of the roles.

    Raises
    ------
    DataError
        If two roles have the same column.
    """
    named = {"label": label, "client column": client, "unit column": unit}
    taken: dict[str, str] = {}
    for role, name in named.items():
        if name is not None and (other := taken.setdefault(name, role)) != role:
            raise DataError(f"{table}: the column {name!r} is both the {other} and the {role}: name two different columns")


def _label(table: Table, label: str, target: str | None) -> tuple[dict[str, Any], list[str]]:
    """The classes or the bounds of the label, and a line that says which of the two it was taken for, if that was a choice."""
    series = table.column(label, "label column")
    numbers = _numbers(series) if target != "classes" else None
    if target == "number" and numbers is None:
        as_numbers(series, f"{table.name}, label column {label!r}")  # names the row
    if numbers is None or (target is None and not _measures(numbers)):
        return {"classes": _classes(table, label)}, []
    low, high, different = float(numbers.min(initial=0)), float(numbers.max()), len(np.unique(numbers))
    if different < 2:
        raise DataError(f"{table.name}: the label column {label!r} has fewer than 2 different numbers: nothing is to be learnt")
    said = f"{label}: {different} different numbers, so a number is predicted; problem.loss=softmax takes them for classes"
    return {"target": Target(low=low, high=high)}, [] if target else [said]


def _numbers(series: "polars.Series") -> np.ndarray | None:
    """The column's numbers without the missing ones; None if something else is among them."""
    import polars as pl

    known = known_numbers(series).drop_nulls()
    numbers = known.cast(pl.Float64, strict=False)
    return numbers.to_numpy() if len(known) and numbers.is_finite().fill_null(False).all() else None


def _measures(numbers: np.ndarray) -> bool:
    """Whether numbers look like a measurement, and not like names of classes."""
    whole = bool((numbers == np.floor(numbers)).all())
    return len(np.unique(numbers)) > MAX_NUMBERED_CLASSES / (1 if whole else 2)


def _classes(table: Table, label: str) -> list[str]:
    found = set(as_words(table.column(label, "label column").unique()).drop_nulls().to_list())
    if len(found) < 2:
        what = f"the single value {min(found)!r}" if found else "no values"
        raise DataError(f"{table.name}: the label column {label!r} has {what}: a classifier needs at least 2 classes")
    if len(found) > MAX_CLASSES:
        raise DataError(
            f"{table.name}: the label column {label!r} has {len(found)} different values, more than {MAX_CLASSES}: "
            "name a column of classes or of numbers, or write the classes into a schema"
        )
    return in_order(found)


def in_order(words: set[str]) -> list[str]:
    """Sort words: as numbers if all of them are numbers, else alphabetically.

    Parameters
    ----------
    words : set of str
        The words.

    Returns
    -------
    list of str
        The sorted words.
    """
    try:
        return sorted(words, key=float)
    except ValueError:
        return sorted(words)


def _infer_column(table: Table, name: str, series: "polars.Series", notes: list[str], names: list[str]) -> Column:
    """Look at the different cells and how often each occurs: a large table has far fewer of them than rows."""
    import polars as pl

    if series.dtype.is_numeric() and series.count():
        return _infer_number(table, name, series, notes, names)
    cells, often = series.alias("cell").drop_nulls().value_counts(name="rows").get_columns()
    known = known_numbers(cells)
    finite = known.cast(pl.Float64, strict=False).is_finite().fill_null(False)
    code = known.dtype == pl.String and known.str.contains(r"^0\d").any()  # 007 is a name, not the number 7
    words = as_words(cells)
    levels = words.drop_nulls().unique()
    numbers, filled = int(often.filter(finite).sum()), int(often.filter(known.is_not_null()).sum())
    # mostly numbers: a rare word among them is a mistake, which as_numbers reports with its row
    if known.count() and numbers >= filled / 2 and not code:
        if filled - numbers < MISTAKES * filled or len(levels) > MANY:
            return _infer_number(table, name, series, notes, names)
        odd = known.filter(~finite & known.is_not_null())[0]
        notes.append(f"{name}: a category, because some of its {len(levels)} different values are no numbers, such as {odd!r}")
    if not len(levels):
        notes.append(f"{name}: ignored, because it is missing in every row")
        return Ignored()
    if len(levels) == 1 and often.filter(words.is_not_null()).sum() == len(series):
        notes.append(f"{name}: ignored, because it is {levels[0]!r} in every row")
        return Ignored()
    if levels.str.contains(DATES).all():
        notes.append(f"{name}: left out, because it holds dates; to use one, add a column with its year, month or age in days")
        return Ignored()
    named = len(levels) > MAX_LEVELS or (len(levels) > MANY and filled < ROWS_PER_NAME * len(levels))
    if named and float(levels.str.count_matches(r"\s+").mean() or 0) >= MIN_SPACES:  # pyright: ignore
        longest = int(levels.str.len_bytes().max() or 1)  # pyright: ignore
        return Text(length=min(MAX_BYTES, 100 * math.ceil(longest / 100)))
    if named:
        names.append(f"{name or NAMELESS} ({len(levels)} different words)")
        return Ignored()
    return Category(levels=in_order(set(levels.to_list())))


def _infer_image(table: Table, name: str, notes: list[str]) -> Column:
    """Take the size of the first image, at most `MAX_SIDE` pixels a side."""
    series = table.columns[name]
    try:
        height, width, depth = decoded_shape(next(rows_of_images(series, table.folder)))
    except DataError as error:
        raise DataError(f"{table.name}, column {name!r}, row 1: {error}") from None
    if holds_pixels(series):
        values = series.to_numpy()
        white = 255.0 if values.dtype == np.uint8 else 1.0 if values.max() <= 1 else float(max(values.max(), 255))
        return Image(shape=[height, width, depth] if values.ndim == 4 else [height, width], white=white)
    ratio = min(1.0, MAX_SIDE / max(height, width))
    shape = [max(1, round(ratio * height)), max(1, round(ratio * width)), depth]
    kind = "in colour" if depth > 1 else "in grey"
    notes.append(f"{name}: all images are resized to {shape[0]} x {shape[1]} pixels, {kind} (shape)")
    return Image(shape=shape if depth > 1 else shape[:2])


def _infer_number(table: Table, name: str, series: "polars.Series", notes: list[str], names: list[str]) -> Column:
    values = as_numbers(series, f"{table.name}, column {name!r}")
    missing = np.isnan(values)
    values = values[~missing]
    low, high = float(values.min()), float(values.max())
    if not low < high:
        notes.append(f"{name}: ignored, because it is {low:g} in every row")
        return Ignored()
    if (values == np.floor(values)).all():
        different = np.unique(values)
        if all(_is_date(int(value)) for value in different):
            notes.append(f'{name}: looks like dates written as numbers; if so, make it kind = "ignored" in a schema')
        elif _names_rows(name, different, len(values)):
            names.append(f"{name or NAMELESS} ({len(different)} different numbers)")
            return Ignored()
    return Number(low=low, high=high, missing_column=bool(missing.any()))


def _names_rows(name: str, different: np.ndarray, rows: int) -> bool:
    """Tell whether whole numbers look like the numbers of persons, cases or rows.

    They do if there are many and the column's name looks like an id. They also do if almost every row has its own number, and
    the numbers either follow each other closely or all have the same six digits or more; or if every row has its own, and the
    name ends like an id. An amount of money that differs in every row has other digits.
    """
    if len(different) <= MANY_NUMBERS:
        return False
    if NAMES_OF_IDS.search(name) or (len(different) == rows and ENDS_LIKE_AN_ID.search(name)):
        return True
    counted = len(different) == rows and different[-1] - different[0] < 2 * rows
    digits = len(f"{different[0]:.0f}")
    coded = different[0] > 0 and digits >= 6 and digits == len(f"{different[-1]:.0f}") and 2 * len(different) > rows
    return bool(counted or coded)


def _is_date(number: int) -> bool:
    return 1900 <= number // 10000 <= 2100 and 1 <= number // 100 % 100 <= 12 and 1 <= number % 100 <= 31
