"""The user's own tables: CSV, Parquet, NPZ and LibSVM files, folders of images, and Python objects, as named columns."""

__all__ = [
    "Table",
    "FORMATS",
    "MISSING",
    "MISSING_NUMBERS",
    "read_table",
    "table_from_columns",
    "table_from_bunch",
    "nearest",
    "npz_columns",
]

import difflib
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fedpdm.data.csv_files import number_names, read_csv, read_numbers
from fedpdm.data.images import holds_pixels, read_folder
from fedpdm.data.limits import BYTES, libsvm_shape, npz_bytes, npz_width, parquet_bytes, require_columns, require_memory
from fedpdm.data.values import column_from
from fedpdm.errors import DataError, require_extra

if TYPE_CHECKING:
    import polars

# Words for "not known" in a text file, in upper or lower case, with or without spaces around them. "none" counts among numbers
# only: as a word it may be an answer.
MISSING = ("?", "na", "n/a", "nan", "null")
MISSING_NUMBERS = (*MISSING, "none")
SMALL = 2**16  # bytes; a file that is larger is not empty
# Columns, and a way to read some of them again as they were written.
Read: TypeAlias = "tuple[dict[str, polars.Series], dict[str, Callable[[], polars.Series]]]"
SKLEARN = "sklearn:"  # sklearn:wine is the result of sklearn.datasets.load_wine


