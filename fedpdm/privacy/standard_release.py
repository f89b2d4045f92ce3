"""Means and deviations of private features: one noised release of every client before training."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedpdm.data.standard import Standard
from fedpdm.privacy.noise import SecureGaussian

__all__ = ["Moments", "columns_of", "row_moments", "moments_sensitivity", "moment_count", "client_moments", "simulated_moments"]
__all__ += ["secure_moments", "combine_moments", "release_moments", "standard_from", "standardised_rows"]

LEAST_DEVIATION = 0.03  # of features in [0, 1]: rarer indicators and flatter numbers are not stretched further
STREAM = 0x5354  # separates this noise from that of rounds
BIAS = 0.4  # of the constant feature beside rows that are cut to norm sqrt(1 - 0.4^2)


class Moments(NamedTuple):
    """Noised means of `row_moments` over all rows, and the standard deviation of the noise in each."""

    means: np.ndarray
    noise: float


def columns_of(feature_names: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """Find the positions of numbers (indicators of missing ones included), and those of every word's indicators.

    Parameters
    ----------
    feature_names : sequence of str
        The names after encoding.

    Returns
    -------
    list of int, list of list of int
        Positions of numbers, and of the indicators of each column of words.

    Examples
    --------
    >>> columns_of(["age", "sex=f", "sex=m", "bias"])
    ([0], [[1, 2]])
    """
    numbers: list[int] = []
    words: dict[str, list[int]] = {}
    for place, name in enumerate(feature_names):
        column, equals, _ = name.partition("=")
        if equals:
            words.setdefault(column, []).append(place)
        elif name != "bias":
            numbers.append(place)
    return numbers, list(words.values())


def row_moments(features: np.ndarray, feature_names: Sequence[str]) -> np.ndarray:
    """Return what each row adds to a client's sums.

    Parameters
    ----------
    features : ndarray
        [rows, features] in [0, 1].
    feature_names : sequence of str
        Their names.

    Returns
    -------
    ndarray
        Per row: a - 1/2 and its square for a number a, and the indicators of a word.
    """
    numbers, words = columns_of(feature_names)
    centred = np.clip(features[:, numbers], 0, 1) - 0.5
    indicators = np.clip(features[:, [place for block in words for place in block]], 0, 1)
    return np.concatenate([centred, centred**2, indicators], axis=1)


def moments_sensitivity(feature_names: Sequence[str]) -> float:
    """Return the largest norm of `row_moments`; its square is 1/4 + 1/16 for a number and 1 for a word.

    Parameters
    ----------
    feature_names : sequence of str
        The names after encoding.

    Returns
    -------
    float
        The norm.
    """
    numbers, words = columns_of(feature_names)
    return (5 / 16 * len(numbers) + len(words)) ** 0.5


def moment_count(feature_names: Sequence[str]) -> int:
    """Return how many numbers a client releases.

    Parameters
    ----------
    feature_names : sequence of str
        The names after encoding.

    Returns
    -------
    int
        The length of `row_moments`.

    Examples
    --------
    >>> moment_count(["age", "sex=f", "sex=m", "bias"])
    4
    """
    numbers, words = columns_of(feature_names)
    return 2 * len(numbers) + sum(map(len, words))


def client_moments(
    rows: np.ndarray, feature_names: Sequence[str], slots: float, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return a client's mean of `row_moments` over its public number of slots, before any noise.

    Parameters
    ----------
    rows, feature_names
        The client's features in [0, 1], and their names.
    slots : float
        The public number of units.
    weights : ndarray, optional
        The weight of each row: 1/m for the m rows of a person, if the unit is a person.

    Returns
    -------
    ndarray
        The mean.
    """
    each = row_moments(rows.astype(np.float64), feature_names)
    return (each.sum(axis=0) if weights is None else weights.astype(np.float64) @ each) / slots


