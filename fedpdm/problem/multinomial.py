r"""Intervals of a logistic model of several classes: the coefficients of every class against the first one.

The scores of class k against class 0 are $u_k \cdot a$. With the probabilities p of a row and its class y, the gradient of its
loss in $u_k$ is $(p_k - 1[y = k])\,a$, and the curvature between $u_k$ and $u_l$ is $p_k(1[k = l] - p_l)\,aa^\top$. The rest is
that of `fedpdm.problem.inference`: Newton steps to the optimum without penalty, and a sandwich (HC1).
"""

import numpy as np
from scipy.special import softmax

from fedpdm.errors import ConfigError
from fedpdm.problem.inference import (
    CLOSE,
    FLAT,
    MOST_STEPS,
    MOST_WORK,
    CurvatureSums,
    Intervals,
    from_sums,
    independent,
    inverse_of,
)

__all__ = ["multinomial_intervals"]


def multinomial_intervals(model: np.ndarray, features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> Intervals:
    """The intervals of the unpenalised model on the columns that some class uses and that others do not determine.

    Parameters
    ----------
    model : ndarray
        [m, p] the trained model.
    features, labels, weights : ndarray
        [rows, p], [rows] classes and [rows]; weights add up to 1.

    Returns
    -------
    Intervals
        Of the (m - 1) p coefficients: those of class 1 against class 0, then those of class 2, and so on.
    """
    (classes, p), rows = model.shape, len(labels)
    if rows * ((classes - 1) * p) ** 2 > MOST_WORK:
        raise ConfigError(f"{rows} rows of {p} features and {classes} classes are too many: set metrics.intervals=false.")
    every = features.astype(np.float64)
    start = np.asarray(model[1:] - model[:1], np.float64)
    chosen = independent(every.T @ (weights[:, None] * every), np.flatnonzero(np.abs(start).max(axis=0)))
    a = every[:, chosen]
    u = np.linalg.lstsq(a, every @ start.T, rcond=None)[0].T
    hit = labels[:, None] == np.arange(1, classes)
    for _ in range(MOST_STEPS):
        shares = softmax(np.column_stack([np.zeros(rows), a @ u.T]), axis=1)[:, 1:]
        each = ((shares - hit)[:, :, None] * a[:, None, :]).reshape(rows, -1) * weights[:, None]
        curvature = _curvature(a, shares, weights)
        flat = FLAT * float(np.trace(curvature))
        step = inverse_of(curvature, flat)[0] @ each.sum(axis=0)
        if np.abs(step).max(initial=0) <= CLOSE * (1 + np.abs(u).max(initial=0)):
            break
        u = u - step.reshape(u.shape)
    else:
        raise ConfigError(f"The model without penalty is not found in {MOST_STEPS} Newton steps: there are no intervals.")
    room = max(rows - u.size, 1)
    sums = CurvatureSums(each.sum(axis=0), curvature, rows / room * each.T @ each, float(room), flat)
    found = from_sums(np.where(u == 0, np.finfo(float).tiny, u).ravel(), sums)
    places = (np.arange(classes - 1)[:, None] * p + chosen).ravel()
    estimate, covariance = np.zeros((classes - 1) * p), np.full(((classes - 1) * p,) * 2, np.nan)
    estimate[places], covariance[np.ix_(places, places)] = found.estimate, found.covariance
    return Intervals(estimate, covariance, found.freedom)


def _curvature(a: np.ndarray, shares: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The curvature in blocks of classes."""
    others, size = shares.shape[1], a.shape[1]
    found = np.zeros((others, size, others, size))
    for k in range(others):
        for other in range(k, others):
            each = weights * shares[:, k] * ((k == other) - shares[:, other])
            found[k, :, other] = found[other, :, k] = (a * each[:, None]).T @ a
    return found.reshape(others * size, others * size)
