"""Stack every client's examples in one array, which the engines train on."""

__all__ = ["Federation", "make_federation", "federation_from_arrays", "hold_out", "mask"]

import hashlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpdm.data.datasets import Dataset
from fedpdm.data.ragged import Ragged, pays, real_rows, stacked
from fedpdm.data.schema import Schema
from fedpdm.data.weights import clients_per_person, padded, person_weights, unit_shares
from fedpdm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedpdm.data.directions import Directions
    from fedpdm.data.standard import Standard


class Federation(NamedTuple):
    """Every client's examples stacked: rows beyond a client's size are padding (zeros).

    Of large tables with clients of very unequal sizes the arrays are `fedpdm.data.ragged.Ragged`: of the same shape, but the
    padding is not stored.

    Attributes
    ----------
    features : ndarray
        [clients, max_size, n] float32.
    labels : ndarray
        [clients, max_size] int32 classes, or float32 numbers in [0, 1].
    sizes : ndarray
        [clients] int32, how many rows of each client are examples.
    test_features, test_labels : ndarray
        The examples that no client holds.
    classes : int
        The number of classes; 1 if the label is a number. A linear model has so many rows.
    name : str
        The data set's name.
    class_names, feature_names : tuple of str
        Names of the labels and of the columns.
    checksums : dict of str to str
        File name to SHA-256 of the original files.
    client_names : tuple of str
        Names of the clients, if a column of the table has them.
    schema : Schema
        The columns of the user's own table.
    standard : Standard or Directions
        How the features were centred and scaled, or projected onto a private basis, if they were.
    weights, persons : ndarray, optional
        If rows do not count 1 each: [clients, max_size] float32, the weight of a row, 1/m for each of a person's m rows at the
        client; and [clients], the number of persons, by which these sums are divided.
    clients_per_person : int
        The most clients that hold rows of one person.
    validation : tuple of ndarray, optional
        Features and labels of rows that are set apart to choose a threshold on.
    test_units : ndarray, optional
        Equal numbers for test rows of one person, if they are known.
    original_names, original_test
        Names of the columns and the test features before a private basis, if there is one; saved models are for them.
    """

    features: np.ndarray
    labels: np.ndarray
    sizes: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    classes: int
    name: str
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    checksums: dict[str, str]
    client_names: tuple[str, ...] = ()
    schema: Schema | None = None
    standard: "Standard | Directions | None" = None
    weights: np.ndarray | None = None
    persons: np.ndarray | None = None
    clients_per_person: int = 1
    validation: tuple[np.ndarray, np.ndarray] | None = None
    test_units: np.ndarray | None = None
    original_names: tuple[str, ...] = ()
    original_test: np.ndarray | None = None

    @property
    def slots(self) -> np.ndarray:
        """[clients] the number of units of a client (examples or persons), by which its sums are divided."""
        return self.sizes if self.persons is None else self.persons

    @property
    def numeric(self) -> bool:
        """Whether the label is a number, not a class. Labels of clients may come on demand, those of the test are there."""
        return self.test_labels.dtype.kind == "f"

    @property
    def kind(self) -> str:
        """Return the kind of the label: "classes", "number" or "time"."""
        target = self.schema.target if self.schema else None
        return target.kind if target else "number" if self.numeric else "classes"

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self.features.shape[0]

    @property
    def max_size(self) -> int:
        """The rows of a client's block: the size of the largest client."""
        return self.features.shape[1]

    @property
    def label_counts(self) -> np.ndarray:
        """[clients, classes] how many examples of each class each client holds; no columns if the label is a number."""
        if self.numeric:
            return np.zeros((self.clients, 0), np.int64)
        client = np.repeat(np.arange(self.clients), self.sizes)
        labels = real_rows(self.labels, self.sizes)
        flat = np.bincount(client * self.classes + labels, minlength=self.clients * self.classes)
        return flat.reshape(self.clients, self.classes)


def mask(sizes: np.ndarray, max_size: int) -> np.ndarray:
    """Mark examples (True) and padding (False).

    Parameters
    ----------
    sizes : ndarray
        Number of examples of every client.
    max_size : int
        Rows of a client's block.

    Returns
    -------
    ndarray
        [clients, max_size], bool.

    Examples
    --------
    >>> mask(np.array([1, 3]), 3)
    array([[ True, False, False],
           [ True,  True,  True]])
    """
    return np.arange(max_size) < np.asarray(sizes)[:, None]


