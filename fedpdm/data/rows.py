"""New rows for a model: tables as in the run's schema, and the columns of the known data sets."""

__all__ = ["adult_schema", "pixel_scale", "input_names", "encode_rows"]

from collections.abc import Sequence

import numpy as np

from fedpdm.data.adult import ADULT_CLASSES, ADULT_COLUMNS
from fedpdm.data.datasets import with_bias
from fedpdm.data.encoding import as_numbers, encode
from fedpdm.data.schema import Category, Column, Ignored, Number, Schema
from fedpdm.data.tables import Table
from fedpdm.errors import DataError

# side of the image, and the value of a white pixel
_PIXELS = {"mnist": (28, 255.0), "fashion-mnist": (28, 255.0), "digits": (8, 16.0)}


def adult_schema() -> Schema:
    """Return the public code book of Adult as a schema.

    Returns
    -------
    Schema
        It gives the same 81 features as `encode_adult`.
    """

    def column(code: Sequence[str]) -> Column:
        if list(code) == ["-"]:
            return Ignored()
        if code[0].isdigit():
            return Number(low=float(code[0]), high=float(code[1]))
        return Category(levels=list(code[1:]), baseline=code[0])

    columns = {name: column(code) for name, code in ADULT_COLUMNS.items()}
    return Schema(label="income", classes=list(ADULT_CLASSES), bias=False, columns=columns)


def pixel_scale(name: str) -> float | None:
    """Return the value of a white pixel.

    Parameters
    ----------
    name : str
        Name of the data set.

    Returns
    -------
    float or None
        None for data sets that are not images.
    """
    return _PIXELS[name][1] if name in _PIXELS else None


def input_names(name: str, schema: Schema | None) -> tuple[str, ...]:
    """Return the names of the features before any map.

    Parameters
    ----------
    name : str
        Name of the data set.
    schema : Schema or None
        The schema of your own table.

    Returns
    -------
    tuple of str
        The names.
    """
    if name == "adult" or schema is not None:
        return (schema or adult_schema()).feature_names
    side = range(_PIXELS[name][0])
    return (*(f"pixel {row},{column}" for row in side for column in side), "bias")


def encode_rows(name: str, schema: Schema | None, table: Table) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Encode the rows of a table as features, before any map.

    Parameters
    ----------
    name, schema : str, Schema
        The data set of the run, and its schema if it was your own table.
    table : Table
        Columns as the schema names them; for Adult those of its code book; for images all columns but "label", in order, with
        the original values (0 to 255, or 0 to 16 for digits).

    Returns
    -------
    tuple
        The features, their names, and notes on values that did not fit.
    """
    if schema is None and name == "adult":
        schema = adult_schema()
    if schema is not None:
        rows = encode(schema, table, labelled=False)
        return rows.features, schema.feature_names, rows.notes
    side, white = _PIXELS[name]
    columns = [column for column in table.columns if column != "label"]
    if len(columns) != side * side:
        raise DataError(
            f"{table.name} has {len(columns)} columns beside 'label', but a model of {name} needs {side * side} pixels"
        )
    pixels = np.stack([as_numbers(table.columns[column], f"{table.name}, column {column!r}") for column in columns], axis=1)
    return with_bias(np.nan_to_num(pixels) / white), input_names(name, None), ()
