"""Scalings of one example (`fedpdm.choices.SCALINGS`): pure functions of its features, so they cost no privacy.

Each takes features [rows, n] and the n column names, and returns [rows, n].
"""

import math
from collections.abc import Sequence

import numpy as np

from fedpdm.choices import SCALINGS
from fedpdm.data.datasets import Dataset
from fedpdm.data.piecewise import column_count
from fedpdm.errors import ConfigError

__all__ = ["BIAS", "scale_features", "scale_rows"]  # the table names the scalings

BIAS = 0.2  # of the constant column beside features of norm 1


def bounded(features: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Divide a table's row in [0, 1] by the root of the number of its columns: it then has norm 1 at most."""
    return features / np.float32(column_count(names) ** 0.5)


def unit(features: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Leave the features as they are."""
    return features


def root(features: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Take signed square roots."""
    return np.sign(features) * np.sqrt(np.abs(features))


def centred(features: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Subtract the example's own mean."""
    return features - features.mean(axis=1, keepdims=True)


def centred_root(features: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Take square roots, then subtract the example's own mean."""
    return centred(root(features, names), names)


def blurred(features: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Take square roots, smooth, and subtract the image's own mean."""
    return centred(_smoothed(root(features, names)), names)


def _smoothed(features: np.ndarray) -> np.ndarray:
    """Square images smoothed by the binomial kernel (1, 4, 6, 4, 1)/16 in both directions, zero outside."""
    side = math.isqrt(features.shape[1])
    if side * side != features.shape[1]:
        raise ConfigError(
            f"data.scaling=blurred is for square images, but there are {features.shape[1]} features: choose another scaling."
        )
    images = features.reshape(-1, side, side)
    for axis in (1, 2):
        padding = [(0, 0), (0, 0), (0, 0)]
        padding[axis] = (2, 2)
        padded = np.pad(images, padding)
        shifted = (np.take(padded, range(shift, shift + side), axis=axis) for shift in range(5))
        images = sum(weight / 16 * part for weight, part in zip((1, 4, 6, 4, 1), shifted, strict=True))
    return np.asarray(images).reshape(len(features), -1)


def blur_matrix(features: int) -> np.ndarray:
    """Return the matrix [features, features] that a row is multiplied with when it is smoothed."""
    return _smoothed(np.eye(features, dtype=np.float32))


def scale_features(dataset: Dataset, scaling: str) -> Dataset:
    """Scale every example; nothing of any other example enters.

    Parameters
    ----------
    dataset : Dataset
        Training and test examples.
    scaling : str
        A name in `fedpdm.choices.SCALINGS`. Most map the features but the bias, bring them to norm 1 and set the bias to 0.2.

    Returns
    -------
    Dataset
        The same with scaled features.
    """
    names = dataset.feature_names
    scaled = (scale_rows(scaling, features, names) for features in (dataset.features, dataset.test_features))
    return dataset._replace(**dict(zip(("features", "test_features"), scaled, strict=True)))


def scale_rows(scaling: str, features: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Scale rows, each by itself.

    Parameters
    ----------
    scaling : str
        As in `scale_features`.
    features : ndarray
        [rows, n].
    names : sequence of str
        The columns.

    Returns
    -------
    ndarray
        [rows, n].
    """
    row = SCALINGS.row(scaling)
    function = row.factory()
    if not row.unit:
        return function(features, names)
    bias = names[-1] == "bias"
    columns = features[:, :-1] if bias else features
    columns = function(columns.astype(np.float32), names[: columns.shape[1]])
    norms = np.linalg.norm(columns, axis=1, keepdims=True)
    columns = columns / np.maximum(norms, 1e-12)
    if bias:
        columns = np.concatenate([columns, np.full((len(columns), 1), BIAS)], axis=1)
    return columns.astype(np.float32)
