"""The gradient of a softmax loss with two classes over all rows of a client, in one pass at the speed of memory.

With two classes the gradient of an example is a number times its features in the row of class 1, and minus that in the row of
class 0. So one product with the difference of the two rows of the model gives the number, and each row is read once. Blocks of
rows are summed one by one, and their sums are added up by the caller in a fixed order: the result does not depend on threads.
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
from fedpdm.native.groups import GROUP, add_four, dot_four
from fedpdm.native.vectors import add, add_two, address, dot, dot_two, row_at

__all__ = ["exponential", "two_class_gradient"]

TARGET = "fedpdm_two_class_gradient"
BLOCK = 2048  # rows that are summed by one thread
SHORT = 128  # features
CHUNK, NEAR = 64, 1600  # short rows whose slopes are computed at once: at most so many, and so many numbers


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
def _pull(score: np.float32, label: int, clip: np.float32, weight: np.float32) -> np.float32:
    """The derivative of an example's loss in the score of class 1 minus that of class 0, clipped and weighted."""
    one = np.float32(1.0)
    side = one if label == 1 else -one
    slope = one / (one + exponential(side * score))
    return -side * weight * min(slope, clip)


@njit(error_model="numpy")
def _add_short_rows(
    n: int, base: int, labels: np.ndarray, each: np.ndarray, way: int, clip: np.float32, row: int, last: int, total: int
) -> None:
    """Add the gradients of the rows from `row` on: chunk by chunk, in groups of four, the slopes of a chunk at once."""
    pulls, chunk = np.empty(CHUNK, np.float32), min(NEAR // n, CHUNK) // GROUP * GROUP
    at_pulls = address(pulls)
    for start in range(row, last, chunk):
        count, first = min(chunk, last - start), row_at(base, n, start)
        grouped = count // GROUP * GROUP
        for j in range(0, grouped, GROUP):
            dot_four(n, way, row_at(first, n, j), at_pulls + 4 * j)
        for j in range(grouped, count):
            pulls[j] = dot(n, way, row_at(first, n, j))
        for j in range(count):
            pulls[j] = _pull(pulls[j], labels[start + j], clip, each[start + j])
        for j in range(0, grouped, GROUP):
            add_four(n, total, at_pulls + 4 * j, row_at(first, n, j))
        for j in range(grouped, count):
            add(n, total, pulls[j], row_at(first, n, j))


@njit(error_model="numpy")
def _add_long_rows(
    n: int, base: int, labels: np.ndarray, each: np.ndarray, way: int, clip: np.float32, row: int, last: int, total: int
) -> None:
    """The same for rows that are long beside an exponential: two at a time, since processors fetch four rows ahead badly."""
    while row + 2 <= last:
        one, two = row_at(base, n, row), row_at(base, n, row + 1)
        first, second = dot_two(n, way, one, two)
        first = _pull(first, labels[row], clip, each[row])
        second = _pull(second, labels[row + 1], clip, each[row + 1])
        add_two(n, total, first, one, second, two)
        row += 2
    if row < last:
        one = row_at(base, n, row)
        add(n, total, _pull(dot(n, way, one), labels[row], clip, each[row]), one)


@njit(error_model="numpy")
def _sum_block(arguments: np.ndarray, results: np.ndarray, block: int) -> None:
    """The rows of one block; the arguments are those of `two_class_gradient`, the model's difference in place of the model."""
    features, labels, weights, start, difference, clip = arguments
    n, everything = dimension(features, 1), dimension(features, 2)
    rows = min(dimension(weights, 1), everything)  # never read other memory, for any input
    begin = min(max(integers(start, (1,))[0], 0), everything - rows)
    base = row_at(address(floats(features, (everything, n))), n, begin)
    own_labels, each = integers(labels, (everything,))[begin:], floats(weights, (rows,))
    way, limit = address(floats(difference, (n,))), floats(clip, (1,))[0]
    memory, first, last = np.zeros(n, np.float32), block * BLOCK, min((block + 1) * BLOCK, rows)
    if n <= SHORT:
        _add_short_rows(n, base, own_labels, each, way, limit, first, last, address(memory))
    else:
        _add_long_rows(n, base, own_labels, each, way, limit, first, last, address(memory))
    floats(results[0], (dimension(results[0], 3), n))[block] = memory


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


def two_class_gradient(
    features: Array, labels: Array, start: Array, weights: Array, model: Array, clip: Array | float
) -> Array:
    """Compute the weighted sum of the gradients of a client's rows, for the softmax loss with gap clipping and two classes.

    Parameters
    ----------
    features, labels : Array
        [rows of all clients, n] and [rows of all clients].
    start : Array
        Place of the client's first row.
    weights : Array
        [rows] of its rows; padding has weight 0.
    model : Array
        [2, n].
    clip : Array or float
        Bound on the slope of one example; 1: none.

    Returns
    -------
    Array
        [2, n].
    """
    rows, n = len(weights), features.shape[1]
    shape = jax.ShapeDtypeStruct((-(-rows // BLOCK), 1, n), jnp.float32)
    numbers = start.astype(jnp.int32)[None], model[1] - model[0], jnp.asarray(clip, jnp.float32)[None]
    # Each client's call by itself also where clients are mapped: its rows keep all threads busy.
    call = jax.ffi.ffi_call(TARGET, shape, vmap_method="sequential")
    total = jnp.sum(call(features, labels, weights, *numbers), axis=(0, 1))
    return jnp.stack([-total, total])
