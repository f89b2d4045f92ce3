"""Local steps of linear models with small batches, one client after the other, each in the cache of one core.

These are the steps that `fedpdm.algorithms.local.solve` takes in JAX; the results agree up to rounding. XLA works on all
clients at once, step by step, and so sends every client's model through memory in every step. Here a client's model stays in
the cache of one core until all of its steps are done.
"""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numba import cfunc, njit

from fedpdm.native.bridge import (
    HANDLER,
    TASK,
    address_of,
    begin,
    buffers,
    claim,
    dimension,
    end,
    finish,
    first_result,
    floats,
    integers,
    is_question,
    let_go,
    name_task,
    register,
)

__all__ = ["Numbers", "linear_steps"]

TARGET = "fedpdm_linear_steps"
LOGISTIC, SOFTMAX = 0, 1
KINDS = {"logistic": LOGISTIC, "softmax": SOFTMAX}
# Sums may be taken in any order, so that they are vectorised; NaN and infinity stay what they are.
FAST = {"reassoc", "contract", "arcp", "nsz"}
DRAW_BITS = 23


class Numbers(NamedTuple):
    """The numbers of a local problem, in the order in which the kernel reads them."""

    weight: Array | float
    step_size: Array | float
    beta: Array | float
    loss_clip: Array | float
    batch_clip: Array | float
    tolerance: Array | float
    lasso: Array | float  # times the signs of x: the subgradient of an L1 penalty


@njit
def _rotate(x: np.uint32, bits: int) -> np.uint32:
    return np.uint32((x << np.uint32(bits)) | (x >> np.uint32(32 - bits)))


@njit
def _four_rounds(x: np.uint32, y: np.uint32, a: int, b: int, c: int, d: int) -> tuple[np.uint32, np.uint32]:
    x = np.uint32(x + y)
    y = _rotate(y, a) ^ x
    x = np.uint32(x + y)
    y = _rotate(y, b) ^ x
    x = np.uint32(x + y)
    y = _rotate(y, c) ^ x
    x = np.uint32(x + y)
    return x, _rotate(y, d) ^ x


