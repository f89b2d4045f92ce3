"""The one noised release of every client before training: what it is of, its bound, its noise, and the map that follows.

Two kinds exist: means and deviations (`fedpdm.privacy.standard_release`) and the second moment of the features
(`fedpdm.privacy.basis_release`). Both are means over a client's public number of slots.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedpdm.data.directions import Directions
from fedpdm.data.standard import Standard
from fedpdm.privacy.noise import mean_noise

__all__ = ["SAMPLING", "FirstRelease", "Map", "Moments", "combined", "secure_mean", "simulated_mean", "simulated_release"]

# The variance of a row's contribution over the square of its bound, as weights by precision count it (docs/defaults.md). Too
# small a value gives small clients too little weight; one above twice the truth makes them worse than left out.
SAMPLING = 0.25
STREAM = 0x5354  # separates this noise from that of rounds
Map = Standard | Directions


class Moments(NamedTuple):
    """Noised means over all rows, and the standard deviation of the noise in each."""

    means: np.ndarray
    noise: float


class FirstRelease(NamedTuple):
    """The release of a client before training.

    Attributes
    ----------
    what : str
        Its name in the ledger.
    bound : float
        The largest norm of what one row adds to a client's sum.
    size : int
        How many numbers a release has.
    mean : callable
        `(rows, slots, weights or None) -> [size]`, a client's mean over its slots, before any noise.
    map_of : callable
        From the combined `Moments` to the map of the features.
    sent : callable
        From the combined `Moments` to the numbers that travel to the clients.
    read : callable
        From these numbers, whatever they are, to a map.
    sent_size : int
        How many travel.
    """

    what: str
    bound: float
    size: int
    mean: Callable[[np.ndarray, float, np.ndarray | None], np.ndarray]
    map_of: Callable[[Moments], Map]
    sent: Callable[[Moments], np.ndarray]
    read: Callable[[np.ndarray], Map]
    sent_size: int


def simulated_mean(mean: np.ndarray, sigma: float, seed: int, client: int) -> np.ndarray:
    """Add pseudo-random noise to a client's mean, for simulation: it protects nobody.

    Parameters
    ----------
    mean : ndarray
        The mean.
    sigma : float
        The standard deviation of the noise.
    seed, client : int
        They determine the noise.

    Returns
    -------
    ndarray
        The noised mean.
    """
    return mean + sigma * np.random.default_rng([seed, STREAM, client]).standard_normal(len(mean))


def secure_mean(
    release: FirstRelease,
    rows: np.ndarray,
    slots: int,
    places: int,
    noise_multiplier: float,
    spend: Callable[[float, float], None],
    weights: np.ndarray | None = None,
) -> np.ndarray:
    r"""Release the mean of real rows with exact noise; `spend(sensitivity, sigma)` is called before it is drawn.

    Parameters
    ----------
    release, rows, weights
        What is released; the rows, and the weight of each. An empty slot is a row of weight 0.
    slots, places
        The public numbers of units, and of rows that they can have.
    noise_multiplier, spend
        Noise over sensitivity; and the function that records the release, or raises.

    Returns
    -------
    ndarray
        The noised mean.

    Formal guarantee
    ----------------
    1/z-GDP for one row of this client, or all rows of one person if `weights` are given (add/remove), against anyone who sees
    the release. Noise is OpenDP's discrete Gaussian, and the sensitivity covers rounding (`fedpdm.privacy.noise.mean_noise`).
    The terms' norms add up to $s$ at most, as the weights of n persons add up to n at most. So two neighbours are apart by
    $s/n + 2\gamma_{k+12} s$ at most.
    """
    gaussian, sensitivity, sigma = mean_noise(release.bound, slots, places, release.size, noise_multiplier)
    sums = gaussian.within(release.mean(rows, slots, weights))
    spend(sensitivity, gaussian.noise_multiplier(sigma, sensitivity, sums.size) * sensitivity)
    return gaussian.release(sums, sigma)


def simulated_release(
    release: FirstRelease,
    clients: Sequence[np.ndarray],
    slots: np.ndarray,
    noise_multiplier: float,
    seed: int,
    weights: Sequence[np.ndarray] | None = None,
    honest: Sequence[int] | None = None,
) -> Moments:
    """Release the means of all clients with simulated noise, and combine them.

    Parameters
    ----------
    release : FirstRelease
        What is released.
    clients : sequence of ndarray
        The rows of every client.
    slots : ndarray
        The public size of every client.
    noise_multiplier : float
        z of a client's release, or of a cohort's sum.
    seed : int
        The seed of the simulated noise.
    weights : sequence of ndarray, optional
        The weight of each row.
    honest : sequence of int, optional
        H of every client's cohort, if only sums over cohorts are seen: each member then adds noise of z s/sqrt(H) to its sum.

    Returns
    -------
    Moments
        The mean of the clients' means: weighted by precision, in sums over cohorts by slots.
    """
    members = np.ones(len(clients)) if honest is None else np.asarray(honest, float)
    sigmas = noise_multiplier * release.bound / (slots * np.sqrt(members))
    released = []
    for client, rows in enumerate(clients):
        mean = release.mean(rows, float(slots[client]), None if weights is None else weights[client])
        released.append(simulated_mean(mean, float(sigmas[client]), seed, client))
    return combined(release, released, slots, sigmas) if honest is None else _mean(released, slots / slots.sum(), sigmas)


def combined(release: FirstRelease, released: Sequence[np.ndarray], slots: np.ndarray, sigmas: np.ndarray) -> Moments:
    r"""Return the mean of the clients' releases, weighted by their precision, and its noise: post-processing.

    The mean of a client's n rows has a sampling variance of $s^2/n$ at most (s: `bound`), which counts with the factor
    `SAMPLING`, and its noise adds $k\sigma^2$ over k numbers. Weights in proportion to the inverse of the sum have the
    smallest variance. With weights by slots, a client of 20 rows would add as much noise as one of 20,000 (docs/defaults.md).

    Parameters
    ----------
    release : FirstRelease
        What was released.
    released : sequence of ndarray
        The noised means.
    slots, sigmas : ndarray
        The public size of each of these clients, and the standard deviation of its noise.

    Returns
    -------
    Moments
        The mean, and the standard deviation of its noise.
    """
    precisions = 1 / (SAMPLING * release.bound**2 / slots + release.size * sigmas**2)
    return _mean(released, precisions / precisions.sum(), sigmas)


def _mean(released: Sequence[np.ndarray], shares: np.ndarray, sigmas: np.ndarray) -> Moments:
    means = sum(share * noised for share, noised in zip(shares, released, strict=True))
    return Moments(np.asarray(means), float(np.sqrt(np.sum((shares * sigmas) ** 2))))
