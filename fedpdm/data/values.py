"""Values of any kind as a column of a table: numbers as float64, images as they are, everything else as words."""

__all__ = ["ZEROS", "column_from", "number_word"]

from typing import TYPE_CHECKING, Any

import numpy as np

from fedpdm.data.images import image_column
from fedpdm.errors import DataError

if TYPE_CHECKING:
    import polars

PLAIN = r"^-?(0|[1-9]\d{0,9})(\.\d{0,3}[1-9])?$|^-?[1-9]\d{0,14}$"  # numbers that are written in one way only
ZEROS = r"\.0*$|(\.\d*[1-9])0+$"  # behind the point, at the end: "${1}" in their place leaves 7 of 7.00, 1.5 of 1.50
EXACT = 2**53  # up to here a float64 holds every whole number


def column_from(values: Any, name: str) -> "polars.Series":
    """Return numbers as float64 and everything else as words, with null for missing values.

    Whole numbers that a float64 does not hold exactly are words too: two long ids that differ in the last digit stay two.

    Parameters
    ----------
    values : array-like
        One value per row; None and NaN are missing.
    name : str
        The name of the column.

    Returns
    -------
    polars.Series
        The column.

    Examples
    --------
    >>> column_from([7, None], "age").to_list(), column_from([2**60, 2**60 + 1], "id").to_list()
    ([7.0, None], ['1152921504606846976', '1152921504606846977'])
    """
    import polars as pl

    if isinstance(values, pl.Series):
        series = values.alias(name)
    else:
        # an array of objects keeps every value of a list: with a common type, one row could change how others are read
        array = np.asarray(values, None if hasattr(values, "dtype") else object)
        if array.ndim in (3, 4) and array.dtype.kind in "iufb":
            return pl.Series(name, array)  # images
        if array.ndim != 1:
            raise DataError(f"column {name!r} has shape {array.shape}: give one value or one image per row")
        if array.dtype == object and len(array) and all(isinstance(value, bytes) for value in array):
            return pl.Series(name, array.tolist(), pl.Binary)
        series = pl.Series(name, array if array.dtype.kind in "iufb" else _alike(array.tolist()), strict=False)
    if (images := image_column(series)) is not None:
        return images
    if series.dtype.is_numeric():
        return _numbers(series)
    words = series.cast(pl.String).str.strip_chars()
    return _compact(words.set((words == "").fill_null(False), None))


def _numbers(series: "polars.Series") -> "polars.Series":
    """Return float64; but whole numbers and decimals with more digits than it holds as words, with all their digits."""
    import polars as pl

    numbers = series.cast(pl.Float64)
    if not series.dtype.is_float() and (numbers.abs() >= EXACT).any():
        return series.cast(pl.String).str.replace(ZEROS, "${1}")
    return numbers.set(~numbers.is_finite().fill_null(True), None)


def _compact(words: "polars.Series") -> "polars.Series":
    """Return numbers as numbers, which take half the memory, if `as_words` gives back each of them as it was written.

    7 is "7" again and 1.5 is "1.5", but a column with "007" or "1.50" in it stays words.
    """
    import polars as pl

    if not words.str.contains(PLAIN).all() or not words.count():
        return words
    return words.cast(pl.Float64)


def _alike(values: list[Any]) -> list[float | None] | list[str | None]:
    """Return numbers if all values are numbers, else words: a number has the same word here as in a column of numbers."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    known = [None if isinstance(value, float) and value != value else value for value in plain]
    if all(value is None or _is_number(value) for value in known):
        return [None if value is None else float(value) for value in known]
    return [None if value is None else _word(value) for value in known]


def _is_number(value: Any) -> bool:
    """Whether a float64 holds the value."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < EXACT)


def _word(value: Any) -> str:
    """Return one value as a word; the other values of its column do not matter."""
    if isinstance(value, bool):
        return str(value).lower()
    return number_word(value) if isinstance(value, float) else str(value)


def number_word(value: float) -> str:
    """Return a number as a word: 7.0 is "7". A whole number has all its digits.

    Parameters
    ----------
    value : float
        The number.

    Returns
    -------
    str
        The word.

    Examples
    --------
    >>> number_word(7.0), number_word(0.1 + 0.2), number_word(2.0**52 + 1)
    ('7', '0.3', '4503599627370497')
    """
    return f"{value:.0f}" if abs(value) >= 1e15 and value == value // 1 else f"{value:.15g}"
