"""Columns that tell the label by themselves: often the label in other words, which nobody knows when a prediction is needed."""

from collections.abc import Iterable

import polars as pl

__all__ = ["telling_columns"]

FIRST, LEAST = 1000, 30  # rows that are looked at first, and rows below which chance may do it
FEW = 20  # different values of a column that is looked at


def telling_columns(label: pl.Series, columns: Iterable[pl.Series]) -> list[str]:
    """Name the columns of which every value goes with one class only.

    Parameters
    ----------
    label : polars.Series
        The classes.
    columns : iterable of polars.Series
        The columns that the model would learn from.

    Returns
    -------
    list of str
        Their names; of columns with at most 20 different values that occur three times each on average.

    Examples
    --------
    >>> label = pl.Series("ill", ["yes", "no"] * 20)
    >>> telling_columns(label, [pl.Series("cured", ["no", "never"] * 20), pl.Series("age", [30, 30, 40, 40] * 10)])
    ['cured']
    """
    return [column.name for column in columns if _tells(label.head(FIRST), column.head(FIRST)) and _tells(label, column)]


def _tells(label: pl.Series, column: pl.Series) -> bool:
    known = pl.DataFrame({"label": label, "value": column}).drop_nulls()
    values = known["value"].n_unique()
    if len(known) < LEAST or not 2 <= values <= FEW or len(known) < 3 * values or known["label"].n_unique() < 2:
        return False
    return known.group_by("value").agg(pl.col("label").n_unique())["label"].max() == 1
