"""The names of a table's features behind a map: the column of each, and hat functions in the column's own units."""

import re
from collections.abc import Collection, Sequence

from fedpdm.data.columns import Category, Number, plain_name
from fedpdm.data.maps import table_knots
from fedpdm.data.piecewise import FIRST, INDICATOR, MISSING, Knots, knots_of
from fedpdm.data.schema import Schema

__all__ = ["column_among", "column_of", "columns_of", "in_own_units"]

_PART = re.compile(r"=.*| near \S+$| above 0$| missing$")  # what a map or an encoding adds to a column's name
ANSWERS = tuple(zip(INDICATOR.points, ("no", "yes"), strict=True))


def columns_of(schema: Schema) -> set[str]:
    """Return the columns of a table, as features name them.

    Parameters
    ----------
    schema : Schema
        The columns.

    Returns
    -------
    set of str
        The names; a time to an event has a further one, for its bands.
    """
    bands = {f"{plain_name(schema.label)} band"} if schema.target and schema.target.event else set()
    return {plain_name(name) for name in schema.columns} | bands


def column_of(feature: str) -> str:
    """Return the column that a feature comes from, by its name alone: for features that no schema describes.

    Parameters
    ----------
    feature : str
        The name after encoding and map.

    Returns
    -------
    str
        The name without the level of a word, and without the place of a hat function.

    Examples
    --------
    >>> column_of("sex=f"), column_of("age near 30"), column_of("age missing"), column_of("age")
    ('sex', 'age', 'age', 'age')
    """
    return _PART.sub("", feature)


def column_among(feature: str, columns: Collection[str]) -> str | None:
    """Return the column of a described table that a feature comes from.

    Parameters
    ----------
    feature : str
        The name after encoding and map.
    columns : collection of str
        The columns, from `columns_of`.

    Returns
    -------
    str or None
        One of the columns; None: the feature mixes them.

    Examples
    --------
    >>> columns = {"sex", "age", "trees near roads"}
    >>> [column_among(name, columns) for name in ("sex=f", "age near 30", "age missing", "trees near roads", "direction 3")]
    ['sex', 'age', 'age', 'trees near roads', None]
    """
    word, hat, slot = feature.partition("=")[0], feature.rpartition(" near ")[0], feature.rpartition(" ")
    ends = (name.removesuffix(end) for name in (word, hat) for end in (MISSING, " above 0"))
    parts = (feature, word, hat, *ends, slot[0] if slot[2].isdigit() else "")  # a text has numbered slots
    return next((name for name in parts if name in columns), None)


def in_own_units(features: Sequence[str], schema: Schema) -> tuple[str, ...]:
    """Name hat functions by the values of the column, and the first indicator of a word by what it stands for.

    The map sees scaled columns, so its own names have places between 0 and 1.

    Parameters
    ----------
    features : sequence of str
        The names after the map.
    schema : Schema
        The bounds of the numbers.

    Returns
    -------
    tuple of str
        The names; those of other features stay.

    Examples
    --------
    >>> schema = Schema(
    ...     label="ill",
    ...     classes=["no", "yes"],
    ...     columns={"month": Number(low=1, high=12, missing_column=True), "sex": Category(levels=["f", "m"])},
    ... )
    >>> in_own_units(["month near 0.2", "month missing near 1", "sex=(first or unknown)", "sex=f", "bias"], schema)
    ('month near 3.2', 'month missing=yes', 'sex=(missing or other)', 'sex=f', 'bias')
    """
    known, _ = table_knots(tuple(name for name in schema.feature_names if name != "bias"))
    own: dict[str, str] = {}
    for name, column in ((plain_name(name), column) for name, column in schema.columns.items()):
        if isinstance(column, Number):
            own |= _hats(name, column, knots_of(name, (), known))
            own |= {f"{name}{MISSING} near {point:g}": f"{name}{MISSING}={word}" for point, word in ANSWERS}
        elif isinstance(column, Category):
            own[f"{name}={FIRST}"] = f"{name}=({column.baseline or 'missing'} or other)"
    return tuple(own.get(feature, feature) for feature in features)


def _hats(name: str, column: Number, knots: Knots) -> dict[str, str]:
    places = [(point - knots.low) / (knots.high - knots.low) for point in knots.points]
    values = [column.low + place * (column.high - column.low) for place in places]
    written = [[f"{value:.{digits}g}" for value in values] for digits in (6, 9, 17)]
    words = next((found for found in written if len(set(found)) == len(values)), written[-1])
    return {f"{name} near {point:g}": f"{name} near {word}" for point, word in zip(knots.points, words, strict=True)}
