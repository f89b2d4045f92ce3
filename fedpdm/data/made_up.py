"""Made-up rows with the columns of a data set: public stand-ins for computations that need examples, but no private ones."""

from collections.abc import Sequence

import numpy as np

from fedpdm.data.basis import drawn_rows
from fedpdm.data.encoding import encode
from fedpdm.data.features import WRITTEN
from fedpdm.data.maps import image_shape
from fedpdm.data.rows import adult_schema, input_names
from fedpdm.data.schema import Category, Number, Schema, Text
from fedpdm.data.tables import table_from_columns

__all__ = ["made_up_rows"]

COUNT = 3000


def made_up_rows(name: str, schema: Schema | None, count: int = COUNT) -> tuple[np.ndarray, tuple[str, ...]]:
    """Make rows from public knowledge alone, as a data set has them before any feature map.

    Images are made-up strokes (for MNIST and digits) or shapes. The rows of a table follow its schema: every number is uniform
    between its bounds, all levels of a word are equally likely, and columns are independent.

    Parameters
    ----------
    name : str
        The data set.
    schema : Schema or None
        The schema of a table.
    count : int
        Number of rows.

    Returns
    -------
    features : ndarray
        [count, columns], float32.
    names : tuple of str
        The columns' names.
    """
    names = input_names(name, schema)
    table = adult_schema() if name == "adult" else schema
    if table is not None and not _are_pixels(names):
        return _table_rows(table, count), names
    bias = names[-1] == "bias"
    pixels = drawn_rows("strokes" if name in WRITTEN else "shapes", *image_shape(names[:-1] if bias else names), count)
    return np.concatenate([pixels, np.ones((count, int(bias)), np.float32)], axis=1), names


def _are_pixels(names: Sequence[str]) -> bool:
    return names[0].startswith("pixel ")


def _table_rows(schema: Schema, count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    columns: dict[str, list[object]] = {}
    for name, column in schema.columns.items():
        if isinstance(column, Number):
            columns[name] = list(rng.uniform(column.low, column.high, count))
        elif isinstance(column, Category):
            levels = [*column.levels, *([column.baseline] if column.baseline else [])]
            columns[name] = [levels[place] for place in rng.integers(0, len(levels), count)]
        elif isinstance(column, Text):
            letters = rng.choice(list("abcdefghijklmnopqrstuvwxyz     "), (count, min(column.length, 100)))
            columns[name] = ["".join(row) for row in letters]
    return encode(schema, table_from_columns(columns), labelled=False).features
