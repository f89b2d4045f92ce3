"""The check of a noised vector whose mean is bounded: means before training, counts of an evaluation."""

import numpy as np

from fedpdm.privacy.band import FAILURE, chi_least, chi_most

__all__ = ["why_impossible"]

SLACK = 1e-3  # relative: lattice and rounding of the noise, and float32 on the wire


def why_impossible(values: np.ndarray, reach: float, sigma: float) -> str:
    r"""Say why no honest client sends this vector, or return "".

    An honest vector is a mean of norm `reach` at most plus Gaussian noise, so its norm has the limits of
    `fedpdm.privacy.band`, up to a probability of $10^{-6}$.

    Parameters
    ----------
    values : ndarray
        What arrived.
    reach, sigma : float
        Largest norm without noise, and standard deviation of the noise.

    Returns
    -------
    str
        The test, the value and the limit; "" if an honest client could have sent it.

    Examples
    --------
    >>> why_impossible(np.full(100, 1.0), reach=2.0, sigma=1.0)
    ''
    >>> why_impossible(np.full(100, 9.0), reach=2.0, sigma=1.0)
    "far: Its norm is 90; an honest client's is at most 14.5812."
    >>> why_impossible(np.full(100, 0.01), reach=2.0, sigma=1.0)
    'noise: Its norm is 0.1; with its noise it is at least 5.24092.'
    """
    length = float(np.linalg.norm(values))
    most = float(chi_most(values.size, reach, sigma, FAILURE / 2)) * (1 + SLACK)
    least = float(chi_least(values.size, sigma, FAILURE / 2)) * (1 - SLACK)
    if not length <= most:
        return f"far: Its norm is {length:.6g}; an honest client's is at most {most:.6g}."
    return "" if length >= least else f"noise: Its norm is {length:.6g}; with its noise it is at least {least:.6g}."
