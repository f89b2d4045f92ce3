"""Load data sets as arrays. Every example is mapped by itself, by public rules."""

__all__ = [
    "Dataset",
    "DatasetInfo",
    "DATASETS",
    "load_dataset",
    "describe",
    "clip_norms",
    "with_bias",
]

import difflib
import hashlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.data.adult import ADULT_CLASSES, ADULT_FEATURES, encode_adult
from fedpdm.data.sources import SOURCES, cache_dir, fetch
from fedpdm.errors import DataError, require_extra


class Dataset(NamedTuple):
    """A classification data set with its fixed split.

    Attributes
    ----------
    name : str
        The key in `DATASETS`.
    features, test_features : ndarray
        [examples, n] float32 in [0, 1]. Images end in a bias column of ones. Adult has none: its
        81 columns are 5 numbers and 76 indicators, one of which (United-States) holds in nine rows of ten.
    labels, test_labels : ndarray
        [examples] int32.
    class_names, feature_names : tuple of str
        Names of the labels and of the columns.
    checksums : dict of str to str
        File name to SHA-256, for a run's manifest.
    clients, client_names : ndarray, tuple of str
        [examples] the owner of each example, as a position in the names; empty before examples are assigned to clients.
    units, test_units : ndarray
        [examples] equal numbers for examples of one person; empty if every example is a person of its own.
    most_rows : int
        Above 0: a public bound on the examples of one unit; each example then has the weight one over it.
    """

    name: str
    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    checksums: dict[str, str]
    clients: np.ndarray = np.zeros(0, np.int32)
    client_names: tuple[str, ...] = ()
    units: np.ndarray = np.zeros(0, np.int64)
    most_rows: int = 0
    test_units: np.ndarray = np.zeros(0, np.int64)


class DatasetInfo(NamedTuple):
    """Facts about a data set, to read before training on it."""

    name: str
    examples: int
    test_examples: int
    features: int
    class_names: tuple[str, ...]
    label_counts: tuple[int, ...]
    test_label_counts: tuple[int, ...]
    source: str
    cached: str
    checksums: dict[str, str]

    def __str__(self) -> str:
        """Return the facts in aligned lines."""
        counts = zip(self.class_names, self.label_counts, self.test_label_counts, strict=True)
        lines = [
            f"{self.name}: {self.examples} training and {self.test_examples} test examples",
            f"features  {self.features}",
            f"classes   {len(self.class_names)}",
            *(f"  {label:<8} {train:>6} {test:>6}" for label, train, test in counts),
            f"source    {self.source}",
            f"cached    {self.cached}",
            *(f"SHA-256   {digest}  {file}" for file, digest in self.checksums.items()),
        ]
        return "\n".join(lines)


