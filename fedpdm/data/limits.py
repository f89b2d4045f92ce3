"""How much memory a packed file takes once it is unpacked: asked before, and held against a limit.

A few hundred kilobytes of NPZ, Parquet or LibSVM can stand for gigabytes. All of the sizes here come from headers, or from one
pass over the text, so asking costs little.
"""

import math
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.errors import DataError

__all__ = [
    "libsvm_shape",
    "memory_limit",
    "npz_bytes",
    "npz_width",
    "npz_dimensions",
    "parquet_bytes",
    "require_columns",
    "require_memory",
]

VARIABLE = "FEDPDM_MEMORY"  # gigabytes
SHARE = 0.5  # of the machine's memory that a table may take
LEAST = 2**28  # bytes; a smaller limit would refuse tables of every day
BYTES = 8  # of a number in memory
MOST_COLUMNS = 200_000  # a minute of work: each takes about 4 kB and 0.4 ms, however few rows there are


def memory_limit() -> int:
    """Return the most bytes that one table may take: half of the memory, or `FEDPDM_MEMORY` gigabytes.

    Returns
    -------
    int
        Bytes.
    """
    given = os.environ.get(VARIABLE)
    if given is None:
        return max(LEAST, int(SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    try:
        return int(float(given) * 2**30)
    except (ValueError, OverflowError):
        raise DataError(f"Expected {VARIABLE}={given!r:.40} to be a number of gigabytes.") from None


def require_memory(needed: int) -> None:
    """Refuse a file that would take more memory than the limit.

    Parameters
    ----------
    needed : int
        Bytes of the unpacked file.

    Raises
    ------
    DataError
        With the two numbers, and the way out.
    """
    limit = memory_limit()
    if needed > limit:
        raise DataError(
            f"it takes {needed / 2**30:.3g} GB of memory once it is unpacked, and the limit is {limit / 2**30:.3g} GB: give "
            f"fewer rows or columns, or raise the limit (for instance {VARIABLE}={needed / 2**30 * 1.1:.3g})"
        )


def require_columns(count: int) -> None:
    """Refuse a file with more columns than a table can have.

    Parameters
    ----------
    count : int
        The columns.

    Raises
    ------
    DataError
        With the two numbers.
    """
    if count > MOST_COLUMNS:
        raise DataError(f"it has {count} columns, and a table has at most {MOST_COLUMNS}: leave out those that few rows have")


def npz_bytes(path: Path) -> int:
    """Return what the arrays of an NPZ file take, by their own headers and by the archive's list, whichever is more.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    int
        Bytes.
    """
    with zipfile.ZipFile(path) as archive:
        return sum(max(entry.file_size, _claimed(archive, entry)) for entry in archive.infolist())


def npz_width(path: Path) -> int:
    """Return how many columns the arrays of an NPZ file have, by their headers; an array of images is one.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    int
        The number.
    """
    with zipfile.ZipFile(path) as archive:
        found = [_header(archive, entry) for entry in archive.infolist()]
    return sum(header[0][1] if len(header[0]) == 2 else 1 for header in found if header)


def npz_dimensions(path: Path) -> list[int]:
    """Return the number of dimensions of every array of an NPZ file, by their headers.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    list of int
        One number per array.
    """
    with zipfile.ZipFile(path) as archive:
        found = [_header(archive, entry) for entry in archive.infolist()]
    return [len(header[0]) for header in found if header]


def _header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype] | None:
    """The shape and the type that an array's header claims; None if it is no array, which NumPy refuses."""
    with archive.open(entry) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
        except (ValueError, EOFError, struct.error):
            return None
    return shape, dtype


def _claimed(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """The bytes that an array's header claims; NumPy reserves them before it reads a value."""
    header = _header(archive, entry)
    if header is None:
        return 0
    shape, dtype = header
    size = dtype.itemsize
    for length in shape:
        size *= int(length)
    return size


def parquet_bytes(path: Path) -> int:
    """Return what a Parquet file takes: rows times columns of numbers, plus the words, or its own size if that is more.

    A page with one repeated value takes a few bytes for any number of rows, so the file's own sizes say too little. Words are
    measured batch by batch, without being kept.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    int
        Bytes.
    """
    import polars as pl

    frame = pl.scan_parquet(path)
    kinds = frame.collect_schema()
    rows = int(frame.select(pl.len()).collect().item())
    lengths = [each for name, kind in kinds.items() for each in _lengths(pl.col(name), kind)]
    asked = frame.select(pl.sum_horizontal(each.cast(pl.UInt64).sum() for each in lengths)) if lengths else None
    more = 0 if asked is None else int(asked.collect(engine="streaming").item() or 0)
    return max(rows * len(kinds) * BYTES + more, path.stat().st_size)


def _lengths(column: Any, kind: Any) -> list[Any]:
    """The bytes of the words, of the pixels and of the lists in a column, as expressions of every row."""
    import polars as pl

    if kind == pl.String:
        return [column.str.len_bytes()]
    if kind == pl.Binary:
        return [column.bin.size()]
    if kind == pl.List:
        return [column.list.len().cast(pl.UInt64) * BYTES]
    if kind == pl.Array:
        return [pl.when(column.is_not_null()).then(math.prod(kind.shape) * BYTES).otherwise(0)]
    if kind == pl.Struct:
        return [each for field in kind.fields for each in _lengths(column.struct.field(field.name), field.dtype)]
    return []


def libsvm_shape(path: Path) -> tuple[int, int]:
    """Return the rows of a LibSVM file, and its columns: the largest index, and the label.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    int, int
        Rows and columns.
    """
    rows = largest = 0
    with path.open("rb") as file:
        for line in file:
            text = line.partition(b"#")[0]
            if not text.strip():
                continue
            rows += 1
            for index in re.findall(rb"(\d+):", text):
                if len(index.lstrip(b"0")) > 18:
                    raise DataError(f"row {rows} has the index {index.decode()[:30]}, which is no number of a column")
                largest = max(largest, int(index))
    return rows, largest + 1