def hold_out(dataset: Dataset, count: int) -> Dataset:
    """Replace the test data by held-out training examples, always the same ones.

    Parameters
    ----------
    dataset : Dataset
        The data set.
    count : int
        Number of training examples to hold out.

    Returns
    -------
    Dataset
        The data set for validation.
    """
    if not 0 < count < len(dataset.labels):
        raise ConfigError(f"Expected 0 < data.validation={count} < {len(dataset.labels)}, the number of training examples.")
    order = np.random.default_rng(0).permutation(len(dataset.labels))
    held, rest = order[:count], order[count:]
    if len(dataset.units):  # hold out all rows of a person, or none
        apart = np.isin(dataset.units, dataset.units[held])
        held, rest = order[apart[order]], order[~apart[order]]
        if not len(rest):
            raise ConfigError(f"data.validation={count} holds out rows of every person: lower it.")
    return dataset._replace(
        features=dataset.features[rest],
        labels=dataset.labels[rest],
        clients=dataset.clients[rest] if len(dataset.clients) else dataset.clients,
        units=dataset.units[rest] if len(dataset.units) else dataset.units,
        test_features=dataset.features[held],
        test_labels=dataset.labels[held],
        test_units=dataset.units[held] if len(dataset.units) else dataset.units,
    )


def make_federation(dataset: Dataset, parts: Sequence[np.ndarray]) -> Federation:
    """Stack a data set by clients.

    Parameters
    ----------
    dataset : Dataset
        The examples.
    parts : sequence of ndarray
        Every client's example indices, as the functions of `fedpdm.data.partition` give them.

    Returns
    -------
    Federation
        The stacked arrays.

    Raises
    ------
    DataError
        If a client is empty, an index is out of range, or an example occurs twice.
    """
    if not len(parts):
        raise DataError("the partition has 0 clients; give at least 1")
    total = len(dataset.labels)
    seen = np.zeros(total, bool)
    for client, part in enumerate(parts):
        if not len(part):
            raise DataError(f"client {client} has no examples; give every client at least 1")
        if np.min(part) < 0 or np.max(part) >= total:
            raise DataError(f"client {client} has an example index outside [0, {total - 1}]; fix the partition")
        if seen[part].any() or len(np.unique(part)) < len(part):
            raise DataError(f"client {client} has an example that occurs twice in the partition; use every example once")
        seen[part] = True
    sizes = np.array([len(part) for part in parts], np.int32)
    ragged = pays(sizes, 4 * dataset.features.shape[1])
    found = Federation(
        features=stacked(parts, dataset.features.astype(np.float32, copy=False), ragged),
        labels=stacked(parts, dataset.labels, ragged),
        sizes=sizes,
        test_features=dataset.test_features,
        test_labels=dataset.test_labels,
        classes=len(dataset.class_names),
        name=dataset.name,
        class_names=dataset.class_names,
        feature_names=dataset.feature_names,
        checksums=dataset.checksums,
        client_names=dataset.client_names if len(dataset.client_names) == len(parts) else (),
        test_units=dataset.test_units if len(dataset.test_units) else None,
    )
    if not len(dataset.units):
        return found
    weights, persons = person_weights(dataset.units, parts)
    if dataset.most_rows:
        weights = [np.full(len(own), unit_shares(np.array(dataset.most_rows)), np.float32) for own in weights]
    most = clients_per_person(dataset.units, parts)
    rows = Ragged(np.concatenate(weights), sizes) if ragged else padded(weights)
    return found._replace(weights=rows, persons=persons, clients_per_person=most)


