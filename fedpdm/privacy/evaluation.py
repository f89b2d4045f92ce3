r"""The quality of a model on private rows, released as a noised histogram of counts.

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
LATTICE = 2**20  # counts are whole numbers, so rounding to the lattice adds nothing; the accounting includes it all the same


def cell_count(classes: int, bins: int) -> int:
    """Return how many numbers an evaluation has.

    Parameters
    ----------
    classes, bins : int
        Classes of the model, and bins of the calibration table.

    Returns
    -------
    int
        The number of cells.

    Examples
    --------
    >>> cell_count(3, 10)
    29
    """
    return classes * classes + 2 * bins


def count_cells(scores: np.ndarray, labels: np.ndarray, bins: int) -> np.ndarray:
    """Count the cells: the confusion matrix (true, predicted), then the calibration table (bin, wrong or right).

    Parameters
    ----------
    scores : ndarray
        [rows, classes], finite. The predicted class has the largest score; of equal ones it is the first.
    labels : ndarray
        [rows] whole numbers.
    bins : int
        Bins of the probability (softmax) of the predicted class.

    Returns
    -------
    ndarray
        All counts in one flat vector.

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
    """Add discrete Gaussian noise to the counts.

    Parameters
    ----------
    counts : ndarray
        The result of `count_cells`.
    noise_multiplier : float
        z of the release.
    spend : callable
        `(sensitivity, sigma)`, called before the noise is drawn; it records the release, or raises.

    Returns
    -------
    ndarray
        The noised counts.

    Formal guarantee
    ----------------
    Unit: one row; relation: add/remove (replace-one halves the multiplier, as everywhere); adversary: anyone who sees the
    result. It is a Gaussian release with multiplier `noise_multiplier` (`SecureGaussian`), for any model.
    """
    gaussian = SecureGaussian(LATTICE)
    sigma = gaussian.sigma_for(noise_multiplier, SENSITIVITY, counts.size)
    spend(SENSITIVITY, gaussian.noise_multiplier(sigma, SENSITIVITY, counts.size) * SENSITIVITY)
    return gaussian.release(gaussian.within(counts), sigma)
