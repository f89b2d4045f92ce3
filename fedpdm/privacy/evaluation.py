"""How good a model is on private rows, told with noise: one vector of counts, or of sums, of `fedpdm.metrics`."""

import math
from collections.abc import Callable

import numpy as np

from fedpdm.privacy.noise import SecureGaussian

__all__ = ["SENSITIVITY", "release_counts"]

SENSITIVITY = math.sqrt(2)  # of the vector of counts: one row, or all rows of a person with weights that add up to 1
LATTICE = 2**20


def release_counts(
    counts: np.ndarray,
    noise_multiplier: float,
    places: int,
    spend: Callable[[float, float], None],
    sensitivity: float = SENSITIVITY,
) -> np.ndarray:
    r"""The counts with discrete Gaussian noise; `spend(sensitivity, sigma)` is called before it is drawn.

    Parameters
    ----------
    counts : ndarray
        A vector of `fedpdm.metrics.vector_of`, `number_sums` or `time_counts`.
    noise_multiplier : float
        Noise over sensitivity.
    places : int
        The public number of rows that can be counted.
    spend : callable
        Records the release, or raises.
    sensitivity : float
        How far one row, or one person, moves the vector.

    Returns
    -------
    ndarray
        The noised counts.

    Formal guarantee
    ----------------
    Unit: one row, or one person; relation: add/remove (replace-one halves the multiplier, as everywhere); adversary: anyone who
    sees the result. A Gaussian release with multiplier `noise_multiplier`, whatever the model that the counts are of. *Proof.*
    A row adds a vector of norm s at most (Theorem H of docs/privacy/proofs.md; for classes $s = \sqrt 2$: 1 in one cell of the
    confusion matrix, and $1/\sqrt K$ in one cell of each of K histograms). All rows of a person add a mean of such vectors, or
    less. So adding or removing them moves the vector by s at most. In float64 the sums over k rows are off by
    $\gamma_{k+4} k s$ at most, which is counted for both neighbours. The rest is `SecureGaussian`. ∎
    """
    terms = (places + 4) * 2.0**-53
    bound = sensitivity * (1 + 2 * terms / (1 - terms) * places)
    gaussian = SecureGaussian(LATTICE)
    sigma = gaussian.sigma_for(noise_multiplier, bound, counts.size)
    spend(bound, gaussian.noise_multiplier(sigma, bound, counts.size) * bound)
    return gaussian.release(gaussian.within(counts), sigma)