def federation_from_arrays(
    client_arrays: Sequence[tuple[ArrayLike, ArrayLike]],
    test_features: ArrayLike,
    test_labels: ArrayLike,
    class_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    name: str = "own",
    number: bool = False,
) -> Federation:
    """Make a federation from your own arrays.

    Features are used as they are. Scale them by public bounds, and append a column of ones (`fedpdm.data.with_bias`) if the
    model should have a bias.

    Parameters
    ----------
    client_arrays : sequence of (features, labels)
        Per client: [examples, n] finite numbers, and [examples] whole numbers from 0, or numbers in [0, 1].
    test_features, test_labels : array-like
        The examples to measure accuracy with.
    class_names, feature_names : sequence of str, optional
        Names of the labels 0, 1, ... and of the columns.
    name : str
        Name of the data in reports.
    number : bool
        The label is a number, scaled to [0, 1] by public bounds (`fedpdm.data.schema.Target`), and not a class.

    Returns
    -------
    Federation
        The stacked arrays.

    Raises
    ------
    DataError
        If an array is not valid; it names the client and the row.

    Examples
    --------
    >>> north = ([[0.1, 1.0], [0.9, 1.0], [0.8, 1.0]], [0, 1, 1])
    >>> south = ([[0.2, 1.0]], [0])
    >>> federation = federation_from_arrays([north, south], [[0.7, 1.0]], [1])
    >>> federation.clients, federation.features.shape, federation.sizes.tolist()
    (2, (2, 3, 2), [3, 1])
    >>> federation.label_counts.tolist()
    [[1, 2], [1, 0]]
    """
    if not len(client_arrays):
        raise DataError("client_arrays has 0 clients; give at least 1")
    check = _checked_number if number else _checked
    checked = [check(f"client {client}", *arrays) for client, arrays in enumerate(client_arrays)]
    checked.append(check("test data", test_features, test_labels))
    width = checked[0][0].shape[1]
    classes = 1 if number else max(2, *(int(labels.max()) + 1 for _, labels in checked))
    if class_names is not None and len(class_names) < classes:
        raise DataError(f"label {classes - 1} occurs, but there are {len(class_names)} class names; name every class")
    if feature_names is not None and len(feature_names) != width:
        raise DataError(f"there are {width} columns, but {len(feature_names)} feature names; name every column")
    for client, (features, _) in enumerate(checked):
        if features.shape[1] != width:
            who = f"client {client}" if client < len(client_arrays) else "test data"
            raise DataError(f"{who} has {features.shape[1]} columns, but client 0 has {width}; make them equal")
    bounds = np.cumsum([0, *(len(labels) for _, labels in checked[:-1])])
    dataset = Dataset(
        name=name,
        features=np.concatenate([features for features, _ in checked[:-1]]),
        labels=np.concatenate([labels for _, labels in checked[:-1]]),
        test_features=checked[-1][0],
        test_labels=checked[-1][1],
        class_names=tuple(class_names or (["label"] if number else map(str, range(classes)))),
        feature_names=tuple(feature_names or (f"x{column}" for column in range(width))),
        checksums={name: _fingerprint(checked)},
    )
    return make_federation(dataset, [np.arange(*ends) for ends in itertools.pairwise(bounds)])


def _fingerprint(arrays: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    """Return the SHA-256 of the clients' arrays, so that a resumed run detects a change."""
    digest = hashlib.sha256()
    for features, labels in arrays:
        digest.update(repr(features.shape).encode() + features.tobytes() + labels.tobytes())
    return digest.hexdigest()


def _checked(who: str, features: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return one client's arrays as float32 and int32, or raise a DataError that names the mistake."""
    x, y = _shaped(who, features, labels)
    if y.dtype.kind not in "iub":
        raise DataError(f"{who}: labels are {y.dtype}, expected whole numbers from 0; use labels.astype(int)")
    if y.min() < 0:
        raise DataError(f"{who}, row {np.argmin(y)}: label {y.min()} is below 0; number the classes 0, 1, 2, ...")
    return x, y.astype(np.int32)


def _checked_number(who: str, features: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return one client's arrays as float32, the labels within [0, 1], or raise a DataError that names the mistake."""
    x, y = _shaped(who, features, labels)
    inside = (y >= 0) & (y <= 1) if y.dtype.kind in "iufb" else np.zeros(len(y), bool)
    if not inside.all():
        row = int(np.argmin(inside))
        raise DataError(
            f"{who}, row {row}: label {y[row]} is outside [0, 1]; scale labels by public bounds, (y - low)/(high - low)"
        )
    return x, y.astype(np.float32)


def _shaped(who: str, features: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return finite features as float32, and as many labels."""
    try:
        # a float64 beyond float32 becomes inf here, and is refused below with its row
        with np.errstate(over="ignore"):
            x = np.asarray(features, dtype=np.float32)
        y = np.asarray(labels)
    except (TypeError, ValueError) as error:
        raise DataError(f"{who}: the arrays are not numeric tables ({error}); encode words as numbers") from error
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or not x.size:
        raise DataError(
            f"{who}: features have shape {x.shape} and labels {y.shape}, expected (examples, columns) and "
            "(examples,) with at least 1 of each"
        )
    finite = np.isfinite(x)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise DataError(f"{who}, row {row}, column {column}: {x[row, column]} is not finite; fix or drop that row")
    return x, y