def load_dataset(name: str, data_dir: Path | str | None = None, progress: bool = True) -> Dataset:
    """Load a data set, and fetch its files if they are not in the cache.

    Parameters
    ----------
    name : str
        A key of `DATASETS`.
    data_dir : Path or str, optional
        A folder with the original files; see `fedpdm.data.sources.fetch`.
    progress : bool
        Report on stderr what is being fetched.

    Returns
    -------
    Dataset
        The examples with their fixed split.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name.lower(), DATASETS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        if Path(name).exists():
            hint = f"for your own data write ./{name}; "
        raise DataError(f"unknown data set {name!r}: {hint}the data sets are {', '.join(DATASETS)}")
    dataset = DATASETS[name](data_dir, progress)
    for part in (dataset.features, dataset.test_features):
        _refuse_not_finite(name, part, dataset.feature_names)
    return dataset


def describe(name: str, data_dir: Path | str | None = None, progress: bool = True) -> DatasetInfo:
    """Load a data set and summarise it.

    Parameters
    ----------
    name : str
        A key of `DATASETS`.
    data_dir : Path or str, optional
        A folder with the original files; see `fedpdm.data.sources.fetch`.
    progress : bool
        Report on stderr what is being fetched.

    Returns
    -------
    DatasetInfo
        The facts; `str()` of it is ready to print.
    """
    data = load_dataset(name, data_dir, progress)
    classes = len(data.class_names)
    source, cached = "scikit-learn", "not needed"
    if name in SOURCES:
        urls = {file.url.rpartition("/")[0] for file in SOURCES[name].files}
        source = f"{', '.join(sorted(urls))} or package {SOURCES[name].requirement or SOURCES[name].debian}"
        folder = cache_dir() / name
        cached = str(folder) if folder.is_dir() else "no"
    return DatasetInfo(
        name=name,
        examples=len(data.labels),
        test_examples=len(data.test_labels),
        features=data.features.shape[1],
        class_names=data.class_names,
        label_counts=tuple(np.bincount(data.labels, minlength=classes).tolist()),
        test_label_counts=tuple(np.bincount(data.test_labels, minlength=classes).tolist()),
        source=source,
        cached=cached,
        checksums=data.checksums,
    )


def with_bias(features: np.ndarray) -> np.ndarray:
    """Append a column of ones.

    Parameters
    ----------
    features : ndarray
        [examples, n].

    Returns
    -------
    ndarray
        [examples, n + 1], float32.

    Examples
    --------
    >>> with_bias(np.array([[0.5, 0.25]]))
    array([[0.5 , 0.25, 1.  ]], dtype=float32)
    """
    out = np.ones((len(features), features.shape[1] + 1), np.float32)
    out[:, :-1] = features
    return out


def clip_norms(features: np.ndarray, radius: float) -> np.ndarray:
    """Scale down every row whose L2 norm exceeds a bound. Each row is scaled by itself.

    Parameters
    ----------
    features : ndarray
        [examples, n].
    radius : float
        The bound, above 0.

    Returns
    -------
    ndarray
        float32 rows of at most this norm.

    Examples
    --------
    >>> clip_norms(np.array([[3.0, 4.0], [0.3, 0.4]]), radius=1.0).round(3)
    array([[0.6, 0.8],
           [0.3, 0.4]], dtype=float32)
    """
    if not radius > 0:
        raise DataError(f"the norm bound is {radius}, but must be above 0; give a positive radius")
    features = np.asarray(features, np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", features, features, dtype=np.float64))
    # one part in a million below, so that rounding to float32 cannot lift a norm above the bound
    scale = np.where(norms > radius, radius * (1 - 1e-6) / np.maximum(norms, radius), 1.0)
    return features * scale[:, None].astype(np.float32)


def _refuse_not_finite(name: str, features: np.ndarray, feature_names: Sequence[str]) -> None:
    finite = np.isfinite(features)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise DataError(
            f"{name}: row {row}, column {feature_names[column]!r} is {features[row, column]}; "
            "every value must be finite: fix or drop that row"
        )


def _load_mnist(data_dir: Path | str | None, progress: bool) -> Dataset:
    return _load_idx("mnist", tuple(str(digit) for digit in range(10)), data_dir, progress)


CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def _load_fashion(data_dir: Path | str | None, progress: bool) -> Dataset:
    return _load_idx("fashion-mnist", CLOTHES, data_dir, progress)


def _load_idx(name: str, classes: tuple[str, ...], data_dir: Path | str | None, progress: bool) -> Dataset:
    """Load images of 28 x 28 pixels in the four files of MNIST's format."""
    files = fetch(name, data_dir, progress)

    def split(prefix: str) -> tuple[np.ndarray, np.ndarray]:
        images = np.frombuffer(files.contents[f"{prefix}-images-idx3-ubyte"], np.uint8, offset=16)
        labels = np.frombuffer(files.contents[f"{prefix}-labels-idx1-ubyte"], np.uint8, offset=8)
        features = with_bias(images.reshape(len(labels), 784))
        features[:, :-1] /= np.float32(255)
        return features, labels.astype(np.int32)

    names = (*(f"pixel {row},{column}" for row in range(28) for column in range(28)), "bias")
    return Dataset(name, *split("train"), *split("t10k"), classes, names, files.checksums)


def _within_sklearn(path: str) -> Path:
    """Find a file of scikit-learn without its import, which takes a second."""
    require_extra("sklearn", "sklearn", 'data.name="digits"')
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / path


def _load_digits(data_dir: Path | str | None, progress: bool) -> Dataset:
    del data_dir, progress  # ships with scikit-learn: nothing to look for, nothing to fetch
    table = np.loadtxt(_within_sklearn("datasets/data/digits.csv.gz"), np.uint8, delimiter=",")
    pixels, labels = table[:, :-1], table[:, -1].astype(np.int32)
    # every fifth example of each class is held out: fixed, balanced, and without a random generator
    rank = np.empty(len(labels), int)
    for label in range(10):
        members = labels == label
        rank[members] = np.arange(members.sum())
    held_out = rank % 5 == 4
    features = with_bias(pixels.astype(np.float64) / 16)
    names = (*(f"pixel {row},{column}" for row in range(8) for column in range(8)), "bias")
    digest = hashlib.sha256(pixels.tobytes() + labels.astype(np.uint8).tobytes())
    return Dataset(
        "digits",
        features[~held_out],
        labels[~held_out],
        features[held_out],
        labels[held_out],
        tuple(str(digit) for digit in range(10)),
        names,
        {"digits": digest.hexdigest()},
    )


def _load_adult(data_dir: Path | str | None, progress: bool) -> Dataset:
    files = fetch("adult", data_dir, progress)

    def split(file: str) -> tuple[np.ndarray, np.ndarray]:
        lines = files.contents[file].decode("ascii").splitlines()
        # adult.test opens with a "|1x3" comment, both files end in a blank line, test labels end in "."
        rows = [line.rstrip(".").split(", ") for line in lines if line and not line.startswith("|")]
        labels = np.array([ADULT_CLASSES.index(row[-1]) for row in rows], np.int32)
        return encode_adult([row[:-1] for row in rows]), labels

    parts = (*split("adult.data"), *split("adult.test"))
    return Dataset("adult", *parts, ADULT_CLASSES, ADULT_FEATURES, files.checksums)


DATASETS: dict[str, Callable[[Path | str | None, bool], Dataset]] = {
    "mnist": _load_mnist,
    "fashion-mnist": _load_fashion,
    "adult": _load_adult,
    "digits": _load_digits,
}
