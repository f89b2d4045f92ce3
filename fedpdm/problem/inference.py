r"""Intervals for the coefficients of a linear model, from sums over rows: Newton steps and a sandwich.

At a model x (the result of a training) let g be the mean gradient of the data part, H its curvature, and S the variance of g.
The estimate is $\hat\theta = x - H^{-1} g$, with the variance $H^{-1} S H^{-1}$. Where training has reached the optimum of a
problem without penalty, g is 0 and the estimate is the model itself. Where a penalty shrinks coefficients, Newton steps take
the shrinkage off again; coefficients that are zero are left out, as if their absence were known beforehand.

Rows, not models, are behind g, H and S, so exact ones are for runs without privacy; `fedpdm.privacy.interval_release` has
noised ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import stdtr, stdtrit

from fedpdm.errors import ConfigError
from fedpdm.problem.losses import Loss

__all__ = [
    "CLOSE",
    "FLAT",
    "MOST_STEPS",
    "MOST_WORK",
    "Intervals",
    "CurvatureSums",
    "contrast",
    "exact_intervals",
    "from_sums",
    "independent",
    "inverse_of",
]

FLAT = 1e-9  # of the largest curvature: a direction with less is not told by the rows
MIXED = 1e-6  # share of a coefficient in such directions beyond which it has no interval
MOST_WORK, MOST_STEPS = 2e10, 30  # rows times features squared; Newton steps
CLOSE = 1e-9  # of a Newton step, in units of the largest coefficient: the optimum is reached


class CurvatureSums(NamedTuple):
    """The sums behind an interval, for the p features of a model with one score.

    Attributes
    ----------
    gradient, curvature : ndarray
        [p] and [p, p], means over rows.
    variance : ndarray
        [p, p] of the gradient.
    freedom : float
        Degrees of freedom of that variance.
    flat : float
        Curvature below which a direction is not told from none.
    """

    gradient: np.ndarray
    curvature: np.ndarray
    variance: np.ndarray
    freedom: float
    flat: float


class Intervals(NamedTuple):
    """Estimates with standard errors.

    Attributes
    ----------
    estimate : ndarray
        [p]; NaN where the rows do not tell a coefficient, 0 where a penalty or another column left it out.
    covariance : ndarray
        [p, p]; NaN in rows and columns of both.
    freedom : float
        Degrees of freedom of Student's t.

    Examples
    --------
    >>> found = Intervals(np.array([1.0]), np.array([[0.25]]), 30.0)
    >>> [round(float(end[0]), 3) for end in found.ends(0.95)], round(float(found.p_values()[0]), 4)
    ([-0.021, 2.021], 0.0546)
    """

    estimate: np.ndarray
    covariance: np.ndarray
    freedom: float

    @property
    def errors(self) -> np.ndarray:
        """[p] standard errors."""
        return np.sqrt(np.diag(self.covariance))

    def ends(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper end of every interval."""
        reach = stdtrit(self.freedom, (1 + level) / 2) * self.errors
        return self.estimate - reach, self.estimate + reach

    def p_values(self) -> np.ndarray:
        """The chance of an estimate as far from 0 if the coefficient were 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return 2 * stdtr(self.freedom, -np.abs(self.estimate) / self.errors)


def contrast(model: np.ndarray) -> np.ndarray:
    """Return the coefficients of the one score of a model: its row, or the difference of two classes' rows.

    Parameters
    ----------
    model : ndarray
        [m, p], m at most 2.

    Returns
    -------
    ndarray
        [p].
    """
    if len(model) > 2:
        raise ConfigError(f"Intervals are for a number or two classes, and this model has {len(model)}: leave them out.")
    return np.asarray(model[-1] - model[0] if len(model) == 2 else model[0], np.float64)


def exact_intervals(loss: Loss, model: np.ndarray, features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> Intervals:
    r"""The intervals of the unpenalised model on the columns that are not zero and not determined by others, in float64.

    Newton steps lead from the model to the optimum without penalty. The variance of the gradient there is
    $\sum_j w_j^2\, g_j g_j^\top \cdot n/(n - p)$: that of heteroscedasticity (HC1).

    Parameters
    ----------
    loss : Loss
        The loss, not clipped.
    model : ndarray
        [m, p] the trained model.
    features, labels, weights : ndarray
        [rows, p], [rows] and [rows]; weights add up to 1.

    Returns
    -------
    Intervals
        Of the p coefficients.
    """
    p, rows = model.shape[1], len(labels)
    if rows * p**2 > MOST_WORK:
        raise ConfigError(f"{rows} rows of {p} features are too many for intervals: set metrics.intervals=false.")
    start, every = contrast(model), features.astype(np.float64)
    chosen = independent(every.T @ (weights[:, None] * every), np.flatnonzero(start))
    a, room = every[:, chosen], max(rows - len(chosen), 1)
    u = np.linalg.lstsq(a, every @ start, rcond=None)[0]
    for _ in range(MOST_STEPS):
        slopes, curves = _of_scores(loss, len(model) == 2, a @ u, labels)
        counted, curvature = a * (weights * slopes)[:, None], (a * (weights * curves)[:, None]).T @ a
        flat = FLAT * float(np.trace(curvature))
        step = inverse_of(curvature, flat)[0] @ counted.sum(axis=0)
        if np.abs(step).max(initial=0) <= CLOSE * (1 + np.abs(u).max(initial=0)):
            break
        u = u - step
    else:
        raise ConfigError(f"The model without penalty is not found in {MOST_STEPS} Newton steps: there are no intervals.")
    sums = CurvatureSums(counted.sum(axis=0), curvature, rows / room * counted.T @ counted, float(room), flat)
    found = from_sums(np.where(u == 0, np.finfo(float).tiny, u), sums)
    estimate, covariance = np.zeros(p), np.full((p, p), np.nan)
    estimate[chosen], covariance[np.ix_(chosen, chosen)] = found.estimate, found.covariance
    return Intervals(estimate, covariance, found.freedom)


def _of_scores(loss: Loss, two: bool, scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope and curvature of every row's loss in its score: that of a model of one feature that is 1."""

    def value(s: jax.Array, y: jax.Array) -> jax.Array:
        model = jnp.stack([jnp.zeros_like(s), s])[:, None] if two else s[None, None]
        return loss.values(model, jnp.ones((1, 1), s.dtype), y[None])[0]

    with jax.enable_x64(True):
        slope = jax.grad(value)
        both = jax.vmap(lambda s, y: (slope(s, y), jax.grad(slope)(s, y)))(jnp.asarray(scores), jnp.asarray(labels))
    return np.asarray(both[0]), np.asarray(both[1])


