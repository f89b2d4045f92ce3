"""The gradient of a softmax loss over all rows of a client, in one pass.

Only differences of scores count, and the rows of an example's gradient sum to zero. So the products with the rows of the model
minus that of class 0 are enough, and the gradient of class 0 is minus the sum of the others: with two classes half of the work
is saved. Each row is read once. Blocks of rows are summed one by one, and their sums are added up by the caller in a fixed
order: the result does not depend on threads.
"""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numba import cfunc, njit

from fedpdm.native.bridge import (
    HANDLER,
    ITEM,
    SOURCES,
    address_of,
    buffers,
    dimension,
    floats,
    integers,
    name_function,
    register,
    serve,
)
from fedpdm.native.groups import GROUP, add_four, add_four_to_two, dot_four, dot_four_with_two
from fedpdm.native.vectors import FUSED, LINE, add, address, announce_until, dot, row_at

__all__ = ["block_rows", "exponential", "softmax_gradient"]

TARGET = "fedpdm_softmax_gradient"
BLOCK, PARTS = 2048, 8  # rows that one thread sums: at most so many, and about so many blocks of a small client
SMALL, FEW = 64, 2**16  # but no block of fewer rows or products: it would cost more than its share of the threads saves
# Rows whose slopes are computed at once: at most so many, at least so many, and between these as many as hold so many numbers
CHUNK, LEAST, NEAR = 64, 16, 6400
TILE = 512  # features of a piece of work: with those of ten classes they fit into the nearest cache


