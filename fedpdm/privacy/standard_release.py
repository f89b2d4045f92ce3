"""Means and deviations of private features: one noised release of every client before training."""

from collections.abc import Sequence

import numpy as np

from fedpdm.data.standard import Standard
from fedpdm.privacy.first_release import FirstRelease, Moments, simulated_release

__all__ = ["Moments", "columns_of", "row_moments", "moments_sensitivity", "moment_count", "client_moments", "means_release"]
__all__ += ["release_moments", "standard_from", "standardised_rows"]

LEAST_DEVIATION = 0.03  # of features in [0, 1]: rarer indicators and flatter numbers are not stretched further
BIAS = 0.4  # of the constant feature beside rows that are cut to norm sqrt(1 - 0.4^2)


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


def means_release(feature_names: Sequence[str], shrink: float = 1.0) -> FirstRelease:
    """Describe the release of means and deviations.

    Parameters
    ----------
    feature_names : sequence of str
        The names after encoding.
    shrink : float
        `Standard.shrink` of the map.

    Returns
    -------
    FirstRelease
        The release; the means and their noise travel, and clients compute centres and scales from them.
    """
    count = moment_count(feature_names)
    return FirstRelease(
        what="means and deviations",
        bound=moments_sensitivity(feature_names),
        size=count,
        mean=lambda rows, slots, weights: client_moments(rows, feature_names, slots, weights),
        map_of=lambda moments: standard_from(moments, feature_names)._replace(shrink=shrink),
        sent=lambda moments: np.append(moments.means, moments.noise),
        read=lambda values: standard_from(Moments(values[:-1], min(abs(float(values[-1])), 1.0)), feature_names)._replace(
            shrink=shrink
        ),
        sent_size=count + 1,
    )


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
        The mean of the clients' means, weighted by precision.

    Formal guarantee
    ----------------
    Relation: add/remove one row of one client, or all rows of one person if `weights` are given; adversary: anyone who sees
    the released means, the server included. A row moves its client's mean by at most s/n, s = `moments_sensitivity`, because
    features are in [0, 1] and a word has one indicator that is not 0. All rows of a person together do not move it further,
    as their weights add up to 1. The noise has the standard deviation z s/n, so the release of a client is 1/z-GDP. Everything
    computed from it (centres, scales, features) is post-processing. Proof: docs/privacy/proofs.md. Assumes exact arithmetic
    and true Gaussian noise; this one is pseudo-random, for simulation. A real client uses `first_release.secure_mean`.
    """
    return simulated_release(means_release(feature_names), clients, slots, noise_multiplier, seed, weights)


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
