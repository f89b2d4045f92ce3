"""Public maps of one example: pure functions that look at nothing else and fit nothing, so they cost no privacy."""

from collections.abc import Callable

import numpy as np

from fedpdm.data.datasets import Dataset

__all__ = ["SCALINGS", "scale_features"]

BIAS = 0.2  # of the constant column beside features of norm 1


def _root(features: np.ndarray) -> np.ndarray:
    return np.sign(features) * np.sqrt(np.abs(features))


def _centred(features: np.ndarray) -> np.ndarray:
    return features - features.mean(axis=1, keepdims=True)


SCALINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "unit": lambda features: features,
    "root": _root,
    "centred": _centred,
    "centred-root": lambda features: _centred(_root(features)),
}


def scale_features(dataset: Dataset, scaling: str) -> Dataset:
    """Every example's features (but the bias) mapped, then brought to norm 1; the bias column becomes 0.2.

    "root" takes signed square roots, which lifts faint pixels; "centred" subtracts the example's own mean; "unit" does
    the norm alone. Nothing of any other example enters.
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
