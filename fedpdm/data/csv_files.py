"""CSV files as columns: any common separator and encoding, in a columnar reader."""

__all__ = ["NumberNames", "first_rows", "number_names", "read_csv", "read_numbers"]

import csv
import io
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedpdm.data.limits import require_columns
from fedpdm.data.values import PLAIN
from fedpdm.errors import DataError

if TYPE_CHECKING:
    import polars

UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # the first bytes of a file in UTF-16
SEPARATORS = ",;\t|"
CODE = r"^[+-]?0\d"  # 007 is a name, not the number 7


class NumberNames(NamedTuple):
    """The columns of a file whose cells are all numbers or empty, by their names in the header."""

    numbers: tuple[str, ...]
    plain: frozenset[str]  # those whose numbers are written in one way only, so that each tells how it was written
    header: tuple[str, ...]  # all columns, in the order of the file


def number_names(path: Path) -> NumberNames:
    """Tell which columns hold nothing but numbers. The file is read in parts, and no cell is kept.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    NumberNames
        Nothing if the file is not in UTF-8, or cannot be read in this way: `read_csv` says why.
    """
    import polars as pl

    with path.open("rb") as file:
        first = file.readline()
    cells, empty = pl.all(), pl.all().is_null()
    finite = cells.cast(pl.Float64, strict=False).is_finite().fill_null(False)
    numbers = ((finite | empty) & ~cells.str.contains(CODE).fill_null(False)).all() & cells.is_not_null().any()
    plain = cells.str.contains(PLAIN).all().name.prefix("plain ")
    try:
        frame = pl.scan_csv(path, infer_schema=False, separator=_separator(first.decode("utf-8-sig")))
        header = frame.collect_schema().names()
        require_columns(len(header))
        checked = frame.select(numbers, plain).collect(engine="streaming").row(0)
    except (UnicodeDecodeError, pl.exceptions.PolarsError):
        return NumberNames((), frozenset(), ())  # another encoding, or lines of unequal length
    if any("_duplicated_" in name for name in header):
        return NumberNames((), frozenset(), ())
    found = [name for name, all_numbers in zip(header, checked, strict=False) if all_numbers and name == name.strip()]
    written = frozenset(name for name, all_plain in zip(header, checked[len(header) :], strict=True) if all_plain)
    return NumberNames(tuple(found), written & set(found), tuple(header))


def read_numbers(path: Path, names: Collection[str]) -> "dict[str, polars.Series]":
    """Read columns of numbers as float64, without a word for each cell in between: a half of the memory, or a quarter.

    Parameters
    ----------
    path : Path
        The file.
    names : collection of str
        Columns from `number_names`.

    Returns
    -------
    dict of str to polars.Series
        The columns.
    """
    import polars as pl

    if not names:
        return {}
    with path.open("rb") as file:
        separator = _separator(file.readline().decode("utf-8-sig"))
    types = dict.fromkeys(names, pl.Float64)
    frame = pl.read_csv(path, infer_schema=False, separator=separator, columns=list(names), schema_overrides=types)
    return {name: frame.drop_in_place(name) for name in names}


def read_csv(path: Path, names: Collection[str] = ()) -> "Iterator[tuple[str, polars.Series]]":
    """Read the columns one after the other, all of them as words; an empty cell is null.

    A file in UTF-8 is read from the disk as it is. The first two bytes identify UTF-16. In any other file, lines that are not
    UTF-8 are read as Latin-1.

    Parameters
    ----------
    path : Path
        The file.
    names : collection of str
        The columns to read, by their names in the header; empty: all.

    Returns
    -------
    iterator of (str, polars.Series)
        Names and columns.
    """
    import polars as pl

    with path.open("rb") as file:
        first = file.readline()
    if first.startswith(UTF_16):
        return _columns(path.read_bytes().decode("utf-16"), names)
    try:
        header = first.decode("utf-8-sig")
        return _parsed(path, _separator(header), names)
    except (UnicodeDecodeError, pl.exceptions.ComputeError):
        return _columns(_text(path.read_bytes()), names)


def first_rows(path: Path, rows: int) -> "dict[str, polars.Series]":
    """Read the first rows of a file in UTF-8, all cells as words.

    Parameters
    ----------
    path : Path
        The file.
    rows : int
        The most rows.

    Returns
    -------
    dict of str to polars.Series
        The columns.
    """
    import polars as pl

    with path.open("rb") as file:
        header = file.readline().decode("utf-8-sig")
    frame = pl.scan_csv(path, infer_schema=False, separator=_separator(header)).head(rows).collect()
    return {name.strip(): frame[name] for name in frame.columns}


def _columns(text: str, names: Collection[str]) -> "Iterator[tuple[str, polars.Series]]":
    import polars as pl

    separator = _separator(text.split("\n", 1)[0])
    try:
        return _parsed(io.BytesIO(text.encode()), separator, names)
    except pl.exceptions.ComputeError:
        raise DataError(_ragged(text, separator)) from None


def _separator(header: str) -> str:
    return max(SEPARATORS, key=header.count)


def _text(content: bytes) -> str:
    """Decode line by line, so that no row changes how another one is read."""
    return "\n".join(_decoded(line) for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"))


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def _parsed(source: Path | io.BytesIO, separator: str, names: Collection[str]) -> "Iterator[tuple[str, polars.Series]]":
    import polars as pl

    frame = pl.read_csv(source, infer_schema=False, separator=separator, columns=list(names) or None)
    twice = next((column for column in frame.columns if "_duplicated_" in column), None)
    if twice:
        raise DataError(f"two columns have the name {twice.partition('_duplicated_')[0]!r}: rename one of them")
    return _one_by_one(frame, separator)


def _one_by_one(frame: "polars.DataFrame", separator: str) -> "Iterator[tuple[str, polars.Series]]":
    """Remove each column from the frame when it is read, so that the table is never in memory twice."""
    for name in frame.columns:
        column = frame.drop_in_place(name)
        if separator != ",":  # then 3,5 is a number; the header alone decides, so no row changes how another one is read
            column = column.str.replace(r"^(\s*[+-]?\d+),(\d+\s*)$", "${1}.${2}")
        yield name.strip(), column


def _ragged(text: str, separator: str) -> str:
    """Return a sentence about the line that has more fields than the header."""
    lines = csv.reader(io.StringIO(text), delimiter=separator)
    header = next(lines)
    for fields in lines:
        if len(fields) > len(header):
            return (
                f"line {lines.line_num} has {len(fields)} fields, but the line of column names has {len(header)}: put words "
                f"that contain {separator!r} in quotes, or correct that line"
            )
    return "its lines cannot be read as fields: look for a quote that is not closed"
