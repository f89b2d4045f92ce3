"""The slope of a loss, and the move of one row of the model in a local step."""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import numpy as np
from numba import njit

from fedpdm.native.bridge import floats_at
from fedpdm.native.vectors import FAST

__all__ = ["drift", "logistic_slope", "move"]


@njit(error_model="numpy")
def logistic_slope(clip: np.float32, score: np.float32) -> np.float32:
    """Compute the derivative of the logistic loss in the score of the true class.

    Parameters
    ----------
    clip : float32
        Its largest size.
    score : float32
        The score.

    Returns
    -------
    float32
        The derivative; it is negative.
    """
    one = np.float32(1.0)
    return -min(one / (one + np.exp(score)), clip)


@njit(error_model="numpy")
def _sign(x: np.float32) -> np.float32:
    return np.float32(x > 0) - np.float32(x < 0)


@njit(fastmath=FAST, error_model="numpy")
def drift(
    n: int, at_x: int, at_fixed: int, step_size: np.float32, weight: np.float32, beta: np.float32, lasso: np.float32
) -> None:
    """Compute x - eta (fixed + w x + beta grad of x^2 / (1 + x^2) + lasso sign(x)), in place.

    Parameters
    ----------
    n : int
        Length of the row.
    at_x : int
        Address of the row, which changes.
    at_fixed : int
        Address of the part of the direction that is the same in all steps.
    step_size, weight, beta, lasso : float32
        The numbers eta, w, beta and the strength of an L1 penalty.
    """
    x, fixed = floats_at(at_x, (n,)), floats_at(at_fixed, (n,))
    if beta == 0 and lasso == 0:
        for i in range(n):
            x[i] -= step_size * (fixed[i] + weight * x[i])
        return
    if lasso == 0:
        for i in range(n):
            bend = np.float32(1.0) + x[i] * x[i]
            x[i] -= step_size * (fixed[i] + weight * x[i] + beta * np.float32(2.0) * x[i] / (bend * bend))
        return
    for i in range(n):
        bend = np.float32(1.0) + x[i] * x[i]
        pull = lasso * _sign(x[i]) + beta * np.float32(2.0) * x[i] / (bend * bend)
        x[i] -= step_size * (fixed[i] + weight * x[i] + pull)


@njit(fastmath=FAST, error_model="numpy")
def move(
    n: int,
    at_x: int,
    factor: np.float32,
    at_data: int,
    at_fixed: int,
    step_size: np.float32,
    weight: np.float32,
    beta: np.float32,
    lasso: np.float32,
) -> np.float32:
    """Do the same with the gradient of the data's losses in the direction.

    Parameters
    ----------
    n : int
        Length of the row.
    at_x : int
        Address of the row, which changes.
    factor : float32
        What the gradient is multiplied by.
    at_data : int
        Address of the gradient.
    at_fixed : int
        Address of the part of the direction that is the same in all steps.
    step_size, weight, beta, lasso : float32
        As in `drift`.

    Returns
    -------
    float32
        The squared norm of the direction.
    """
    x, data, fixed = floats_at(at_x, (n,)), floats_at(at_data, (n,)), floats_at(at_fixed, (n,))
    norm = np.float32(0.0)
    if beta == 0 and lasso == 0:
        for i in range(n):
            way = factor * data[i] + fixed[i] + weight * x[i]
            norm += way * way
            x[i] -= step_size * way
        return norm
    for i in range(n):
        bend = np.float32(1.0) + x[i] * x[i]
        pull = beta * np.float32(2.0) * x[i] / (bend * bend)
        if lasso != 0:
            pull += lasso * _sign(x[i])
        way = factor * data[i] + fixed[i] + weight * x[i] + pull
        norm += way * way
        x[i] -= step_size * way
    return norm