def block_rows(rows: int, classes: int, n: int) -> int:
    """Choose how many rows one thread sums.

    Parameters
    ----------
    rows, classes, n : int
        The rows of a client, the classes, and the features.

    Returns
    -------
    int
        The rows of a block.
    """
    return min(BLOCK, max(-(-rows // PARTS), -(-FEW // (classes * n)), SMALL))


_block_rows = njit(block_rows)  # for the kernel; the other is called where programs are made, without a compilation


# Cephes, expf: ln 2 in two parts, and the coefficients for -ln(2)/2 to ln(2)/2
LN2_HIGH, LN2_LOW, LOG2_E, LARGEST = (np.float32(c) for c in (0.693359375, -2.12194440e-4, 1.44269504, 80.0))
C2, C3, C4, C5, C6, C7 = (
    np.float32(c)
    for c in (5.0000001201e-1, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4)
)


@njit(error_model="numpy")
def exponential(x: np.float32) -> np.float32:
    """Compute e^x without a call, so that a loop over many numbers is vectorised.

    Parameters
    ----------
    x : float32
        The exponent; it counts as 80 above 80, and as -80 below -80.

    Returns
    -------
    float32
        The power, with a relative error of at most 2e-7.
    """
    near = x if x > -LARGEST else -LARGEST
    near = near if near < LARGEST else LARGEST
    twos = np.rint(near * LOG2_E)
    rest = near - twos * LN2_HIGH - twos * LN2_LOW
    series = ((((C7 * rest + C6) * rest + C5) * rest + C4) * rest + C3) * rest + C2
    power = np.int32((np.int32(twos) + np.int32(127)) << np.int32(23)).view(np.float32)  # 2^twos, by its bits
    found = (series * rest * rest + rest + np.float32(1.0)) * power
    return found if x == x else x  # NaN stays NaN


@njit(error_model="numpy")
def _two_class_slopes(count: int, scores: np.ndarray, labels: np.ndarray, each: np.ndarray, clip: np.float32) -> None:
    """The work of `_slopes` for two classes, with half of the powers, on the scores of class 1."""
    one = np.float32(1.0)
    for j in range(count):
        side = one if labels[j] == 1 else -one
        scores[j] = -side * each[j] * min(one / (one + exponential(side * scores[j])), clip)


@njit(fastmath=FUSED, error_model="numpy")
def _slopes(count: int, scores: np.ndarray, labels: np.ndarray, each: np.ndarray, clip: np.float32) -> None:
    """Put the derivatives of the losses in place of the scores, clipped and weighted: [class, example]; class 0 is left out."""
    largest, total, gap = np.zeros(CHUNK, np.float32), np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32)
    zero, one, classes = np.float32(0.0), np.float32(1.0), len(scores)
    for k in range(1, classes):
        own = scores[k]
        for j in range(count):
            largest[j] = max(largest[j], own[j])
    for j in range(count):
        total[j] = exponential(-largest[j])
        gap[j] = total[j] if labels[j] != 0 else zero
    for k in range(1, classes):
        own = scores[k]
        for j in range(count):
            power = exponential(own[j] - largest[j])
            own[j] = power
            total[j] += power
            gap[j] += power if labels[j] != k else zero
    for j in range(count):
        others = gap[j] / total[j]  # 1 - the share of the true class, exact also where it is small
        times = each[j] * (clip / others if others > clip else one)
        gap[j], total[j] = -others * times, times / total[j]
    for k in range(1, classes):
        own = scores[k]
        for j in range(count):
            own[j] = own[j] * total[j] if labels[j] != k else gap[j]


@njit(error_model="numpy")
def _multiply(
    n: int, first: int, count: int, models: int, apart: int, scores: np.ndarray, coming: int, part: int, end: int
) -> int:
    """Compute the scores of a chunk, and announce rows of the next one up to the address that is returned.

    Four rows, two classes and `TILE` features are a piece of work, and a part of the next chunk is announced after each: memory
    takes only so many requests at once.
    """
    classes, grouped = len(scores), count // GROUP * GROUP
    scores[1:, :count] = 0
    for tile in range(0, n, TILE):
        size = min(TILE, n - tile)
        for j in range(0, grouped, GROUP):
            group = row_at(first, n, j) + 4 * tile
            for k in range(1, classes, 2):
                model, found = models + k * apart + 4 * tile, address(scores) + 4 * (k * CHUNK + j)
                if k + 1 < classes:
                    dot_four_with_two(size, model, apart, group, 4 * n, found, 4 * CHUNK)
                else:
                    dot_four(size, model, group, 4 * n, found)
                announce_until(coming, min(coming + part, end))
                coming += part
    for j in range(grouped, count):
        for k in range(1, classes):
            scores[k, j] = dot(n, models + k * apart, row_at(first, n, j))
    return coming


@njit(error_model="numpy")
def _add(n: int, first: int, count: int, sums: int, apart: int, slopes: np.ndarray, coming: int, part: int, end: int) -> None:
    """Add the rows of a chunk times their slopes, in the same pieces, and announce the rest of the next chunk."""
    classes, grouped = len(slopes), count // GROUP * GROUP
    for tile in range(0, n, TILE):
        size = min(TILE, n - tile)
        for j in range(0, grouped, GROUP):
            group = row_at(first, n, j) + 4 * tile
            for k in range(1, classes, 2):
                target, times = sums + k * apart + 4 * tile, address(slopes) + 4 * (k * CHUNK + j)
                if k + 1 < classes:
                    add_four_to_two(size, target, apart, times, 4 * CHUNK, group, 4 * n)
                else:
                    add_four(size, target, times, group, 4 * n)
                announce_until(coming, min(coming + part, end))
                coming += part
    for j in range(grouped, count):
        for k in range(1, classes):
            add(n, sums + k * apart, slopes[k, j], row_at(first, n, j))


@njit(error_model="numpy")
def _add_rows(
    n: int, base: int, labels: np.ndarray, each: np.ndarray, models: int, sums: int, apart: int, classes: int, clip: np.float32
) -> None:
    """Add the gradients of rows, chunk by chunk: scores, their slopes, and the rows times these."""
    rows, chunk = len(each), min(max(NEAR // n, LEAST), CHUNK) // GROUP * GROUP
    scores = np.empty((classes, CHUNK), np.float32)
    pieces = 2 * (classes // 2) * -(-n // TILE)  # of four rows
    part = -(-GROUP * 4 * n // (pieces * LINE)) * LINE
    for start in range(0, rows, chunk):
        count, first = min(chunk, rows - start), row_at(base, n, start)
        coming, end = row_at(first, n, count), row_at(base, n, min(start + 2 * chunk, rows))
        coming = _multiply(n, first, count, models, apart, scores, coming, part, end)
        if classes == 2:
            _two_class_slopes(count, scores[1], labels[start:], each[start:], clip)
        else:
            _slopes(count, scores, labels[start:], each[start:], clip)
        _add(n, first, count, sums, apart, scores, coming, part, end)


@njit(error_model="numpy")
def _sum_block(arguments: np.ndarray, results: np.ndarray, block: int) -> None:
    """The rows of one block; the arguments are those of `softmax_gradient`, with the model's differences in its place."""
    features, labels, weights, start, differences, clip = arguments
    n, everything = dimension(features, 1), dimension(features, 2)
    rows = min(dimension(weights, 1), everything)  # never read other memory, for any input
    begin = min(max(integers(start, (1,))[0], 0), everything - rows)
    base = row_at(address(floats(features, (everything, n))), n, begin)
    own_labels, each = integers(labels, (everything,))[begin:], floats(weights, (rows,))
    classes, room = dimension(differences, 2), dimension(differences, 1)
    models, sums = floats(differences, (classes, room)), floats(results[0], (dimension(results[0], 3), classes, room))[block]
    sums[:] = 0
    size = _block_rows(rows, classes, n)
    first, last = block * size, min((block + 1) * size, rows)
    own = row_at(base, n, first), own_labels[first:], each[first:last]
    _add_rows(n, *own, address(models), address(sums), 4 * room, classes, floats(clip, (1,))[0])
    for k in range(1, classes):
        add(n, address(sums), np.float32(-1.0), address(sums[k]))


_item = address_of(f"{TARGET}_item")


def _compile(sources: int) -> None:
    """Compile the kernel, or read it from Numba's cache. Both functions capture `sources`: see `fedpdm.native.bridge`."""

    @cfunc(ITEM, cache=True)
    def item(frame: int, number: int) -> None:
        if sources > 0:
            arguments, results = buffers(frame)
            _sum_block(arguments, results, number)

    name_function(f"{TARGET}_item", item)

    @cfunc(HANDLER, cache=True)
    def handle(frame: int) -> int:
        if sources > 0:
            serve(frame, _item())
        return 0

    register(TARGET, handle)


_compile(SOURCES)


def softmax_gradient(features: Array, labels: Array, start: Array, weights: Array, model: Array, clip: Array | float) -> Array:
    """Compute the weighted sum of the gradients of a client's rows, for the softmax loss with gap clipping.

    Parameters
    ----------
    features, labels : Array
        [rows of all clients, n] and [rows of all clients]; a label is a number from 0 to m - 1.
    start : Array
        Place of the client's first row.
    weights : Array
        [rows] of its rows; padding has weight 0.
    model : Array
        [m, n] with m of at least 2.
    clip : Array or float
        Bound on the slope of one example; 1: none.

    Returns
    -------
    Array
        [m, n].
    """
    rows, n = len(weights), features.shape[1]
    sizes, types = (model.shape[1], len(labels)), (features.dtype, labels.dtype, model.dtype)
    if sizes != (n, len(features)) or types != (jnp.float32, jnp.int32, jnp.float32):  # by these the kernel reads memory
        raise ValueError(f"features {features.shape}, labels {labels.shape}, model {model.shape} of the types {types}")
    differences = jnp.pad(model - model[0], ((0, 0), (0, -n % (LINE // 4))))  # each row begins where a line of memory does
    shape = jax.ShapeDtypeStruct((-(-rows // block_rows(rows, len(model), n)), *differences.shape), jnp.float32)
    # Each client's call by itself also where clients are mapped: its rows keep all threads busy.
    call = jax.ffi.ffi_call(TARGET, shape, vmap_method="sequential")
    numbers = start.astype(jnp.int32)[None], differences, jnp.asarray(clip, jnp.float32)[None]
    sums = call(features, labels, weights.astype(jnp.float32), *numbers)
    # jnp.sum over the first axis takes up to 20 times longer
    return jax.lax.fori_loop(1, len(sums), lambda block, total: total + sums[block], sums[0])[:, :n]
