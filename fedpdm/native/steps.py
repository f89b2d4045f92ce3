"""All local steps of one client with a linear model, in place.

The gradient of an example's logistic loss touches only one row of the model, that of the true class. So, unless something is
measured over all rows of the model, each of them takes all of its steps before the next one begins, and stays in the nearest
cache meanwhile. Examples are fetched from memory a few of them ahead: their order is random, but known.
"""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["KINDS", "client_steps"]

LOGISTIC, SOFTMAX = 0, 1
KINDS = {"logistic": LOGISTIC, "softmax": SOFTMAX}
# Sums may be taken in any order, so that they are vectorised; NaN and infinity stay what they are.
FAST = {"reassoc", "contract", "arcp", "nsz"}
AHEAD = 8  # examples that are on their way from memory
LINE = 16  # floats that memory sends at once
SUM, NOTHING = -1, -2  # where a row of a gradient is, if it is not an example


@intrinsic
def _fetch(typing_context: Any, row: Any, place: Any) -> Any:
    """Ask for the part of memory with this number of a row; nobody waits for it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(values, [args[1]]), cgutils.voidptr_t)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, word(0), word(2), word(1)])  # to read, into the second cache, data
        return context.get_dummy_value()

    return types.void(row, place), generate


@njit(error_model="numpy")
def _announce(row: np.ndarray) -> None:
    for place in range(0, row.shape[0], LINE):
        _fetch(row, place)


@njit(fastmath=FAST, error_model="numpy")
def _dot(left: np.ndarray, right: np.ndarray) -> np.float32:
    total = np.float32(0.0)
    for i in range(left.shape[0]):
        total += left[i] * right[i]
    return total


@njit(fastmath=FAST, error_model="numpy")
def _add(target: np.ndarray, factor: np.float32, values: np.ndarray) -> None:
    for i in range(target.shape[0]):
        target[i] += factor * values[i]


@njit(fastmath=FAST, error_model="numpy")
def _put(target: np.ndarray, factor: np.float32, values: np.ndarray) -> None:
    for i in range(target.shape[0]):
        target[i] = factor * values[i]


@njit(error_model="numpy")
def _logistic_slope(clip: np.float32, score: np.float32) -> np.float32:
    one = np.float32(1.0)
    return -min(one / (one + np.exp(score)), clip)


@njit(error_model="numpy")
def _softmax_slopes(clip: np.float32, x: np.ndarray, example: np.ndarray, label: int, slopes: np.ndarray) -> None:
    """Derivatives of an example's loss in its scores."""
    largest, total, gap = np.float32(-np.inf), np.float32(0.0), np.float32(0.0)
    for k in range(x.shape[0]):
        slopes[k] = _dot(x[k], example)
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
    for j in range(len(rows)):
        example = features[rows[j]]
        if j < len(coming):
            _announce(features[coming[j]])
        _softmax_slopes(clip, x, example, labels[rows[j]], slopes)
        for k in range(len(x)):
            if j == 0:
                _put(data[k], share * slopes[k], example)
            else:
                _add(data[k], share * slopes[k], example)
    for k in range(len(x)):
        source[k], times[k] = SUM, np.float32(1.0)
        total += _dot(data[k], data[k])
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

    Row k of it is times[k] times: row k of `data` if source[k] is SUM; an example if source[k] is its number, so that nothing
    is copied for a class with a single example; and zero if source[k] is NOTHING. The rows of the next batch are announced.
    """
    share, total, j = np.float32(1.0) / np.float32(len(rows)), np.float32(0.0), 0
    source[:] = NOTHING
    while j < len(rows):
        k, first = labels[rows[j]], features[rows[j]]
        if j < len(coming):
            _announce(features[coming[j]])
        source[k], times[k] = rows[j], share * _logistic_slope(clip, _dot(x[k], first))
        j += 1
        if j == len(rows) or labels[rows[j]] != k:
            total += times[k] * times[k] * _dot(first, first)
            continue
        _put(data[k], times[k], first)
        source[k], times[k] = SUM, np.float32(1.0)
        while j < len(rows) and labels[rows[j]] == k:
            example = features[rows[j]]
            if j < len(coming):
                _announce(features[coming[j]])
            _add(data[k], share * _logistic_slope(clip, _dot(x[k], example)), example)
            j += 1
        total += _dot(data[k], data[k])
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
def _sign(x: np.float32) -> np.float32:
    return np.float32(x > 0) - np.float32(x < 0)


@njit(fastmath=FAST, error_model="numpy")
def _drift(
    x: np.ndarray, fixed: np.ndarray, step_size: np.float32, weight: np.float32, beta: np.float32, lasso: np.float32
) -> None:
    """x - eta (fixed + w x + beta grad of x^2 / (1 + x^2) + lasso sign(x)), in place."""
    if beta == 0 and lasso == 0:
        for i in range(x.shape[0]):
            x[i] -= step_size * (fixed[i] + weight * x[i])
        return
    if lasso == 0:
        for i in range(x.shape[0]):
            bend = np.float32(1.0) + x[i] * x[i]
            x[i] -= step_size * (fixed[i] + weight * x[i] + beta * np.float32(2.0) * x[i] / (bend * bend))
        return
    for i in range(x.shape[0]):
        bend = np.float32(1.0) + x[i] * x[i]
        pull = lasso * _sign(x[i]) + beta * np.float32(2.0) * x[i] / (bend * bend)
        x[i] -= step_size * (fixed[i] + weight * x[i] + pull)


@njit(fastmath=FAST, error_model="numpy")
def _move(
    x: np.ndarray,
    factor: np.float32,
    data: np.ndarray,
    fixed: np.ndarray,
    step_size: np.float32,
    weight: np.float32,
    beta: np.float32,
    lasso: np.float32,
) -> np.float32:
    """The same with `factor` times the data's gradient; returns the squared norm of the direction."""
    norm = np.float32(0.0)
    if beta == 0 and lasso == 0:
        for i in range(x.shape[0]):
            way = factor * data[i] + fixed[i] + weight * x[i]
            norm += way * way
            x[i] -= step_size * way
        return norm
    for i in range(x.shape[0]):
        bend = np.float32(1.0) + x[i] * x[i]
        pull = beta * np.float32(2.0) * x[i] / (bend * bend)
        if lasso != 0:
            pull += lasso * _sign(x[i])
        way = factor * data[i] + fixed[i] + weight * x[i] + pull
        norm += way * way
        x[i] -= step_size * way
    return norm


