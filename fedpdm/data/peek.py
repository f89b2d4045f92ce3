"""Look at the beginning of a table: does it hold images or texts, which need a feature map?"""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from fedpdm.data.csv_files import first_rows
from fedpdm.data.limits import npz_dimensions, parquet_bytes, require_memory
from fedpdm.data.schema import Ignored, Image, Text
from fedpdm.data.schema_inference import infer_columns
from fedpdm.data.tables import Table
from fedpdm.data.values import column_from

if TYPE_CHECKING:
    import polars

__all__ = ["needs_map"]

ROWS = 500  # enough to tell sentences from names


def needs_map(data: str, roles: Collection[str | None] = ()) -> bool:
    """Tell whether a table without a schema has nothing to learn from but images or texts.

    Only the first rows are read. A file that cannot be read counts as a table; the error comes when it is read whole.

    Parameters
    ----------
    data : str
        A file, or a folder of images.
    roles : collection of str
        Columns with another role, such as the label.

    Returns
    -------
    bool
        True for images and texts; False for numbers and categories, also with texts beside them.
    """
    path = Path(data).expanduser()
    if path.is_dir():
        return True
    ending = path.suffix.lower()
    try:
        if ending == ".npz":
            return max(npz_dimensions(path), default=0) > 2
        columns = _first_columns(path, ending)
        if not columns:
            return False
        rows = len(next(iter(columns.values())))
        found, _ = infer_columns(Table(data, columns, rows, "", folder=path.parent), roles)
    except Exception:  # any error of a parser: the table is read again, with messages
        return False
    used = [column for column in found.values() if not isinstance(column, Ignored)]
    return bool(used) and all(isinstance(column, Image | Text) for column in used)


def _first_columns(path: Path, ending: str) -> "dict[str, polars.Series]":
    """Read the first rows of a CSV or Parquet file; nothing of other files."""
    import polars as pl

    if ending == ".csv":
        return first_rows(path, ROWS)
    if ending != ".parquet":
        return {}
    require_memory(parquet_bytes(path))
    frame = pl.scan_parquet(path).head(ROWS).collect()
    return {name: column_from(frame[name], name) for name in frame.columns}
