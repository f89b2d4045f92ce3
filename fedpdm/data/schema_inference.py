"""A schema inferred from a table. Its bounds and levels come from the rows, so it is public only if the rows are."""

__all__ = ["Inferred", "infer_schema", "in_order", "check_roles", "MAX_LEVELS", "MAX_CLASSES", "MAX_NUMBERED_CLASSES"]

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpdm.data.encoding import as_numbers, as_words, known_numbers
from fedpdm.data.schema import Category, Column, Ignored, Number, Schema, Target, some
from fedpdm.data.tables import Table
from fedpdm.errors import DataError

if TYPE_CHECKING:
    import polars

MAX_LEVELS = 50  # a column with more different words probably holds names or ids, and is ignored
MAX_CLASSES = 100
MAX_NUMBERED_CLASSES = 20  # a label with more different whole numbers is a number
# Words in the name of a column that identifies something instead of measuring it: patient_id, "Case No.", recordKey; or, at the
# end of the name, "code" and "number": "number of visits" is a measurement
NAMES_OF_IDS = re.compile(
    r"(?i:(^|[\W_])(id|ids|pid|uid|uuid|guid|mrn|ssn|rowid|barcode|phone|zip|postcode)([\W_]|$))"
    r"|(?i:(^|[\W_])(no|nr|num|number|key|code|record)[\W_]*$)"
    r"|[a-z](ID|Id|Nr|No|Key|Code)$"
)


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

    A column of numbers becomes a number between the smallest and the largest. Every other column, also codes such as 007,
    becomes a category of the words that occur. Columns with one value are ignored, and so are columns that look like ids or
    names: more than `MAX_LEVELS` words, or whole numbers that identify a row instead of measuring something. A
    label is a number if it has more than `MAX_NUMBERED_CLASSES` different values, all of them numbers; half as many are
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
    names = []
    columns: dict[str, Column] = {}
    for name, series in table.columns.items():
        if name not in (label, client, unit, event):
            columns[name] = _infer_column(table, name, series, notes, names)
    if names:
        pronoun = "it looks like an id or a name" if len(names) == 1 else "they look like ids or names"
        notes.append(f"left out, as {pronoun}: {some(names, 12)} (to keep one, write it into a schema)")
    if all(isinstance(column, Ignored) for column in columns.values()):
        raise DataError(
            f"{table.name} has no column to learn from beside the label {label!r}: {'; '.join(notes) or 'add some'}"
        )
    schema = Schema(label=label, **found, client=client, unit_column=unit, from_rows=True, columns=columns)
    return Inferred(schema, tuple(notes))


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
    found = set(as_words(table.column(label, "label column")).drop_nulls().unique().to_list())
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
    import polars as pl

    known = known_numbers(series).drop_nulls()
    numbers = int(known.cast(pl.Float64, strict=False).is_finite().fill_null(False).sum())
    code = known.dtype == pl.String and known.str.contains(r"^0\d").any()  # 007 is a name, not the number 7
    # mostly numbers: a word among them is a mistake, which as_numbers reports with its row
    if len(known) and numbers >= len(known) / 2 and not code:
        return _infer_number(table, name, series, notes, names)
    words = as_words(series).drop_nulls()
    levels = words.n_unique()
    if not len(words):
        notes.append(f"{name}: ignored, because it is missing in every row")
        return Ignored()
    if levels == 1 and len(words) == len(series):
        notes.append(f"{name}: ignored, because it is {words[0]!r} in every row")
        return Ignored()
    if levels > MAX_LEVELS:
        names.append(f"{name} ({levels} different words)")
        return Ignored()
    return Category(levels=in_order(set(words.unique().to_list())))


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
            names.append(f"{name} ({len(different)} different numbers)")
            return Ignored()
    return Number(low=low, high=high, missing_column=bool(missing.any()))


def _names_rows(name: str, different: np.ndarray, rows: int) -> bool:
    """Tell whether whole numbers look like the numbers of persons, cases or rows.

    They do if there are many and the column's name looks like an id. They also do if almost every row has its own number, and
    the numbers either follow each other closely or all have the same six digits or more. An amount of money that differs in
    every row has other digits.
    """
    if len(different) <= MAX_LEVELS:
        return False
    if NAMES_OF_IDS.search(name):
        return True
    counted = len(different) == rows and different[-1] - different[0] < 2 * rows
    digits = len(f"{different[0]:.0f}")
    coded = different[0] > 0 and digits >= 6 and digits == len(f"{different[-1]:.0f}") and 2 * len(different) > rows
    return bool(counted or coded)


def _is_date(number: int) -> bool:
    return 1900 <= number // 10000 <= 2100 and 1 <= number // 100 % 100 <= 12 and 1 <= number % 100 <= 31