@njit(error_model="numpy")
def _by_class(labels: np.ndarray, visits: np.ndarray, starts: np.ndarray, sorted_visits: np.ndarray) -> None:
    """Sort the numbers of the visits by the labels of the visited rows; those of class k begin at starts[k]."""
    starts[:] = 0
    for row in visits:
        starts[labels[row] + 2] += 1
    for k in range(2, starts.shape[0]):
        starts[k] += starts[k - 1]
    for visit in range(visits.shape[0]):
        k = labels[visits[visit]] + 1
        sorted_visits[starts[k]] = visit
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
    _by_class(labels, visits, starts, order)
    for k in range(len(x)):
        first = last = starts[k]
        for step in range(steps):
            while last < starts[k + 1] and order[last] < (step + 1) * batch:
                if last + AHEAD < len(order):
                    _announce(features[visits[order[last + AHEAD]]])
                score = _dot(x[k], features[visits[order[last]]])
                pulls[last - first] = share * _logistic_slope(clip, score)
                last += 1
            _drift(x[k], fixed[k], step_size, weight, beta, lasso)
            for j in range(first, last):
                _add(x[k], pulls[j - first], features[visits[order[j]]])
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
            if source[k] == NOTHING:
                length += _move(x[k], np.float32(0.0), fixed[k], fixed[k], step_size, weight, beta, lasso)
            else:
                direction = data[k] if source[k] == SUM else features[source[k]]
                length += _move(x[k], factor * times[k], direction, fixed[k], step_size, weight, beta, lasso)
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
    if kind == LOGISTIC and numbers[4] == 0 and numbers[5] == 0:
        _row_by_row(steps, batch, numbers, features, labels, visits, fixed, x)
        return steps
    return _step_by_step(kind, steps, batch, numbers, features, labels, visits, fixed, x, room)
