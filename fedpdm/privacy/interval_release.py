r"""What intervals need of private rows: every client's mean gradient and curvature at the trained model, as one noised release.

The variance of the mean gradient comes from the spread of the released gradients between clients. So it holds the sampling
error of the rows, the differences between clients and the noise of the release, and uses nothing else of the rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.errors import ConfigError
from fedpdm.problem.inference import Sums, contrast, inverse_of
from fedpdm.problem.losses import Loss

__all__ = ["LEAST_CLIENTS", "Bounds", "bounds_of", "release_sums", "row_terms"]

STREAM = 0x4956  # tells this noise from that of rounds
CLEAR = 2.0  # a curvature is told from noise that is below it by this factor
LEAST_CLIENTS = 3


class Bounds(NamedTuple):
    """What bounds one row: |slope| <= slope, 0 <= curvature <= curvature, ||a|| <= radius; all public."""

    slope: float
    curvature: float
    radius: float

    @property
    def balance(self) -> float:
        """What curvatures are multiplied by, so that both parts of the release have the same sensitivity."""
        return self.slope / (self.curvature * self.radius)

    @property
    def sensitivity(self) -> float:
        """Times 1/n: how far one row moves a client's gradient and balanced curvature together."""
        return 2**0.5 * self.slope * self.radius


def bounds_of(loss: Loss, radius: float) -> Bounds:
    """The bounds of a clipped loss of one score; with two classes the score is the difference of theirs.

    Parameters
    ----------
    loss : Loss
        The clipped loss.
    radius : float
        Bound on the norm of a row.

    Returns
    -------
    Bounds
        The bounds.
    """
    two = loss.target == "classes"
    slope, curvature = loss.gradient_bound(1.0), loss.smoothness(1.0)
    if loss.slopes is None or not np.isfinite(slope) or not np.isfinite(curvature):
        raise ConfigError(f"Intervals with privacy need a linear model with bounded slopes, which {loss.name!r} is not.")
    return Bounds(slope / 2**0.5, curvature / 2, radius) if two else Bounds(slope, curvature, radius)


def row_terms(
    loss: Loss, model: np.ndarray, features: np.ndarray, labels: np.ndarray, bounds: Bounds
) -> tuple[np.ndarray, np.ndarray]:
    """The slope and the curvature of every row's loss in its score, cut to their bounds, whatever the loss gives.

    Parameters
    ----------
    loss, model
        The loss, and the model [m, p] at which it is looked at.
    features, labels : ndarray
        [rows, p] and [rows].
    bounds : Bounds
        What bounds one row.

    Returns
    -------
    tuple of ndarray
        [rows] slopes and curvatures.
    """
    assert loss.slopes is not None, "checked before"
    slopes, two = loss.slopes, len(model) == 2
    scores = features.astype(np.float64) @ contrast(model)

    def slope(s: jax.Array) -> jax.Array:
        both = jnp.stack([jnp.zeros_like(s), s]) if two else s[None]
        return slopes(both, jnp.asarray(labels), jnp.ones(len(labels)))[-1]

    with jax.enable_x64(True):
        first, second = jax.jvp(slope, (jnp.asarray(scores),), (jnp.ones(len(scores)),))
    return (
        np.clip(np.nan_to_num(np.asarray(first)), -bounds.slope, bounds.slope),
        np.clip(np.nan_to_num(np.asarray(second)), 0.0, bounds.curvature),
    )


def release_sums(
    loss: Loss,
    model: np.ndarray,
    clients: Sequence[tuple[np.ndarray, np.ndarray]],
    slots: np.ndarray,
    shares: np.ndarray,
    radius: float,
    noise_multiplier: float,
    seed: int,
    weights: Sequence[np.ndarray] | None = None,
) -> Sums:
    """Every client's gradient and curvature with Gaussian noise, put together by the clients' shares of the objective.

    Formal guarantee
    ----------------
    Relation: add/remove one row of one client, or all rows of one person, where rows are weighted so (`weights`); adversary:
    all who see the release, also the server. A row moves its client's gradient by at most G R/n and its curvature by at
    most M R^2/n in the Frobenius norm (`Bounds`), so gradient and balanced curvature together by at most sqrt(2) G R/n. The
    noise has the standard deviation z sqrt(2) G R/n in every coordinate of that vector (an entry off the diagonal counts
    sqrt(2) times, so that distances are those of Frobenius): 1/z-GDP. All else is post-processing. Proof:
    docs/privacy/proofs.md. Assumes exact arithmetic and true Gaussian noise; this one is pseudo-random, for simulation.

    Parameters
    ----------
    loss, model
        The clipped loss, and the released model [m, p] at which it is looked at.
    clients : sequence of (features, labels)
        Every client's rows, of norm at most `radius`.
    slots, shares : ndarray
        [clients] the public number of units that a client's sums are divided by, and its share of the objective.
    radius : float
        Bound on the norm of a row.
    noise_multiplier, seed
        z, and the seed of the simulated noise.
    weights : sequence of ndarray, optional
        What each client's rows count: 1/m for the m rows of a person.

    Returns
    -------
    Sums
        What an interval needs.
    """
    if len(clients) < LEAST_CLIENTS:
        raise ConfigError(f"Intervals with privacy come from the spread between clients: {len(clients)} are too few.")
    bounds, p = bounds_of(loss, radius), model.shape[1]
    omega = np.asarray(shares, np.float64) / np.sum(shares)
    ends = np.cumsum([len(labels) for _, labels in clients])[:-1]
    features, labels = (np.concatenate(part) for part in zip(*clients, strict=True))
    terms = row_terms(loss, model, features, labels, bounds)
    slopes, curves = (np.split(part, ends) for part in terms)
    gradients, curvature, noise = np.zeros((len(clients), p)), np.zeros((p, p)), 0.0
    for i, (own_features, own_labels) in enumerate(clients):
        rows, each = (
            own_features.astype(np.float64),
            (np.ones(len(own_labels)) if weights is None else weights[i]) / float(slots[i]),
        )
        random, sigma = np.random.default_rng([seed, STREAM, i]), noise_multiplier * bounds.sensitivity / float(slots[i])
        gradients[i] = (each * slopes[i]) @ rows + sigma * random.standard_normal(p)
        square = random.standard_normal((p, p))
        own = (rows * (each * curves[i])[:, None]).T @ rows
        curvature += omega[i] * (own + sigma / bounds.balance * (square + square.T) / 2)
        noise += (omega[i] * sigma / bounds.balance) ** 2
    return _sums(gradients, omega, curvature, noise**0.5)


def _sums(gradients: np.ndarray, omega: np.ndarray, curvature: np.ndarray, noise: float) -> Sums:
    """Put released parts together. Noise in the curvature moves the Newton step, which adds to the variance.

    A diagonal entry of the curvature has noise of standard deviation s = `noise`, an entry beside it s/sqrt(2). With E this
    noise and d the step, E d has the covariance s^2/2 (|d|^2 I + d d').
    """
    p, together = len(curvature), float((omega**2).sum())
    mean = omega @ gradients
    apart = omega[:, None] * (gradients - mean)
    variance = apart.T @ apart / (1 - together)
    flat = CLEAR * noise * (2 * p) ** 0.5  # the largest eigenvalue of the noise is about s sqrt(2 p)
    step = inverse_of(curvature, flat)[0] @ mean
    variance += noise**2 / 2 * (step @ step * np.eye(p) + np.outer(step, step))
    return Sums(mean, curvature, variance, 1 / together - 1, flat)
