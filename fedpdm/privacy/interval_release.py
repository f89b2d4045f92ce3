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
from fedpdm.problem.inference import CurvatureSums, contrast, inverse_of
from fedpdm.problem.losses import Loss

__all__ = ["LEAST_CLIENTS", "Bounds", "bounds_of", "release_sums", "require_close", "row_terms", "sums_of", "too_few"]

STREAM = 0x4956  # tells this noise from that of rounds
CLEAR = 2.0  # a curvature is told from noise that is below it by this factor
LEAST_CLIENTS = 3
FAR = 0.25  # share of the scores' change over which a slope runs through its range, beyond which one Newton step does not lead


class Bounds(NamedTuple):
    """What bounds one row: |slope| <= slope, 0 <= curvature <= curvature, ||a|| <= radius; all public.

    With `logarithmic` a change of the score by 1 changes a curvature by its own size, as in exponential and logistic losses.
    """

    slope: float
    curvature: float
    radius: float
    logarithmic: bool = False

    @property
    def balance(self) -> float:
        """What curvatures are multiplied by, so that both parts of the release have the same sensitivity."""
        return self.slope / (self.curvature * self.radius)

    @property
    def bend(self) -> float:
        """The relative change of a curvature for a change of the score by 1."""
        return 1.0 if self.logarithmic else self.curvature / self.slope

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
    if two:
        return Bounds(slope / 2**0.5, curvature / 2, radius, logarithmic=True)
    return Bounds(slope, curvature, radius, loss.link is not None and loss.link.name == "log")


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


def require_close(sums: CurvatureSums, bounds: Bounds) -> None:
    r"""Refuse released sums of a model from which one Newton step does not lead to the optimum; they alone decide.

    The step d changes the scores of rows by $\sqrt{d^\top H d/M}$ at least, in the root mean square. A slope runs through its
    whole range G when a score changes by G/M. Where the first is a quarter of the second or more, slopes do not change
    in proportion, and the step misses. Trained models of docs/numbers.md are at 0.07 or less, unfinished ones at 0.4 or more.

    Parameters
    ----------
    sums : CurvatureSums
        What the clients released.
    bounds : Bounds
        What bounds one row.

    Raises
    ------
    ConfigError
        With the remedy.
    """
    step = inverse_of(sums.curvature, sums.flat)[0] @ sums.gradient
    moved = float(np.sqrt(max(step @ sums.curvature @ step, 0.0) / bounds.curvature)) * bounds.curvature / bounds.slope
    if moved > FAR:
        raise ConfigError(
            f"The model is too far from the optimum for intervals: one step more would change its scores by {moved:.2g} of the "
            f"range over which slopes change, and {FAR:g} is the most. Train for more rounds, or with a larger clip."
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
    cohorts: Sequence[np.ndarray] | None = None,
    honest: int = 1,
) -> CurvatureSums:
    """Every client's gradient and curvature with Gaussian noise, put together by the clients' shares of the objective.

    Formal guarantee
    ----------------
    Relation: add/remove one row of one client, or all rows of one person, where rows are weighted so (`weights`); adversary:
    all who see the release, also the server. A row moves its client's gradient by at most G R/n and its curvature by at
    most M R^2/n in the Frobenius norm (`Bounds`), so gradient and balanced curvature together by at most sqrt(2) G R/n. The
    noise has the standard deviation z sqrt(2) G R/n in every coordinate of that vector (an entry off the diagonal counts
    sqrt(2) times, so that distances are those of Frobenius): 1/z-GDP. With `cohorts` the adversary sees sums over cohorts only,
    and at least `honest` members of each add their share of the noise; a row of member i counts c_i in the sum, and every
    share has the standard deviation z sqrt(2) G R max(c)/sqrt(honest). All else is post-processing. Proof:
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
    cohorts : sequence of ndarray, optional
        The clients of every cohort, if only sums over cohorts are seen; else every client is seen by itself.
    honest : int
        H, the members of a cohort whose shares are counted.

    Returns
    -------
    CurvatureSums
        What an interval needs.
    """
    groups = [np.array([i]) for i in range(len(clients))] if cohorts is None else cohorts
    if len(groups) < LEAST_CLIENTS:
        who = "clients" if cohorts is None else "cohorts"
        raise ConfigError(f"Intervals with privacy come from the spread between {who}: {len(groups)} are too few.")
    bounds, p = bounds_of(loss, radius), model.shape[1]
    omega = np.asarray(shares, np.float64) / np.sum(shares)
    ends = np.cumsum([len(labels) for _, labels in clients])[:-1]
    features, labels = (np.concatenate(part) for part in zip(*clients, strict=True))
    slopes, curves = (np.split(part, ends) for part in row_terms(loss, model, features, labels, bounds))
    gradients, curvature, noise = np.zeros((len(groups), p)), np.zeros((p, p)), 0.0
    parts = np.array([omega[members].sum() for members in groups])
    for place, members in enumerate(groups):
        each = omega[members] / parts[place] / np.asarray(slots, np.float64)[members]  # what a row of each member counts
        for i, counts in zip(members, each, strict=True):
            rows = clients[i][0].astype(np.float64)
            counted = counts * (np.ones(len(rows)) if weights is None else weights[i])
            gradients[place] += (counted * slopes[i]) @ rows
            curvature += parts[place] * (rows * (counted * curves[i])[:, None]).T @ rows
        random = np.random.default_rng([seed, STREAM, place])
        sigma = noise_multiplier * bounds.sensitivity * float(each.max()) * (len(members) / honest) ** 0.5
        gradients[place] += sigma * random.standard_normal(p)
        square = random.standard_normal((p, p))
        curvature += parts[place] * sigma / bounds.balance * (square + square.T) / 2
        noise += (parts[place] * sigma / bounds.balance) ** 2
    return sums_of(gradients, parts, curvature, noise**0.5, bounds)


