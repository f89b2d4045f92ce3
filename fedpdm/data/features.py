"""Public maps of one example: pure functions that look at nothing else and fit nothing, so they cost no privacy."""

import math
from collections.abc import Callable

import numpy as np

from fedpdm.data.datasets import Dataset
from fedpdm.errors import ConfigError

__all__ = ["SCALINGS", "scale_features"]

BIAS = 0.2  # of the constant column beside features of norm 1


def _root(features: np.ndarray) -> np.ndarray:
    return np.sign(features) * np.sqrt(np.abs(features))


def _centred(features: np.ndarray) -> np.ndarray:
    return features - features.mean(axis=1, keepdims=True)


def _blurred(features: np.ndarray) -> np.ndarray:
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


SCALINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "unit": lambda features: features,
    "root": _root,
    "centred": _centred,
    "centred-root": lambda features: _centred(_root(features)),
    "blurred": lambda features: _centred(_blurred(_root(features))),
}


def scale_features(dataset: Dataset, scaling: str) -> Dataset:
    """Every example's features (but the bias) mapped, then brought to norm 1; the bias column becomes 0.2.

    "root" takes signed square roots, which lifts faint pixels; "centred" subtracts the example's own mean; "unit" does
    the norm alone; "blurred" is for images: roots, smoothed, centred. Nothing of any other example enters.
    """

    def scale(features: np.ndarray) -> np.ndarray:
        bias = dataset.feature_names[-1] == "bias"
        columns = features[:, :-1] if bias else features
        columns = SCALINGS[scaling](columns.astype(np.float32))
        norms = np.linalg.norm(columns, axis=1, keepdims=True)
        columns = columns / np.maximum(norms, 1e-12)
        if bias:
            columns = np.concatenate([columns, np.full((len(columns), 1), BIAS)], axis=1)
        return columns.astype(np.float32)

    return dataset._replace(features=scale(dataset.features), test_features=scale(dataset.test_features))
