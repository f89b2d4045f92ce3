"""The cells of a table as the public schema reads them: each by itself.

The type of a column in a file may depend on a single row: one word turns a Parquet or NumPy column of numbers into one of
words, one missing value turns whole numbers into floats. So the type decides nothing here. The number 7, the number 7.0 and the
word "7.0" have the same meaning, and the other cells of the column do not matter.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedpdm.data.tables import MISSING, MISSING_NUMBERS
from fedpdm.data.values import ZEROS, number_word

if TYPE_CHECKING:
    import polars

__all__ = ["column_of", "numbers_of", "text_of", "words_of"]

_NUMBER = re.compile(r"-?(0|[1-9]\d{0,400})(\.\d+)?([eE][+-]?\d{1,4})?")  # not "007", a code; no float has more digits
_TRUTH = {"true": "1", "false": "0"}
_ALIKE = _TRUTH | {number: word for word, number in _TRUTH.items()}  # a truth value among numbers is one of them


def column_of(name: str, array: np.ndarray) -> "polars.Series":
    """Turn a NumPy array into a column; a value that is neither number nor text is missing.

    Parameters
    ----------
    name : str
        The name of the column.
    array : ndarray
        [rows] of any type.

    Returns
    -------
    polars.Series
        The column.

    Examples
    --------
    >>> column_of("x", np.array([1.5, "a"])).to_list()
    ['1.5', 'a']
    """
    import polars as pl

    kind = array.dtype.kind
    if kind in "iufb":
        return pl.Series(name, array)
    if kind == "c":
        return pl.Series(name, np.where(np.imag(array) == 0, np.real(array), np.inf))  # a table has no complex numbers
    if kind == "U":
        return pl.Series(name, _characters(array).tolist(), pl.String)
    if kind == "S":
        return pl.Series(name, [cell.decode("latin-1") for cell in array.tolist()], pl.String)
    return pl.Series(name, [None] * len(array), pl.String)


def numbers_of(column: "polars.Series") -> tuple["polars.Series", np.ndarray]:
    """Read the cells as numbers (null: missing), and mark those that are neither numbers nor missing.

    Parameters
    ----------
    column : polars.Series
        A column of any type.

    Returns
    -------
    Series, ndarray
        float64, finite or null; [rows] bool.
    """
    import polars as pl

    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        numbers = column.cast(pl.Float64, strict=False)
        known = column.is_not_null() & numbers.is_not_nan().fill_null(True)
    else:
        words = _text(column)
        lower = words.str.to_lowercase()
        known = words.is_not_null() & ~lower.is_in(MISSING_NUMBERS).fill_null(False)
        numbers = lower.replace(list(_TRUTH), list(_TRUTH.values())).cast(pl.Float64, strict=False)
    finite = numbers.is_finite().fill_null(False)
    return numbers.set(~finite, None), (known & ~finite).to_numpy()


def text_of(column: "polars.Series") -> "polars.Series":
    """Read the cells as texts; null is missing. The number 7.0 and the words "7.0" and "7" are the text "7".

    Parameters
    ----------
    column : polars.Series
        A column of any type.

    Returns
    -------
    polars.Series
        The texts.
    """
    words = _number_words(column) if column.dtype.is_numeric() else _text(column)
    others = words.drop_nulls().unique().to_list()
    return _meant(words, {word: plain for word in others if (plain := _plain(word)) is not None}, others)


def words_of(column: "polars.Series", declared: Iterable[str]) -> "polars.Series":
    """Read the cells as words; null is missing. The number 7.0 and the words "7.0" and "7" are the level "7".

    Parameters
    ----------
    column : polars.Series
        A column of any type.
    declared : iterable of str
        Levels or classes of the schema. Such a word stays as it is written.

    Returns
    -------
    polars.Series
        The words.
    """
    declared = set(declared)
    words = _number_words(column) if column.dtype.is_numeric() else _text(column)
    others = [word for word in words.drop_nulls().unique() if word not in declared]
    meant = {word: level for word in others if (level := _level(word, declared)) is not None}
    return _meant(words, meant, others)


def _number_words(column: "polars.Series") -> "polars.Series":
    import polars as pl

    if not column.dtype.is_float():  # with all digits: a float64 makes one number of two long ids
        return column.cast(pl.String).str.replace(ZEROS, "${1}")
    numbers = column.cast(pl.Float64, strict=False).fill_nan(None)
    numbers = numbers.set((numbers == 0).fill_null(False), 0.0)  # the word of -0 is that of 0
    known = numbers.drop_nulls().unique()
    if not known.len():
        return pl.Series(column.name, [None] * len(column), pl.String)
    return numbers.replace_strict(known, [number_word(value) for value in known], default=None, return_dtype=pl.String)


def _level(word: str, declared: set[str]) -> str | None:
    """Return the level that another word means: as it would look in a column of numbers, or of truth values."""
    plain = word.lower() if word.lower() in _TRUTH else _plain(word)
    return next((level for level in (plain, _ALIKE.get(plain or "")) if level and level in declared), None)


def _plain(word: str) -> str | None:
    """Return a number or a truth value as it would look in a column of numbers; None for all other words."""
    if _NUMBER.fullmatch(word):
        whole = not set(word) & set(".eE")  # with all digits
        return str(int(word)) if whole else number_word(float(word) or 0.0)  # -0 is 0
    return _TRUTH.get(word.lower())


def _meant(words: "polars.Series", meant: dict[str, str], others: Iterable[str]) -> "polars.Series":
    """Put in what words mean; of the others, those that stand for a missing value are null."""
    missing = [word for word in others if word.lower() in MISSING]
    words = words.replace(list(meant), list(meant.values())) if meant else words
    return words.set(words.is_in(missing).fill_null(False), None) if missing else words


def _characters(array: np.ndarray) -> np.ndarray:
    """Return the words with characters of Unicode alone. An array may store any number as one; polars would refuse all rows."""
    if not array.dtype.itemsize:
        return array
    codes = np.array(array, array.dtype.newbyteorder("="), order="C").view(np.uint32)
    codes[(codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))] = 0xFFFD
    return codes.view(array.dtype.newbyteorder("="))


def _text(column: "polars.Series") -> "polars.Series":
    """Return the cells as text without spaces around it; null if there is none, or if the type has no text."""
    import polars as pl

    if column.dtype.is_nested() or column.dtype in (pl.Object, pl.Null):
        return pl.Series(column.name, [None] * len(column), pl.String)
    words = column.cast(pl.String, strict=False).str.strip_chars()
    return words.set((words == "").fill_null(False), None)
