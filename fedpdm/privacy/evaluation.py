r"""How good a model is on private rows, told with noise: a histogram of counts.

A row adds 1 to one cell of the confusion matrix (its class, the predicted one) and 1 to one cell of the calibration table (the
bin of the predicted class's probability; wrong or right). So adding or removing a row moves the vector of all cells by
$\sqrt 2$, and replacing it by at most $2 < 2\sqrt 2$.
"""

import math
from collections.abc import Callable

import numpy as np

from fedpdm.privacy.noise import SecureGaussian

__all__ = ["SENSITIVITY", "cell_count", "count_cells", "release_counts"]

SENSITIVITY = math.sqrt(2)
LATTICE = 2**20  # counts are whole numbers, so rounding to the lattice adds nothing; it is counted nevertheless


def cell_count(classes: int, bins: int) -> int:
    """How many numbers an evaluation has.

    >>> cell_count(3, 10)
    29
    """
    return classes * classes + 2 * bins


def count_cells(scores: np.ndarray, labels: np.ndarray, bins: int) -> np.ndarray:
    """The confusion matrix (true, predicted), then the calibration table (bin, wrong or right), in one flat vector.

    Parameters
    ----------
    scores : ndarray
        [rows, classes], finite; the largest is the predicted class, ties by the lower one.
    labels : ndarray
        [rows] whole numbers.
    bins : int
        Of the probability (softmax) of the predicted class.

    Examples
    --------
    >>> count_cells(np.array([[2.0, 0.0], [0.0, 9.0]]), np.array([0, 0]), bins=2).tolist()
    [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    """
    classes = scores.shape[1]
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    predicted = scores.argmax(axis=1)
    confidence = shifted.max(axis=1) / shifted.sum(axis=1)
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    confusion = np.bincount(labels * classes + predicted, minlength=classes * classes)
    calibration = np.bincount(2 * place + (predicted == labels), minlength=2 * bins)
    return np.concatenate([confusion, calibration]).astype(np.float64)


def release_counts(counts: np.ndarray, noise_multiplier: float, spend: Callable[[float, float], None]) -> np.ndarray:
    """The counts with discrete Gaussian noise; `spend(sensitivity, sigma)` is called before it is drawn.

    Formal guarantee
    ----------------
    Unit: one row; relation: add/remove (replace-one halves the multiplier, as everywhere); adversary: whoever sees the result.
    A Gaussian release with multiplier `noise_multiplier`, whatever the model that the counts are of: `SecureGaussian`.
    """
    gaussian = SecureGaussian(LATTICE)
    sigma = gaussian.sigma_for(noise_multiplier, SENSITIVITY, counts.size)
    spend(SENSITIVITY, gaussian.noise_multiplier(sigma, SENSITIVITY, counts.size) * SENSITIVITY)
    return gaussian.release(gaussian.within(counts), sigma)