def simulated_moments(sums: np.ndarray, sigma: float, seed: int, client: int) -> np.ndarray:
    """Add pseudo-random noise to a client's mean, for simulation: it protects nobody.

    Parameters
    ----------
    sums : ndarray
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
    return sums + sigma * np.random.default_rng([seed, STREAM, client]).standard_normal(len(sums))


def secure_moments(
    rows: np.ndarray,
    feature_names: Sequence[str],
    slots: int,
    places: int,
    noise_multiplier: float,
    spend: Callable[[float, float], None],
    weights: np.ndarray | None = None,
) -> np.ndarray:
    r"""Release `client_moments` of real rows with exact noise; `spend(sensitivity, sigma)` is called before it is drawn.

    Parameters
    ----------
    rows, feature_names, weights
        As in `client_moments`; an empty slot is a row of weight 0.
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
    That of `release_moments` for one client, without its assumptions: noise is OpenDP's discrete Gaussian, and the sensitivity
    covers rounding. In float64 a sum of up to k = `places` terms has a relative error of at most $\gamma_{k+8}$ in each
    coordinate, the eight being the operations on one term; the terms' norms add up to $s$ at most, as the weights of
    n persons add up to n at most. So two neighbours are apart by $s/n + 2\gamma_{k+8} s$ at most.
    """
    bound = moments_sensitivity(feature_names)
    terms = (places + 8) * 2.0**-53
    sensitivity = bound / slots * (1 + 2.0**-40) + 2 * terms / (1 - terms) * bound
    lattice = 2**24
    while noise_multiplier * sensitivity * lattice < 2**12 and lattice < 2**40:
        lattice *= 2
    gaussian = SecureGaussian(lattice)
    sums = gaussian.within(client_moments(rows, feature_names, slots, weights))
    sigma = gaussian.sigma_for(noise_multiplier, sensitivity, sums.size)
    spend(sensitivity, gaussian.noise_multiplier(sigma, sensitivity, sums.size) * sensitivity)
    return gaussian.release(sums, sigma)


def combine_moments(
    released: Sequence[np.ndarray], slots: np.ndarray, feature_names: Sequence[str], noise_multiplier: float
) -> Moments:
    """Return the mean by slots of the clients' releases, and its noise: post-processing.

    Parameters
    ----------
    released : sequence of ndarray
        The noised means.
    slots : ndarray
        The public size of each of these clients.
    feature_names, noise_multiplier
        The names of the features, and z of a client's release.

    Returns
    -------
    Moments
        The mean, and the standard deviation of its noise.
    """
    shares = slots / slots.sum()
    sigma = noise_multiplier * moments_sensitivity(feature_names) / slots
    means = sum(share * noised for share, noised in zip(shares, released, strict=True))
    return Moments(np.asarray(means), float(np.sqrt(np.sum((shares * sigma) ** 2))))


def release_moments(
    clients: Sequence[np.ndarray],
    slots: np.ndarray,
    feature_names: Sequence[str],
    noise_multiplier: float,
    seed: int,
    weights: Sequence[np.ndarray] | None = None,
) -> Moments:
    """Release every client's mean of `row_moments` over its public number of slots, with Gaussian noise.

    Parameters
    ----------
    clients : sequence of ndarray
        The rows of every client.
    slots : ndarray
        The public size of every client.
    feature_names : sequence of str
        The names of the features.
    noise_multiplier : float
        z of a client's release.
    seed : int
        The seed of the simulated noise.
    weights : sequence of ndarray, optional
        The weight of each row: 1/m for the m rows of a person, if the unit is a person.

    Returns
    -------
    Moments
        The mean of the clients' means, weighted by slots.

    Formal guarantee
    ----------------
    Relation: add/remove one row of one client, or all rows of one person if `weights` are given; adversary: anyone who sees
    the released means, the server included. A row moves its client's mean by at most s/n, s = `moments_sensitivity`, because
    features are in [0, 1] and a word has one indicator that is not 0. All rows of a person together do not move it further,
    as their weights add up to 1. The noise has the standard deviation z s/n, so the release of a client is 1/z-GDP. Everything
    computed from it (centres, scales, features) is post-processing. Proof: docs/privacy/proofs.md. Assumes exact arithmetic
    and true Gaussian noise; this one is pseudo-random, for simulation. A real client uses `secure_moments`.
    """
    bound = moments_sensitivity(feature_names)
    released = []
    for client, rows in enumerate(clients):
        sums = client_moments(rows, feature_names, slots[client], None if weights is None else weights[client])
        released.append(simulated_moments(sums, noise_multiplier * bound / slots[client], seed, client))
    return combine_moments(released, slots, feature_names, noise_multiplier)


def standard_from(moments: Moments, feature_names: Sequence[str]) -> Standard:
    """Compute centres and scales with which a typical row has norm 1.

    Parameters
    ----------
    moments : Moments
        The released moments.
    feature_names : sequence of str
        The names of the features.

    Returns
    -------
    Standard
        The scaling; a deviation within the noise counts as the smallest one.
    """
    numbers, words = columns_of(feature_names)
    places = [place for block in words for place in block]
    count = len(feature_names)
    centre, variance = np.zeros(count), np.zeros(count)
    first, second = moments.means[: len(numbers)], moments.means[len(numbers) : 2 * len(numbers)]
    centre[numbers] = np.clip(first, -0.5, 0.5) + 0.5
    variance[numbers] = second - np.clip(first, -0.5, 0.5) ** 2
    centre[places] = np.clip(moments.means[2 * len(numbers) :], 0, 1)
    variance[places] = centre[places] * (1 - centre[places])
    floor = max(LEAST_DEVIATION, (2 * moments.noise) ** 0.5)
    deviation = np.sqrt(np.maximum(variance, floor**2))
    typical = np.sqrt(max(float((np.maximum(variance, 0) / deviation**2).sum()), 1.0))
    scale = deviation * typical
    bias = feature_names[-1] == "bias"
    if bias:
        centre[-1], scale[-1] = 0.0, 1 / BIAS
    else:  # nothing could take up the centres
        centre[:] = 0.0
    return Standard(centre.astype(np.float32), scale.astype(np.float32), bias)


def standardised_rows(standard: Standard, rows: np.ndarray) -> np.ndarray:
    """Map rows for a private training, and cut them: each one, with its bias, has norm 1 at most.

    Parameters
    ----------
    standard : Standard
        Any centres and scales; every row is mapped by itself.
    rows : ndarray
        [rows, features].

    Returns
    -------
    ndarray
        The rows as training sees them.
    """
    mapped = standard.apply(rows)
    inputs = mapped.shape[1] - standard.bias
    limit = (1 - BIAS**2) ** 0.5 if standard.bias else 1.0
    norms = np.sqrt(np.einsum("ij,ij->i", mapped[:, :inputs], mapped[:, :inputs], dtype=np.float64))
    # one part in a million below, so that rounding to float32 cannot lift a norm above the bound
    factors = np.where(norms > limit, limit * (1 - 1e-6) / np.maximum(norms, limit), 1.0)
    mapped[:, :inputs] *= factors[:, None].astype(mapped.dtype)
    return mapped
