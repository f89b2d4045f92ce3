"""Features on the few directions of a private second moment, and models on them for the original features."""

from typing import NamedTuple

import numpy as np

__all__ = ["Directions"]


class Directions(NamedTuple):
    """The map D^T a of the features.

    Attributes
    ----------
    directions : ndarray
        D, [features, size] float32.
    moment : ndarray
        [features, features], the released second moment without its negative part; empty if it is not known here.

    Examples
    --------
    >>> turned = Directions(np.float32([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]]), np.zeros((0, 0)))
    >>> rows, model = np.float32([[1.0, 2.0, 3.0]]), np.float32([[1.0, 1.0]])
    >>> (turned.apply(rows) @ model.T).tolist(), (rows @ turned.fold(model).T).tolist()
    ([[5.0]], [[5.0]])
    """

    directions: np.ndarray
    moment: np.ndarray

    def apply(self, features: np.ndarray) -> np.ndarray:
        """Return the features [..., n] on the directions."""
        return features @ self.directions.astype(features.dtype)

    def apply_in_use(self, features: np.ndarray) -> np.ndarray:
        """Return the features [..., n] on which a trained model has the scores of its folded form: the same."""
        return self.apply(features)

    def fold(self, model: np.ndarray) -> np.ndarray:
        """Return the model [classes, n] that has the same scores on the original features."""
        return (model @ self.directions.T).astype(np.float32)