def independent(products: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Leave out columns that the earlier ones determine; the last candidate, which is the bias if there is one, comes first.

    So of the levels of a word that are all there beside a bias, the last one is the baseline.

    Parameters
    ----------
    products : ndarray
        [p, p] sums of products of the columns.
    candidates : ndarray
        The columns to choose from.

    Returns
    -------
    ndarray
        The chosen columns, in order.
    """
    from scipy.linalg import solve_triangular  # slow to import, and rarely needed

    chosen: list[int] = []
    factor = np.zeros((0, 0))
    for column in [*candidates[-1:].tolist(), *candidates[:-1].tolist()]:
        part = solve_triangular(factor, products[chosen, column], lower=True) if chosen else np.zeros(0)
        left = products[column, column] - part @ part
        if left > FLAT * products[column, column]:
            size = len(chosen)
            factor = np.block([[factor, np.zeros((size, 1))], [part[None], np.array([[left**0.5]])]])
            chosen.append(column)
    return np.sort(np.array(chosen, int))


def inverse_of(curvature: np.ndarray, flat: float) -> tuple[np.ndarray, np.ndarray]:
    """Invert a curvature in the directions in which it is above `flat`.

    Parameters
    ----------
    curvature : ndarray
        [p, p] symmetric.
    flat : float
        The limit.

    Returns
    -------
    ndarray, ndarray
        [p, p] the inverse; [p] each coefficient's share in the other directions.
    """
    values, directions = np.linalg.eigh((curvature + curvature.T) / 2)
    told = values > flat
    return (directions[:, told] / values[told]) @ directions[:, told].T, (directions[:, ~told] ** 2).sum(axis=1)


def from_sums(coefficients: np.ndarray, sums: CurvatureSums, mixed: float = MIXED) -> Intervals:
    """The intervals around one Newton step from the coefficients [p]; zeros among them are taken for known.

    Parameters
    ----------
    coefficients : ndarray
        [p] of the trained model.
    sums : CurvatureSums
        What the rows say at that model.
    mixed : float
        A coefficient with a larger share in directions that the rows do not tell has no interval.

    Returns
    -------
    Intervals
        Of the p coefficients.
    """
    chosen = np.flatnonzero(coefficients)
    block = np.ix_(chosen, chosen)
    inverse, share = inverse_of(sums.curvature[block], sums.flat)
    known = share <= mixed
    estimate, covariance = np.zeros(len(coefficients)), np.full(sums.curvature.shape, np.nan)
    step = coefficients[chosen] - inverse @ sums.gradient[chosen]
    estimate[chosen] = np.where(known, step, np.nan)
    spread = inverse @ sums.variance[block] @ inverse
    covariance[block] = np.where(known[:, None] & known, spread, np.nan)
    return Intervals(estimate, covariance, sums.freedom)