class Table(NamedTuple):
    """Columns of one length.

    Attributes
    ----------
    name : str
        The file, as the user gave it.
    columns : dict of str to polars.Series
        Numbers (float64), words (str), or images (pixels, or the content of files); null is missing. The schema decides which
        columns are numbers and which words mean a missing value. A CSV's column holds numbers only if each can be written in
        one way, so a code such as "007" stays a word.
    rows : int
        Their length.
    checksum : str
        SHA-256 of the file.
    sparse : bool
        Whether a column that is missing is zero everywhere: LibSVM files leave zeros out, so their columns depend on the rows.
    unwritten : dict of str to callable, optional
        Columns of numbers that do not tell how each was written, such as 1.50; the callable reads the column again.
    folder : Path
        The folder that paths of images start from.
    """

    name: str
    columns: "dict[str, polars.Series]"
    rows: int
    checksum: str
    sparse: bool = False
    unwritten: "dict[str, Callable[[], polars.Series]] | None" = None
    folder: Path = Path()

    def column(self, name: str, purpose: str = "column", numbers: bool = False) -> "polars.Series":
        """Return the column of this name; if there is none, raise an error that lists the nearest names.

        With `numbers` the caller wants its numbers alone, however they were written.
        """
        if self.sparse and name not in self.columns and re.fullmatch(r"x[1-9]\d*", name):
            return column_from(np.zeros(self.rows), name)
        if name not in self.columns:
            near, all_of_them = nearest(name, self.columns), listed(self.columns)
            folder = "image" in self.columns and Path(self.name).is_dir()
            way_out = "; use folders CLIENT/CLASS/x.png, or a CSV file with a column of paths" if folder else ""
            raise DataError(
                f"{self.name} has no {purpose} {name!r}: {near if near == all_of_them else f'{near}; {all_of_them}'}{way_out}"
            )
        if not numbers and self.unwritten and name in self.unwritten:
            self.columns[name] = self.unwritten.pop(name)()
        return self.columns[name]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint that leads from an unknown name to known ones.

    Parameters
    ----------
    name : str
        The unknown name.
    names : iterable of str
        The known names.

    Returns
    -------
    str
        The nearest names, or the first few.
    """
    names = list(names)
    by_lower = {known.lower(): known for known in reversed(names)}
    near = [by_lower[found] for found in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    if near:
        return f"the nearest {'is' if len(near) == 1 else 'are'} {', '.join(map(repr, near))}"
    return listed(names)


def listed(names: Iterable[str]) -> str:
    """Return the first few columns as text."""
    names = list(names)
    shown = ", ".join(map(repr, names[:8]))
    return f"its columns are {shown}" + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def read_table(path: Path | str) -> Table:
    """Read a table; the ending of its name chooses the format (`FORMATS`).

    Parameters
    ----------
    path : Path or str
        A file, a folder of images, or "sklearn:NAME" for a data set that comes with scikit-learn, such as "sklearn:wine".

    Returns
    -------
    Table
        The columns.

    Raises
    ------
    DataError
        If the file does not exist, is not in the format of its ending, or has no rows.
    """
    name = str(path)
    if name.startswith(SKLEARN):
        return _read_sklearn(name)
    path = Path(path).expanduser()
    if path.is_dir():
        require_extra("polars", "tables", "A table")
        columns, checksum = read_folder(path)
        return _table(name, {key: column_from(values, key) for key, values in columns.items()}, checksum, folder=path)
    if not path.is_file():
        raise DataError(
            f"{name} does not exist (looked in {path.absolute().parent}): give the path of a {', '.join(FORMATS)} file, or "
            "of a folder of images"
        )
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise DataError(f"{name}: the ending {ending!r} is not known: use one of {', '.join(FORMATS)}")
    try:
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if path.stat().st_size < SMALL and not path.read_bytes().strip():
            raise DataError(f"{name} is empty: give a file with a line of column names and a row per example")
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}") from None
    require_extra("polars", "tables", "A table")
    if FORMATS[ending] is _read_libsvm:
        require_extra("sklearn", "sklearn", "A LibSVM file")
    try:
        columns, again = FORMATS[ending](path)
        require_columns(len(columns))
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # any error of a parser means that the file is broken
        raise DataError(f"{name} is not a valid {ending} file: {' '.join(str(error).split())[:200]}") from None
    return _table(name, columns, checksum, FORMATS[ending] is _read_libsvm, path.parent)._replace(unwritten=again)


def table_from_columns(columns: Mapping[str, Any], name: str = "own") -> Table:
    """Make a table from arrays or lists; None and NaN are missing.

    Parameters
    ----------
    columns : mapping of str to array-like
        The columns by name.
    name : str
        The name of the table.

    Returns
    -------
    Table
        The columns.

    Examples
    --------
    >>> table = table_from_columns({"age": [31, None], "sex": ["f", "m"]})
    >>> table.rows, table.columns["age"].to_list()
    (2, [31.0, None])
    """
    require_extra("polars", "tables", "A table")
    plain = {str(key): column_from(values, str(key)) for key, values in columns.items()}
    digest = hashlib.sha256()
    for key, series in plain.items():
        digest.update(repr((key, series.dtype)).encode())
        digest.update(series.to_numpy().tobytes() if holds_pixels(series) else repr(series.to_list()).encode())
    return _table(name, plain, digest.hexdigest())


def table_from_bunch(bunch: Mapping[str, Any], label: str = "target", name: str = "own") -> Table:
    """Make a table from the result of `sklearn.datasets.load_*` or `fetch_openml`.

    Parameters
    ----------
    bunch : mapping
        With "data" and "target", and optionally "feature_names" and "target_names".
    label : str
        The name of the label's column, which holds the names of the classes.
    name : str
        The name of the table.

    Returns
    -------
    Table
        The features and the label.
    """
    features, target = np.asarray(bunch["data"]), np.asarray(bunch["target"])
    names = bunch.get("feature_names")
    names = [f"x{column}" for column in range(features.shape[1])] if names is None else [str(known) for known in names]
    classes = bunch.get("target_names")
    if classes is not None and target.dtype.kind in "iu" and target.min() >= 0 and target.max() < len(classes):
        target = np.array([str(known) for known in classes])[target]
    columns = dict(zip(names, features.T, strict=True))
    return table_from_columns({**columns, label: target}, name)


def _table(name: str, columns: "dict[str, polars.Series]", checksum: str, sparse: bool = False, folder: Path = Path()) -> Table:
    lengths = {key: len(series) for key, series in columns.items()}
    if not lengths or not max(lengths.values()):
        raise DataError(f"{name} has no rows: give at least one row below the column names")
    if len(set(lengths.values())) > 1:
        raise DataError(f"{name}: the columns have different lengths ({_counts(lengths)}); make them equal")
    return Table(name, columns, max(lengths.values()), checksum, sparse, folder=folder)


def _counts(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {length}" for key, length in list(lengths.items())[:4])


def _read_csv(path: Path) -> Read:
    """Read the words first: while polars reads, the file is in memory too, and words alone leave more room beside it."""
    numbers, plain, header = number_names(path)
    known = set(numbers)
    others = [name for name in header if name not in known]
    words = {key: column_from(values, key) for key, values in read_csv(path, others)} if others or not header else {}
    columns = words | read_numbers(path, numbers)
    order = {name.strip(): place for place, name in enumerate(header)}
    in_order = dict(sorted(columns.items(), key=lambda item: order.get(item[0], 0)))
    return in_order, {key: functools.partial(_read_again, path, key) for key in numbers if key not in plain}


def _read_again(path: Path, name: str) -> "polars.Series":
    """Return a column of a CSV file as it is written."""
    return next(column_from(values, key) for key, values in read_csv(path, [name]))


def _read_parquet(path: Path) -> Read:
    import polars as pl

    require_memory(parquet_bytes(path))
    frame = pl.read_parquet(path)
    return {key: column_from(frame.drop_in_place(key), key) for key in frame.columns}, {}


def _read_npz(path: Path) -> Read:
    require_columns(npz_width(path))
    require_memory(npz_bytes(path))
    with np.load(path, allow_pickle=False) as archive:
        return {key: column_from(values, key) for key, values in npz_columns(archive).items()}, {}


def npz_columns(archive: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns of an NPZ file by name.

    A one-dimensional array is a column. The columns of a matrix are named by "feature_names", or NAME0, NAME1, ... Arrays with
    more dimensions are images: [rows, height, width] or [rows, height, width, channels].

    Parameters
    ----------
    archive : mapping of str to ndarray
        The result of `numpy.load`.

    Returns
    -------
    dict of str to ndarray
        The columns.
    """
    arrays = {key: archive[key] for key in archive}
    names = arrays.pop("feature_names", None)
    columns: dict[str, np.ndarray] = {}
    for key, array in arrays.items():
        if array.ndim == 1:
            columns[key] = array
        elif array.ndim == 2:
            own = [f"{key}{column}" for column in range(array.shape[1])]
            if names is not None and len(names) == len(own):
                own = [str(known) for known in names]
            columns |= dict(zip(own, array.T, strict=True))
        elif array.ndim in (3, 4):
            columns[key] = array
        else:
            raise DataError(
                f"array {key!r} has {array.ndim} dimensions; give 1 (a column), 2 (examples, features), or 3 or 4 (images)"
            )
    return columns


