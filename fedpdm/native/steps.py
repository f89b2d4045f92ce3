"""All local steps of one client with a linear model, in place.

The gradient of an example's logistic loss touches only one row of the model, that of the true class. So, unless something is
measured over all rows of the model, each of them takes all of its steps before the next one begins, and stays in the nearest
cache meanwhile. Examples are fetched from memory a few of them ahead: their order is random, but known.
"""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import math

import numpy as np
from numba import njit

from fedpdm.native.moves import drift, logistic_slope, move
from fedpdm.native.two_classes import NARROW, two_class_steps
from fedpdm.native.vectors import add, add_two, address, announce, dot, dot_two, put, put_two, row_at

__all__ = ["KINDS", "client_steps"]

LOGISTIC, SOFTMAX = 0, 1
KINDS = {"logistic": LOGISTIC, "softmax": SOFTMAX}
AHEAD = 8  # examples that are on their way from memory
NOTHING = 0  # where a row of a gradient is that is zero


@njit(error_model="numpy")
def _softmax_slopes(clip: np.float32, x: np.ndarray, example: int, label: int, slopes: np.ndarray) -> None:
    """Derivatives of the loss of the example at this address in its scores."""
    largest, total, gap = np.float32(-np.inf), np.float32(0.0), np.float32(0.0)
    at_x, n = address(x), x.shape[1]
    for k in range(x.shape[0]):
        slopes[k] = dot(n, row_at(at_x, n, k), example)
        largest = max(largest, slopes[k])
    for k in range(x.shape[0]):
        slopes[k] = np.exp(slopes[k] - largest)
        total += slopes[k]
    for k in range(x.shape[0]):
        slopes[k] /= total
        gap += slopes[k] if k != label else np.float32(0.0)
    factor = clip / gap if gap > clip else np.float32(1.0)
    for k in range(x.shape[0]):
        slopes[k] *= factor
    slopes[label] = -gap * factor


@njit(error_model="numpy")
def _softmax_gradient(
    clip: np.float32,
    x: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    coming: np.ndarray,
    data: np.ndarray,
    source: np.ndarray,
    times: np.ndarray,
) -> np.float32:
    """As `_logistic_gradient`, for the softmax loss: all rows are in `data`."""
    share, slopes, total = np.float32(1.0) / np.float32(len(rows)), np.empty(len(x), np.float32), np.float32(0.0)
    at_features, at_data, n = address(features), address(data), x.shape[1]
    for j in range(len(rows)):
        example = row_at(at_features, n, rows[j])
        if j < len(coming):
            announce(n, row_at(at_features, n, coming[j]))
        _softmax_slopes(clip, x, example, labels[rows[j]], slopes)
        for k in range(len(x)):
            if j == 0:
                put(n, row_at(at_data, n, k), share * slopes[k], example)
            else:
                add(n, row_at(at_data, n, k), share * slopes[k], example)
    for k in range(len(x)):
        source[k], times[k] = row_at(at_data, n, k), np.float32(1.0)
        total += dot(n, source[k], source[k])
    return math.sqrt(total)


@njit(error_model="numpy")
def _logistic_gradient(
    clip: np.float32,
    x: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    coming: np.ndarray,
    data: np.ndarray,
    source: np.ndarray,
    times: np.ndarray,
) -> np.float32:
    """The mean gradient of the losses of a batch, whose rows are in the order of their labels; returns its norm.

    Row k of it is times[k] times the row at source[k]: a row of `data`, or, for a class with a single example, that example, so
    that nothing is copied; and zero if source[k] is NOTHING. The rows of the next batch are announced.
    """
    share, total, last = np.float32(1.0) / np.float32(len(rows)), np.float32(0.0), 0
    pulls, examples = np.empty(len(rows), np.float32), np.empty(len(rows), np.int64)
    at_features, at_data, at_x, n = address(features), address(data), address(x), x.shape[1]
    source[:] = NOTHING
    while last < len(rows):
        k, first = labels[rows[last]], last
        while last < len(rows) and labels[rows[last]] == k:
            if last < len(coming):
                announce(n, row_at(at_features, n, coming[last]))
            examples[last] = row_at(at_features, n, rows[last])
            last += 1
        j, model = first, row_at(at_x, n, k)
        while j + 2 <= last:
            pulls[j], pulls[j + 1] = dot_two(n, model, examples[j], examples[j + 1])
            j += 2
        if j < last:
            pulls[j] = dot(n, model, examples[j])
        for j in range(first, last):
            pulls[j] = share * logistic_slope(clip, pulls[j])
        if last == first + 1:
            source[k], times[k] = examples[first], pulls[first]
            total += times[k] * times[k] * dot(n, source[k], source[k])
            continue
        source[k], times[k] = row_at(at_data, n, k), np.float32(1.0)
        put_two(n, source[k], pulls[first], examples[first], pulls[first + 1], examples[first + 1])
        j = first + 2
        while j + 2 <= last:
            add_two(n, source[k], pulls[j], examples[j], pulls[j + 1], examples[j + 1])
            j += 2
        if j < last:
            add(n, source[k], pulls[j], examples[j])
        total += dot(n, source[k], source[k])
    return math.sqrt(total)


@njit(error_model="numpy")
def _by_label(labels: np.ndarray, rows: np.ndarray) -> None:
    """Sort a few rows by their labels, in place."""
    for place in range(1, len(rows)):
        row = rows[place]
        before = place - 1
        while before >= 0 and labels[rows[before]] > labels[row]:
            rows[before + 1] = rows[before]
            before -= 1
        rows[before + 1] = row


