"""A node's part in intervals: its mean gradient and curvature at the released model, as one vector with exact noise."""

from collections.abc import Callable, Sequence

import numpy as np

from fedpdm.privacy.interval_release import Bounds, bounds_of, row_terms, sums_of
from fedpdm.privacy.noise import mean_noise
from fedpdm.problem.inference import CurvatureSums
from fedpdm.problem.losses import Loss

__all__ = ["combine_curvature", "curvature_size", "curvature_vector", "secure_curvature"]


def curvature_size(features: int) -> int:
    """How many numbers the vector has.

    Parameters
    ----------
    features : int
        p, the features of the model.

    Returns
    -------
    int
        p for the gradient, p(p + 1)/2 for the curvature.

    >>> curvature_size(3)
    9
    """
    return features + features * (features + 1) // 2


def curvature_vector(
    loss: Loss,
    model: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    slots: int,
    bounds: Bounds,
) -> np.ndarray:
    """The mean gradient, and the upper half of the balanced curvature, whose entries beside the diagonal count sqrt(2) times.

    Parameters
    ----------
    loss, model
        The clipped loss, and the model [m, p].
    features, labels, weights : ndarray
        [places, p] of norm at most the bounds' radius, [places], and what each row counts: 0 for an empty place.
    slots : int
        The public number that sums are divided by.
    bounds : Bounds
        What bounds one row.

    Returns
    -------
    ndarray
        The vector.
    """
    slopes, curves = row_terms(loss, model, features, labels, bounds)
    rows, each = features.astype(np.float64), weights.astype(np.float64) / slots
    gradient = (each * slopes) @ rows
    curvature = bounds.balance * (rows * (each * curves)[:, None]).T @ rows
    above, across = np.triu_indices(rows.shape[1])
    return np.concatenate([gradient, curvature[above, across] * np.where(above == across, 1.0, 2**0.5)])


def secure_curvature(
    loss: Loss,
    model: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    slots: int,
    radius: float,
    noise_multiplier: float,
    spend: Callable[[float, float], None],
) -> np.ndarray:
    r"""Release `curvature_vector` with exact noise; `spend(sensitivity, sigma)` is called before it is drawn.

    Parameters
    ----------
    loss, model
        As in `curvature_vector`.
    rows : tuple of ndarray
        Features, labels and weights of all places of this client.
    slots, radius
        The public number of units, and the bound on a row's norm.
    noise_multiplier, spend
        Noise over sensitivity; and the function that records the release, or raises.

    Returns
    -------
    ndarray
        The noised vector.

    Formal guarantee
    ----------------
    Unit: one row, or one person or subject whose weights add up to 1 at most; relation: add/remove; adversary: anyone who sees
    the message, for any model that the server sends. A Gaussian release with multiplier `noise_multiplier` (Theorem G of
    docs/privacy/proofs.md). In float64 a sum over k places has a relative error of at most $\gamma_{k+12}$ in each coordinate,
    and the norms of all terms add up to $\sqrt2\,GR$ at most, so $2\gamma_{k+12}\sqrt2\,GR$ is added to the sensitivity.
    """
    bounds = bounds_of(loss, radius)
    size = curvature_size(model.shape[1])
    gaussian, sensitivity, sigma = mean_noise(bounds.sensitivity, slots, len(rows[1]), size, noise_multiplier)
    sums = gaussian.within(curvature_vector(loss, model, *rows, slots, bounds))
    spend(sensitivity, gaussian.noise_multiplier(sigma, sensitivity, size) * sensitivity)
    return gaussian.release(sums, sigma)


def combine_curvature(
    released: Sequence[np.ndarray], slots: np.ndarray, shares: np.ndarray, bounds: Bounds, noise_multiplier: float
) -> CurvatureSums:
    """Put the clients' released vectors together by their shares of the objective: post-processing.

    Parameters
    ----------
    released : sequence of ndarray
        The vectors.
    slots, shares : ndarray
        [clients] public slots, and shares of the objective.
    bounds : Bounds
        What bounds one row.
    noise_multiplier : float
        z of every release.

    Returns
    -------
    CurvatureSums
        What an interval needs.
    """
    size = next(p for p in range(len(released[0]) + 1) if curvature_size(p) == len(released[0]))
    omega = np.asarray(shares, np.float64) / np.sum(shares)
    vectors = np.stack(released)
    half = omega @ vectors[:, size:] / bounds.balance
    above, across = np.triu_indices(size)
    curvature = np.zeros((size, size))
    curvature[above, across] = half / np.where(above == across, 1.0, 2**0.5)
    curvature = curvature + np.triu(curvature, 1).T
    sigma = noise_multiplier * bounds.sensitivity / np.asarray(slots, np.float64) / bounds.balance
    noise = float(np.sqrt(((omega * sigma) ** 2).sum()))
    return sums_of(vectors[:, :size], omega, curvature, noise, bounds)