def sums_of(gradients: np.ndarray, omega: np.ndarray, curvature: np.ndarray, noise: float, bounds: Bounds) -> CurvatureSums:
    r"""Put released parts together. Two more errors add to the variance: the curvature's noise, and that of one Newton step.

    A diagonal entry of the curvature has noise of standard deviation s = `noise`, an entry beside it s/sqrt(2). With E this
    noise and d the step, E d has the covariance s^2/2 (|d|^2 I + d d').

    The step takes the curvature H for constant along d. To second order it misses by $e = \frac12 H^{-1}T$, where
    $|v \cdot T| \le b\,\delta \sqrt{d^\top H d}\sqrt{v^\top H v}$ for all v (Cauchy-Schwarz), with the relative change b of a
    curvature (`Bounds.bend`) and the largest change $\delta$ of a score. So the variance of the gradient grows by
    $\frac{b^2\delta^2}4 (d^\top H d)\,H$. Nothing released tells the largest change; its root mean square, weighted by
    curvature, is at most $R\sqrt{d^\top H d/\operatorname{tr} H}$, and this is taken for it.

    Parameters
    ----------
    gradients, omega : ndarray
        [clients, p] released gradients, and [clients] shares that add up to 1.
    curvature : ndarray
        [p, p] the mean of the released ones.
    noise : float
        Standard deviation of the noise in a diagonal entry of it.
    bounds : Bounds
        What bounds one row.

    Returns
    -------
    CurvatureSums
        What an interval needs.
    """
    p, together = len(curvature), float((omega**2).sum())
    mean = omega @ gradients
    apart = omega[:, None] * (gradients - mean)
    variance = apart.T @ apart / (1 - together)
    flat = CLEAR * noise * (2 * p) ** 0.5  # the largest eigenvalue of the noise is about s sqrt(2 p)
    step = inverse_of(curvature, flat)[0] @ mean
    variance += noise**2 / 2 * (step @ step * np.eye(p) + np.outer(step, step))
    gain, whole = max(float(step @ curvature @ step), 0.0), float(np.trace(curvature))
    if whole > 0:
        variance += (bounds.bend * bounds.radius * gain) ** 2 / (4 * whole) * curvature
    return CurvatureSums(mean, curvature, variance, 1 / together - 1, flat)


def too_few(sums: CurvatureSums, mixed: float) -> np.ndarray:
    r"""How many times as many rows would tell each coefficient from the noise.

    A coefficient is told by the directions that hold all of it but a share `mixed`. With t times as many rows at every client
    the noise of the mean curvature is t times smaller, so the weakest of these directions, of curvature c, is told from
    t = `flat`/c on. A curvature within the noise says nothing but that t is at least 2.

    Parameters
    ----------
    sums : CurvatureSums
        What the clients released.
    mixed : float
        As in `fedpdm.problem.inference.from_sums`.

    Returns
    -------
    ndarray
        [p] t, at most 1 where a coefficient is told; infinite: the noise hides how many.

    Examples
    --------
    >>> sums = CurvatureSums(np.zeros(3), np.diag([4.0, 0.8, 0.1]), np.eye(3), 9.0, 1.0)
    >>> too_few(sums, 0.01).tolist()
    [0.25, 1.25, inf]
    """
    values, directions = np.linalg.eigh((sums.curvature + sums.curvature.T) / 2)
    left = 1 - np.cumsum(directions[:, ::-1] ** 2, axis=1)  # of each coefficient, after the strongest directions
    weakest = values[::-1][np.argmax(left <= mixed + 1e-12, axis=1)]
    hidden = weakest <= sums.flat / CLEAR
    return np.where(hidden, np.inf, sums.flat / np.where(hidden, 1.0, weakest))
