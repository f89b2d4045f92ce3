"""The user's own tables: CSV, Parquet, NPZ and LibSVM files, and Python objects, as named columns."""

__all__ = [
    "Table",
    "FORMATS",
    "MISSING",
    "MISSING_NUMBERS",
    "read_table",
    "table_from_columns",
    "table_from_bunch",
    "nearest",
    "number_word",
    "npz_columns",
]

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpdm.data.csv_files import read_csv
from fedpdm.data.limits import libsvm_bytes, npz_bytes, parquet_bytes, require_memory
from fedpdm.errors import DataError, require_extra

if TYPE_CHECKING:
    import polars

# Words for "not known" in a text file, in upper or lower case, with or without spaces around them. "none" counts among numbers
# only: as a word it may be an answer.
MISSING = ("?", "na", "n/a", "nan", "null")
MISSING_NUMBERS = (*MISSING, "none")
PLAIN = r"^-?(0|[1-9]\d{0,9})(\.\d{0,3}[1-9])?$|^-?[1-9]\d{0,14}$"  # numbers that are written in one way only
SMALL = 2**16  # bytes; a file that is larger is not empty
SKLEARN = "sklearn:"  # sklearn:wine is the result of sklearn.datasets.load_wine


class Table(NamedTuple):
    """Columns of one length.

    Attributes
    ----------
    name : str
        The file, as the user gave it.
    columns : dict of str to polars.Series
        Numbers (float64) or words (str); null is missing. The schema decides which columns are numbers and which words mean a
        missing value. A CSV's column holds numbers only if each can be written in one way, so a code such as "007" stays a
        word.
    rows : int
        Their length.
    checksum : str
        SHA-256 of the file.
    sparse : bool
        Whether a column that is missing is zero everywhere: LibSVM files leave zeros out, so their columns depend on the rows.
    """

    name: str
    columns: "dict[str, polars.Series]"
    rows: int
    checksum: str
    sparse: bool = False

    def column(self, name: str, purpose: str = "column") -> "polars.Series":
        """Return the column of this name; if there is none, raise an error that lists the nearest names."""
        if self.sparse and name not in self.columns and re.fullmatch(r"x[1-9]\d*", name):
            return _series(np.zeros(self.rows), name)
        if name not in self.columns:
            near, all_of_them = nearest(name, self.columns), listed(self.columns)
            raise DataError(
                f"{self.name} has no {purpose} {name!r}: {near if near == all_of_them else f'{near}; {all_of_them}'}"
            )
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
        A file, or "sklearn:NAME" for a data set that comes with scikit-learn, such as "sklearn:wine".

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
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else f"does not exist (looked in {path.absolute().parent})"
        raise DataError(f"{name} {what}: give the path of a {', '.join(FORMATS)} file")
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
        columns = FORMATS[ending](path)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # any error of a parser means that the file is broken
        raise DataError(f"{name} is not a valid {ending} file: {' '.join(str(error).split())[:200]}") from None
    sparse = FORMATS[ending] is _read_libsvm
    return _table(name, columns, checksum, sparse)


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
    plain = {str(key): _series(values, str(key)) for key, values in columns.items()}
    digest = hashlib.sha256(repr([(key, series.to_list()) for key, series in plain.items()]).encode())
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


def _table(name: str, columns: "dict[str, polars.Series]", checksum: str, sparse: bool = False) -> Table:
    lengths = {key: len(series) for key, series in columns.items()}
    if not lengths or not max(lengths.values()):
        raise DataError(f"{name} has no rows: give at least one row below the column names")
    if len(set(lengths.values())) > 1:
        raise DataError(f"{name}: the columns have different lengths ({_counts(lengths)}); make them equal")
    return Table(name, columns, max(lengths.values()), checksum, sparse)


def _counts(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {length}" for key, length in list(lengths.items())[:4])


def _series(values: Any, name: str) -> "polars.Series":
    """Return numbers as float64 and everything else as words, with null for missing values."""
    import polars as pl

    if isinstance(values, pl.Series):
        series = values.alias(name)
    else:
        # an array of objects keeps every value of a list: with a common type, one row could change how others are read
        array = np.asarray(values, None if hasattr(values, "dtype") else object)
        if array.ndim != 1:
            raise DataError(f"column {name!r} has shape {array.shape}: give one value per row")
        series = pl.Series(name, array if array.dtype.kind in "iufb" else _alike(array.tolist()), strict=False)
    if series.dtype.is_numeric():
        numbers = series.cast(pl.Float64)
        return numbers.set(~numbers.is_finite().fill_null(True), None)
    words = series.cast(pl.String).str.strip_chars()
    return _compact(words.set((words == "").fill_null(False), None))


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
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in known):
        return [None if value is None else float(value) for value in known]
    return [None if value is None else _word(value) for value in known]


def _word(value: Any) -> str:
    """Return one value as a word; the other values of its column do not matter."""
    if isinstance(value, bool):
        return str(value).lower()
    return number_word(float(value)) if isinstance(value, int | float) else str(value)


def number_word(value: float) -> str:
    """Return a number as a word: 7.0 is "7".

    Parameters
    ----------
    value : float
        The number.

    Returns
    -------
    str
        The word.
    """
    return f"{value:.15g}"


def _read_csv(path: Path) -> "dict[str, polars.Series]":
    return {key: _series(values, key) for key, values in read_csv(path)}


def _read_parquet(path: Path) -> "dict[str, polars.Series]":
    import polars as pl

    require_memory(parquet_bytes(path))
    frame = pl.read_parquet(path)
    return {key: _series(frame.drop_in_place(key), key) for key in frame.columns}


def _read_npz(path: Path) -> "dict[str, polars.Series]":
    require_memory(npz_bytes(path))
    with np.load(path, allow_pickle=False) as archive:
        return {key: _series(values, key) for key, values in npz_columns(archive).items()}


def npz_columns(archive: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns of an NPZ file by name.

    A one-dimensional array is a column. The columns of a matrix are named by "feature_names", or NAME0, NAME1, ...

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
        else:
            raise DataError(f"array {key!r} has {array.ndim} dimensions; give 1 (a column) or 2 (examples, features)")
    return columns


def _read_libsvm(path: Path) -> "dict[str, polars.Series]":
    """Return columns "label" and x1, x2, ... as the file numbers them."""
    from sklearn.datasets import load_svmlight_file

    require_memory(libsvm_bytes(path))
    from_one: Any = False  # scikit-learn declares a string here
    features, labels, *_ = load_svmlight_file(str(path), zero_based=from_one)
    columns = {f"x{index + 1}": column for index, column in enumerate(np.asarray(features.todense()).T)}
    return {key: _series(np.asarray(values).ravel(), key) for key, values in {"label": labels, **columns}.items()}


def _read_sklearn(name: str) -> Table:
    require_extra("sklearn", "sklearn", "A data set of scikit-learn")
    from sklearn import datasets

    known = ("breast_cancer", "diabetes", "digits", "iris", "wine")  # part of the package: nothing is downloaded
    wanted = name.removeprefix(SKLEARN)
    if wanted not in known:
        raise DataError(f"{name}: scikit-learn comes with {', '.join(SKLEARN + each for each in known)}")
    return table_from_bunch(getattr(datasets, f"load_{wanted}")(), name=name)


FORMATS: "dict[str, Callable[[Path], dict[str, polars.Series]]]" = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".npz": _read_npz,
    ".libsvm": _read_libsvm,
    ".svm": _read_libsvm,
    ".svmlight": _read_libsvm,
}