@njit(error_model="numpy")
def _draw(key: np.ndarray, draws: np.ndarray) -> None:
    """`jax.random.uniform` with a threefry key, times 2^23: the counter-based generator Threefry-2x32 with 20 rounds."""
    k0, k1 = key
    k2 = np.uint32(k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    for i in range(draws.shape[0]):
        x, y = _four_rounds(k0, np.uint32(np.uint32(i) + k1), 13, 15, 26, 6)
        x, y = _four_rounds(np.uint32(x + k1), np.uint32(y + k2 + np.uint32(1)), 17, 29, 16, 24)
        x, y = _four_rounds(np.uint32(x + k2), np.uint32(y + k0 + np.uint32(2)), 13, 15, 26, 6)
        x, y = _four_rounds(np.uint32(x + k0), np.uint32(y + k1 + np.uint32(3)), 17, 29, 16, 24)
        x, y = _four_rounds(np.uint32(x + k1), np.uint32(y + k2 + np.uint32(4)), 13, 15, 26, 6)
        draws[i] = (np.uint32(x + k2) ^ np.uint32(y + k0 + np.uint32(5))) >> np.uint32(9)


@njit(error_model="numpy")
def _order(draws: np.ndarray, order: np.ndarray, starts: np.ndarray) -> None:
    """The stable argsort of the draws, which are uniform in 0 ... 2^23 - 1: by buckets of about one each."""
    size = draws.shape[0]
    starts[:] = 0
    for row in range(size):
        starts[((draws[row] * size) >> DRAW_BITS) + 1] += 1
    for bucket in range(size):
        starts[bucket + 1] += starts[bucket]
    for row in range(size):
        bucket = (draws[row] * size) >> DRAW_BITS
        order[starts[bucket]] = row
        starts[bucket] += 1
    for place in range(1, size):  # within buckets, as they are in order
        row = order[place]
        before = place - 1
        while before >= 0 and draws[order[before]] > draws[row]:
            order[before + 1] = order[before]
            before -= 1
        order[before + 1] = row


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


@njit(error_model="numpy")
def _slopes(
    kind: int, clip: np.float32, x: np.ndarray, features: np.ndarray, labels: np.ndarray, rows: np.ndarray, slopes: np.ndarray
) -> None:
    """Derivatives of these rows' losses in their scores; for the logistic loss that of the true class alone is not zero."""
    one = np.float32(1.0)
    for j in range(rows.shape[0]):
        example, label = features[rows[j]], labels[rows[j]]
        if kind == LOGISTIC:
            slopes[j, label] = -min(one / (one + np.exp(_dot(x[label], example))), clip)
            continue
        largest, total, gap = np.float32(-np.inf), np.float32(0.0), np.float32(0.0)
        for k in range(x.shape[0]):
            slopes[j, k] = _dot(x[k], example)
            largest = max(largest, slopes[j, k])
        for k in range(x.shape[0]):
            slopes[j, k] = np.exp(slopes[j, k] - largest)
            total += slopes[j, k]
        for k in range(x.shape[0]):
            slopes[j, k] /= total
            gap += slopes[j, k] if k != label else np.float32(0.0)
        factor = clip / gap if gap > clip else one
        for k in range(x.shape[0]):
            slopes[j, k] *= factor
        slopes[j, label] = -gap * factor


@njit(error_model="numpy")
def _pull(
    kind: int,
    target: np.ndarray,
    factor: np.float32,
    slopes: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Add `factor` times the gradient of these rows' losses."""
    for j in range(rows.shape[0]):
        row = rows[j]
        if kind == LOGISTIC:
            _add(target[labels[row]], factor * slopes[j, labels[row]], features[row])
        else:
            for k in range(target.shape[0]):
                _add(target[k], factor * slopes[j, k], features[row])


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
    for i in range(x.shape[0]):
        bend = np.float32(1.0) + x[i] * x[i]
        pull = lasso * _sign(x[i]) + beta * np.float32(2.0) * x[i] / (bend * bend)
        x[i] -= step_size * (fixed[i] + weight * x[i] + pull)


@njit(fastmath=FAST, error_model="numpy")
def _move(
    x: np.ndarray,
    data: np.ndarray,
    fixed: np.ndarray,
    step_size: np.float32,
    weight: np.float32,
    beta: np.float32,
    lasso: np.float32,
) -> np.float32:
    """The same with the data's gradient; returns the squared norm of the direction."""
    norm = np.float32(0.0)
    for i in range(x.shape[0]):
        bend = np.float32(1.0) + x[i] * x[i]
        pull = lasso * _sign(x[i]) + beta * np.float32(2.0) * x[i] / (bend * bend)
        way = data[i] + fixed[i] + weight * x[i] + pull
        norm += way * way
        x[i] -= step_size * way
    return norm


@njit(error_model="numpy")
def _client(
    kind: int,
    steps: int,
    batch: int,
    numbers: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    order: np.ndarray,
    fixed: np.ndarray,
    data: np.ndarray,
    slopes: np.ndarray,
    x: np.ndarray,
) -> int:
    """All steps of one client, in place in x; returns how many there were."""
    weight, step_size, beta, loss_clip, batch_clip, tolerance, lasso = numbers
    flat = x.reshape(x.size)
    flat_data = data.reshape(x.size)
    measured = tolerance > 0 or batch_clip > 0
    share = np.float32(1.0) / np.float32(batch)
    place, picked = 0, np.empty(batch, np.int64)
    for step in range(steps):
        for j in range(batch):
            picked[j] = order[place]
            place = place + 1 if place + 1 < order.shape[0] else 0
        _slopes(kind, loss_clip, x, features, labels, picked, slopes)
        if not measured:
            _drift(flat, fixed, step_size, weight, beta, lasso)
            _pull(kind, x, -step_size * share, slopes, features, labels, picked)
            continue
        flat_data[:] = 0
        _pull(kind, data, share, slopes, features, labels, picked)
        if batch_clip > 0:
            norm = math.sqrt(_dot(flat_data, flat_data))
            flat_data *= np.float32(min(1.0, batch_clip / (norm + 1e-30)))
        if _move(flat, flat_data, fixed, step_size, weight, beta, lasso) <= tolerance and tolerance > 0:
            return step + 1
    return steps


@njit(error_model="numpy")
def _solve_one(arguments: np.ndarray, results: np.ndarray, c: int) -> None:
    """The c-th of the clients; the arguments are those of `_all_clients`."""
    features, labels, sizes, clients, keys, x0, linear_terms, numbers, counts = arguments
    n, rows, registered = dimension(features, 1), dimension(features, 2), dimension(features, 3)
    classes, working = dimension(x0, 2), dimension(clients, 1)
    # Never read other memory, for any input.
    client = min(max(integers(clients, (working,))[c], 0), registered - 1)
    size = min(max(integers(sizes, (registered,))[client], 1), rows)
    own_features = floats(features, (registered, rows, n))[client]
    own_labels = integers(labels, (registered, rows))[client]
    start, values = floats(x0, (classes * n,)), floats(numbers, (7,))
    given = dimension(linear_terms, 2)  # one for all clients, or one for each
    fixed = floats(linear_terms, (given, classes * n))[min(c, given - 1)] - values[0] * start
    kind, steps, batch = integers(counts, (3,))
    draws, order, starts = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size + 1, np.int64)
    _draw(integers(keys, (working, 2))[c].view(np.uint32), draws)
    _order(draws, order, starts)
    x = floats(results[0], (working, classes, n))[c]
    x.reshape(classes * n)[:] = start
    data, slopes = np.empty((classes, n), np.float32), np.empty((batch, classes), np.float32)
    integers(results[1], (working,))[c] = _client(
        kind, steps, batch, values, own_features, own_labels, order, fixed, data, slopes, x
    )


_task = address_of(f"{TARGET}_task")


@njit
def _take_part(block: int) -> None:
    while True:
        c = claim(block)
        if c < 0:
            return
        arguments, results = buffers(block)
        _solve_one(arguments, results, c)
        finish(block)


@cfunc(TASK, cache=True)
def _help_out(block: int) -> None:
    _take_part(block)
    let_go(block)


name_task(f"{TARGET}_task", _help_out)


@cfunc(HANDLER, cache=True)
def _handle(frame: int) -> int:
    if not is_question(frame):
        block = begin(frame, dimension(first_result(frame), 3), _task())
        _take_part(block)
        end(block)
    return 0


register(TARGET, _handle)


def linear_steps(
    counts: tuple[str, int, int],
    numbers: Numbers,
    data: tuple[Array, Array, Array],
    client: Array,
    key: Array,
    x0: Array,
    linear_term: Array,
) -> tuple[Array, Array]:
    """Compute the local model of a client in machine code. It can be mapped over clients.

    Parameters
    ----------
    counts : tuple
        The name of the loss, the largest number of steps, the examples per step.
    numbers : Numbers
        Step size, weights and clips.
    data : tuple of Array
        Features, labels and sizes of all clients.
    client : Array
        Index of the client.
    key : Array
        The data of a Threefry key. The client's rows are visited in the order of `jax.random.uniform` with it.
    x0 : Array
        The model that the client starts from, [m, n].
    linear_term : Array
        The v_i of the local problem, [m, n].

    Returns
    -------
    tuple of Array
        The local model [m, n], and the number of steps taken.
    """
    kind, steps, batch_size = counts
    whole = jnp.array([KINDS[kind], steps, batch_size], jnp.int32)
    values = jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers])
    models, taken = _mapped(*data, client, key, x0, linear_term, values, whole)
    return models, taken


