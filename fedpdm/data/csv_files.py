"""CSV files as columns of words: any common separator and encoding, in a columnar reader."""

__all__ = ["read_csv"]

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedpdm.errors import DataError

if TYPE_CHECKING:
    import polars

UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # the first bytes of a file in UTF-16
SEPARATORS = ",;\t|"


def read_csv(path: Path) -> "Iterator[tuple[str, polars.Series]]":
    """Read the columns one after the other, all of them as words; an empty cell is null.

    A file in UTF-8 is read from the disk as it is. The first two bytes identify UTF-16. In any other file, lines that are not
    UTF-8 are read as Latin-1.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    iterator of (str, polars.Series)
        Names and columns.
    """
    import polars as pl

    with path.open("rb") as file:
        first = file.readline()
    if first.startswith(UTF_16):
        return _columns(path.read_bytes().decode("utf-16"))
    try:
        header = first.decode("utf-8-sig")
        return _parsed(path, _separator(header))
    except (UnicodeDecodeError, pl.exceptions.ComputeError):
        return _columns(_text(path.read_bytes()))


def _columns(text: str) -> "Iterator[tuple[str, polars.Series]]":
    import polars as pl

    separator = _separator(text.split("\n", 1)[0])
    try:
        return _parsed(io.BytesIO(text.encode()), separator)
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


def _parsed(source: Path | io.BytesIO, separator: str) -> "Iterator[tuple[str, polars.Series]]":
    import polars as pl

    frame = pl.read_csv(source, infer_schema=False, separator=separator)
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
