"""Means and deviations of private features: one noised release of every client before training."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpdm.data.standard import Standard

__all__ = ["Moments", "columns_of", "row_moments", "moments_sensitivity", "release_moments", "standard_from"]

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
    and true Gaussian noise; this one is pseudo-random, for simulation.
    """
    bound, total = moments_sensitivity(feature_names), float(slots.sum())
    means, variance = np.zeros(0), 0.0
    for client, rows in enumerate(clients):
        each = row_moments(rows.astype(np.float64), feature_names)
        sums = (each.sum(axis=0) if weights is None else weights[client] @ each) / slots[client]
        sigma = noise_multiplier * bound / slots[client]
        noised = sums + sigma * np.random.default_rng([seed, STREAM, client]).standard_normal(len(sums))
        share = slots[client] / total
        means = share * noised + (means if len(means) else 0.0)
        variance += (share * sigma) ** 2
    return Moments(means, variance**0.5)


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