@jax.custom_batching.custom_vmap
def _mapped(*operands: Array) -> tuple[Array, Array]:
    features, labels, sizes, client, key, x0, linear_term, values, whole = operands
    models, taken = _all_clients(
        features, labels, sizes, client[None], key[None], x0, linear_term.reshape(1, -1), values, whole
    )
    return models[0], taken[0]


@_mapped.def_vmap
def _over_clients(axis_size: int, batched: list[bool], *operands: Array) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
    features, labels, sizes, client, key, x0, linear_term, values, whole = operands
    common = [*batched[:3], batched[5], *batched[7:]]  # data, x0 and numbers
    if any(common):  # rare: several federations or settings at once
        rows = [o if b else jnp.broadcast_to(o, (axis_size, *o.shape)) for o, b in zip(operands, batched, strict=True)]
        return jax.lax.map(lambda row: _mapped(*row), tuple(rows)), (True, True)
    client = client if batched[3] else jnp.broadcast_to(client, (axis_size,))
    key = key if batched[4] else jnp.broadcast_to(key, (axis_size, *key.shape))
    terms = linear_term.reshape(axis_size if batched[6] else 1, -1)
    return _all_clients(features, labels, sizes, client, key, x0, terms, values, whole), (True, True)


def _all_clients(
    features: Array,
    labels: Array,
    sizes: Array,
    clients: Array,
    keys: Array,
    x0: Array,
    linear_terms: Array,
    values: Array,
    counts: Array,
) -> tuple[Array, Array]:
    shapes = jax.ShapeDtypeStruct((*clients.shape, *x0.shape), jnp.float32), jax.ShapeDtypeStruct(clients.shape, jnp.int32)
    return tuple(jax.ffi.ffi_call(TARGET, shapes)(features, labels, sizes, clients, keys, x0, linear_terms, values, counts))
