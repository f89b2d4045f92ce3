"""Local steps of a logistic model of two classes with short rows.

How many examples of a batch are of each class is random. A loop over the examples of a class therefore often ends where the
processor did not expect it, which costs more than a short row. Here each example is added to both classes, to one of them times
zero. Labels decide only addresses and factors, so all loops have a fixed length.
"""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import math

import numpy as np
from numba import njit

from fedpdm.native.bridge import floats_at
from fedpdm.native.groups import GROUP, add_group, dot_group
from fedpdm.native.moves import logistic_slope, move
from fedpdm.native.vectors import address, announce, dot, row_at

__all__ = ["NARROW", "two_class_steps"]

NARROW = 256  # features; above, the products with zero cost more than they save


@njit(error_model="numpy")
def two_class_steps(
    steps: int,
    batch: int,
    numbers: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    visits: np.ndarray,
    fixed: np.ndarray,
    x: np.ndarray,
    data: np.ndarray,
) -> int:
    """Take all steps of a client.

    Parameters
    ----------
    steps, batch : int
        The largest number of steps, the examples per step.
    numbers : ndarray
        Weight, step size, beta, clip of the loss, clip of a batch, tolerance, strength of an L1 penalty by subgradient.
    features, labels : ndarray
        The client's rows.
    visits : ndarray
        The numbers of the rows of all steps, one batch after the other.
    fixed : ndarray
        [2, n] the part of the direction that is the same in all steps.
    x : ndarray
        [2, n] the model; the steps are taken in it.
    data : ndarray
        [2, n] memory for a gradient.

    Returns
    -------
    int
        The number of steps taken.
    """
    weight, step_size, beta, loss_clip, batch_clip, tolerance, lasso = numbers
    n, share = features.shape[1], np.float32(1.0) / np.float32(batch)
    slots = (batch + GROUP - 1) // GROUP * GROUP  # the last ones repeat an example, times zero
    rows, models = np.empty(slots, np.int64), np.empty(slots, np.int64)
    scores, times = np.empty(slots, np.float32), np.zeros((2, slots), np.float32)
    at_features, at_x, at_data = address(features), address(x), address(data)
    at_rows, at_models, at_scores, at_times = address(rows), address(models), address(scores), address(times)
    at_fixed, at_others, at_second = address(fixed), row_at(at_times, slots, 1), row_at(at_data, n, 1)
    gradient = floats_at(at_data, (2 * n,))
    for step in range(steps):
        first = step * batch
        for j in range(slots):
            row = visits[first + min(j, batch - 1)]
            rows[j], models[j] = row_at(at_features, n, row), row_at(at_x, n, labels[row] != 0)
        for row in visits[first + batch : first + 2 * batch]:
            announce(n, row_at(at_features, n, row))
        for j in range(0, slots, GROUP):
            dot_group(n, at_models + 8 * j, at_rows + 8 * j, at_scores + 4 * j)
        for j in range(batch):
            k = np.int64(models[j] != at_x)
            times[k, j], times[1 - k, j] = share * logistic_slope(loss_clip, scores[j]), np.float32(0.0)
        gradient[:] = 0
        for j in range(0, slots, GROUP):
            add_group(n, at_data, at_second, at_times + 4 * j, at_others + 4 * j, at_rows + 8 * j)
        factor = np.float32(1.0)
        if batch_clip > 0:
            norm = math.sqrt(dot(2 * n, at_data, at_data))
            factor = np.float32(min(1.0, batch_clip / (norm + 1e-30)))
            if not np.isfinite(norm):  # as in JAX: such a gradient counts as zero
                gradient[:] = 0
        way = move(2 * n, at_x, factor, at_data, at_fixed, step_size, weight, beta, lasso)
        if way <= tolerance and tolerance > 0:
            return step + 1
    return steps