def _read_libsvm(path: Path) -> Read:
    """Return columns "label" and x1, x2, ... as the file numbers them."""
    from sklearn.datasets import load_svmlight_file

    rows, columns = libsvm_shape(path)
    require_columns(columns)
    require_memory(rows * columns * BYTES)
    from_one: Any = False  # scikit-learn declares a string here
    features, labels, *_ = load_svmlight_file(str(path), zero_based=from_one)
    read = {f"x{index + 1}": column for index, column in enumerate(np.asarray(features.todense()).T)}
    return {key: column_from(np.asarray(values).ravel(), key) for key, values in {"label": labels, **read}.items()}, {}


def _read_sklearn(name: str) -> Table:
    require_extra("sklearn", "sklearn", "A data set of scikit-learn")
    from sklearn import datasets

    known = ("breast_cancer", "diabetes", "digits", "iris", "wine")  # part of the package: nothing is downloaded
    wanted = name.removeprefix(SKLEARN)
    if wanted not in known:
        raise DataError(f"{name}: scikit-learn comes with {', '.join(SKLEARN + each for each in known)}")
    return table_from_bunch(getattr(datasets, f"load_{wanted}")(), name=name)


FORMATS: dict[str, Callable[[Path], Read]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".npz": _read_npz,
    ".libsvm": _read_libsvm,
    ".svm": _read_libsvm,
    ".svmlight": _read_libsvm,
}