@njit(error_model="numpy")
def _by_class(labels: np.ndarray, visits: np.ndarray, starts: np.ndarray, order: np.ndarray, rows: np.ndarray) -> None:
    """Sort the numbers of the visits by the labels of the visited rows, and these rows; those of class k begin at starts[k]."""
    starts[:] = 0
    for row in visits:
        starts[labels[row] + 2] += 1
    for k in range(2, starts.shape[0]):
        starts[k] += starts[k - 1]
    for visit in range(visits.shape[0]):
        k = labels[visits[visit]] + 1
        order[starts[k]], rows[starts[k]] = visit, visits[visit]
        starts[k] += 1


@njit(error_model="numpy")
def _row_by_row(
    steps: int,
    batch: int,
    numbers: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    visits: np.ndarray,
    fixed: np.ndarray,
    x: np.ndarray,
) -> None:
    """All steps of the logistic loss, for one row of the model after the other."""
    weight, step_size, beta, clip = numbers[:4]
    lasso = numbers[6]
    share = -step_size / np.float32(batch)
    starts, order, pulls = np.empty(len(x) + 2, np.int64), np.empty(len(visits), np.int64), np.empty(batch, np.float32)
    rows = np.empty(len(visits), np.int64)
    _by_class(labels, visits, starts, order, rows)
    at_features, at_x, at_fixed, n = address(features), address(x), address(fixed), x.shape[1]
    for j in range(len(rows)):
        rows[j] = row_at(at_features, n, rows[j])
    for k in range(len(x)):
        first = last = starts[k]
        model, still = row_at(at_x, n, k), row_at(at_fixed, n, k)
        for step in range(steps):
            while last < starts[k + 1] and order[last] < (step + 1) * batch:
                if last + AHEAD < len(rows):
                    announce(n, rows[last + AHEAD])
                last += 1
            j = first
            while j + 2 <= last:
                pulls[j - first], pulls[j - first + 1] = dot_two(n, model, rows[j], rows[j + 1])
                j += 2
            if j < last:
                pulls[j - first] = dot(n, model, rows[j])
            for j in range(last - first):
                pulls[j] = share * logistic_slope(clip, pulls[j])
            drift(n, model, still, step_size, weight, beta, lasso)
            j = first
            while j + 2 <= last:
                add_two(n, model, pulls[j - first], rows[j], pulls[j - first + 1], rows[j + 1])
                j += 2
            if j < last:
                add(n, model, pulls[j - first], rows[j])
            first = last


@njit(error_model="numpy")
def _step_by_step(
    kind: int,
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
    """Steps that look at all rows of the model; returns how many there were."""
    weight, step_size, beta, loss_clip, batch_clip, tolerance, lasso = numbers
    source, times = np.empty(len(x), np.int64), np.empty(len(x), np.float32)
    gradient_of = data, source, times
    at_x, at_fixed, n = address(x), address(fixed), x.shape[1]
    for step in range(steps):
        rows, coming = visits[step * batch : (step + 1) * batch], visits[(step + 1) * batch : (step + 2) * batch]
        if kind == LOGISTIC:
            _by_label(labels, rows)
            norm = _logistic_gradient(loss_clip, x, features, labels, rows, coming, *gradient_of)
        else:
            norm = _softmax_gradient(loss_clip, x, features, labels, rows, coming, *gradient_of)
        factor = np.float32(1.0)
        if batch_clip > 0:
            factor = np.float32(min(1.0, batch_clip / (norm + 1e-30)))
            if not np.isfinite(norm):  # as in JAX: such a gradient counts as zero
                source[:] = NOTHING
        length = np.float32(0.0)
        for k in range(len(x)):
            model, still = row_at(at_x, n, k), row_at(at_fixed, n, k)
            if source[k] == NOTHING:
                length += move(n, model, np.float32(0.0), still, still, step_size, weight, beta, lasso)
            else:
                length += move(n, model, factor * times[k], source[k], still, step_size, weight, beta, lasso)
        if length <= tolerance and tolerance > 0:
            return step + 1
    return steps


@njit(error_model="numpy")
def client_steps(
    kind: int,
    steps: int,
    batch: int,
    numbers: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    order: np.ndarray,
    fixed: np.ndarray,
    x: np.ndarray,
    room: np.ndarray,
) -> int:
    """Take all steps of a client.

    Parameters
    ----------
    kind, steps, batch : int
        A value of KINDS, the largest number of steps, the examples per step.
    numbers : ndarray
        Weight, step size, beta, clip of the loss, clip of a batch, tolerance, strength of an L1 penalty by subgradient.
    features, labels : ndarray
        The client's rows.
    order : ndarray
        The order in which they are visited, again and again.
    fixed : ndarray
        [m, n] the part of the direction that is the same in all steps.
    x : ndarray
        [m, n] the model; the steps are taken in it.
    room : ndarray
        [m, n] memory for a gradient.

    Returns
    -------
    int
        The number of steps taken.
    """
    visits, place = np.empty(steps * batch, np.int64), 0
    for visit in range(visits.shape[0]):
        visits[visit] = order[place]
        place = place + 1 if place + 1 < order.shape[0] else 0
    if kind == LOGISTIC and len(x) == 2 and x.shape[1] <= NARROW:
        return two_class_steps(steps, batch, numbers, features, labels, visits, fixed, x, room)
    if kind == LOGISTIC and numbers[4] == 0 and numbers[5] == 0:
        _row_by_row(steps, batch, numbers, features, labels, visits, fixed, x)
        return steps
    return _step_by_step(kind, steps, batch, numbers, features, labels, visits, fixed, x, room)
