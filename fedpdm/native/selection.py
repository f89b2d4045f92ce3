"""The k largest of every client's numbers, one client after the other, each in the cache of one core.

It is the choice of `fedpdm.compression.sparsify` for many clients at once, the same in every bit. XLA bisects: it reads the
numbers of all clients some thirty times. Here they are counted by their highest bits, and only the numbers with the bits of the
k-th largest are looked at again.
"""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import math

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
    flags,
    integers,
    name_function,
    register,
    serve,
)

__all__ = ["largest", "mark_largest"]

TARGET = "fedpdm_largest"
BITS = 31  # of a number that is not negative
LONG_DIGIT, SHORT_DIGIT = 11, 7  # bits that are counted at once
MANY = 2048  # numbers: from here on the longer digit pays


@njit(error_model="numpy")
def _in_place(counts: np.ndarray, k: int) -> tuple[int, int]:
    """The highest place at which k numbers have been counted from above, and how many are above it."""
    above = 0
    for place in range(counts.shape[0] - 1, -1, -1):
        if above + counts[place] >= k:
            return place, above
        above += counts[place]
    return 0, above


@njit(error_model="numpy")
def mark_largest(keys: np.ndarray, k: int, chosen: np.ndarray) -> None:
    """Mark exactly k of the keys: the largest ones, ties by lower index.

    Parameters
    ----------
    keys : ndarray
        int32 numbers that are not negative.
    k : int
        How many, from 1 to their number.
    chosen : ndarray
        Takes 1 for a marked key and 0 for another one.
    """
    size = keys.shape[0]
    digit = LONG_DIGIT if size >= MANY else SHORT_DIGIT
    counts, left = np.empty(1 << digit, np.int32), keys.copy()
    found, shift = np.int64(0), (BITS - 1) // digit * digit  # the digits of the k-th largest so far
    while shift >= 0 and size > k:
        counts[:] = 0
        for i in range(size):
            counts[(left[i] >> shift) & ((1 << digit) - 1)] += 1
        place, above = _in_place(counts, k)
        found, k = found | (np.int64(place) << shift), k - above
        inside = 0
        for i in range(size):
            left[inside] = left[i]
            inside += ((left[i] >> shift) & ((1 << digit) - 1)) == place
        size, shift = inside, shift - digit
    edge = np.int32(found)
    if size == k:  # all that begin with the digits found
        for i in range(keys.shape[0]):
            chosen[i] = keys[i] >= edge
        return
    for i in range(keys.shape[0]):
        chosen[i] = keys[i] > edge
        if keys[i] == edge and k > 0:
            chosen[i], k = 1, k - 1


@njit(error_model="numpy")
def _mark_one(arguments: np.ndarray, results: np.ndarray, row: int) -> None:
    """One of the rows; the arguments are those of `largest`."""
    rows, size = dimension(arguments[0], 3), dimension(arguments[0], 1)
    k = min(max(integers(arguments[1], (1,))[0], 1), size)
    mark_largest(integers(arguments[0], (rows, size))[row], k, flags(results[0], (rows, size))[row])


_item = address_of(f"{TARGET}_item")


def _compile(sources: int) -> None:
    """Compile the kernel, or read it from Numba's cache. Both functions capture `sources`: see `fedpdm.native.bridge`."""

    @cfunc(ITEM, cache=True)
    def item(frame: int, number: int) -> None:
        if sources > 0:
            arguments, results = buffers(frame)
            _mark_one(arguments, results, number)

    name_function(f"{TARGET}_item", item)

    @cfunc(HANDLER, cache=True)
    def handle(frame: int) -> int:
        if sources > 0:
            serve(frame, _item())
        return 0

    register(TARGET, handle)


_compile(SOURCES)


def largest(keys: Array, k: int) -> Array:
    """Mark the k largest keys of every row.

    Parameters
    ----------
    keys : Array
        [rows, ...] int32 numbers that are not negative.
    k : int
        How many of a row.

    Returns
    -------
    Array
        Bool, of the shape of `keys`; ties go to the lower index of the flattened row.
    """
    shape = len(keys), 1, math.prod(keys.shape[1:])
    marked = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(shape, jnp.bool_))(keys.reshape(shape), jnp.full(1, k, jnp.int32))
    return marked.reshape(keys.shape)
