"""A node's own images, each read by itself: a broken image makes its own row empty and changes no other row."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpdm.data.images import image_content, image_paths, pixels_of, rows_of_images
from fedpdm.data.schema import Image, Schema

if TYPE_CHECKING:
    import polars

__all__ = ["folder_columns", "pixels_and_faults"]


def folder_columns(folder: Path, schema: Schema, most: int | None = None) -> tuple["dict[str, polars.Series]", np.ndarray, int]:
    """Read a folder of images, one after another. The folder around an image names its class; its own place does not matter.

    Parameters
    ----------
    folder : Path
        The folder.
    schema : Schema
        The public schema: one column of images, and the label.
    most : int, optional
        Only this number of images is opened.

    Returns
    -------
    dict of str to polars.Series, ndarray, int
        The columns; [rows] bool, whether an image could be read; and the number of images that were not opened.
    """
    import polars as pl

    name, kind = next(((name, kind) for name, kind in schema.columns.items() if isinstance(kind, Image)), ("image", None))
    paths = list(image_paths(folder))
    opened = paths[:most]
    labels = [_text(Path(path).parent.name) for path in opened]
    columns = {schema.label: pl.Series(schema.label, labels, pl.String)}
    if kind is None:  # the table then lacks a column, for any images
        return columns, np.ones(len(opened), bool), len(paths) - len(opened)
    columns[name], wrong = _pixels(name, (image_content(path, folder) for path in opened), len(opened), kind)
    return columns, ~wrong, len(paths) - len(opened)


def pixels_and_faults(column: "polars.Series", kind: Image) -> tuple["polars.Series", np.ndarray]:
    """Return the pixels of every row, on the scale of the schema, and mark the rows without a good image.

    Parameters
    ----------
    column : polars.Series
        A column of any type: arrays, contents of files, or pairs of bytes and path. A node does not follow paths: files behind
        them could change unseen.
    kind : Image
        The column in the schema.

    Returns
    -------
    Series, ndarray
        Arrays of pixels; [rows] bool.
    """
    import polars as pl

    if isinstance(column.dtype, pl.Struct) and "bytes" in {field.name for field in column.dtype.fields}:
        column = column.struct.field("bytes").alias(column.name)
    usable = isinstance(column.dtype, pl.Array) or column.dtype == pl.Binary  # the type decides, never the first row
    rows = rows_of_images(column, Path()) if usable else ("no images",) * len(column)
    return _pixels(column.name, rows, len(column), kind)


def _pixels(name: str, rows: Iterable[np.ndarray | bytes | str], count: int, kind: Image) -> tuple["polars.Series", np.ndarray]:
    import polars as pl

    shape, wrong = kind.full_shape, np.zeros(count, bool)
    pixels = np.zeros((count, *shape), np.float32)
    for place, row in enumerate(rows):
        try:
            pixels[place] = pixels_of(row, shape, kind.white).reshape(shape) * kind.white
        except Exception:  # any error is about this row alone
            wrong[place] = True
    return pl.Series(name, pixels), wrong


def _text(name: str) -> str:
    """Return the name of a folder as text, also if its bytes are none."""
    return name.encode(errors="replace").decode()
