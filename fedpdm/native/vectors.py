"""Sums and products of rows, as loops that are vectorised; and rows that are asked for before they are needed."""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["FAST", "add", "add_two", "announce", "dot", "dot_two", "put", "put_two"]

# Sums may be taken in any order, so that they are vectorised; NaN and infinity stay what they are.
FAST = {"reassoc", "contract", "arcp", "nsz"}
LINE = 16  # floats that memory sends at once


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
def announce(row: np.ndarray) -> None:
    """Ask the memory for a row; nobody waits for it.

    Parameters
    ----------
    row : ndarray
        The row.
    """
    for place in range(0, row.shape[0], LINE):
        _fetch(row, place)


@njit(fastmath=FAST, error_model="numpy")
def dot(left: np.ndarray, right: np.ndarray) -> np.float32:
    """Compute the product of two rows.

    Parameters
    ----------
    left, right : ndarray
        Of one length.

    Returns
    -------
    float32
        The sum of the products.
    """
    total = np.float32(0.0)
    for i in range(left.shape[0]):
        total += left[i] * right[i]
    return total


@njit(fastmath=FAST, error_model="numpy")
def add(target: np.ndarray, factor: np.float32, values: np.ndarray) -> None:
    """Add a row times a number, in place.

    Parameters
    ----------
    target : ndarray
        The row that changes.
    factor : float32
        The number.
    values : ndarray
        The other row.
    """
    for i in range(target.shape[0]):
        target[i] += factor * values[i]


@njit(fastmath=FAST, error_model="numpy")
def put(target: np.ndarray, factor: np.float32, values: np.ndarray) -> None:
    """Write a row times a number.

    Parameters
    ----------
    target : ndarray
        Takes the result.
    factor : float32
        The number.
    values : ndarray
        The row.
    """
    for i in range(target.shape[0]):
        target[i] = factor * values[i]


# Two examples at once: the model is read and written once for both, and nothing waits for a single sum.


@njit(fastmath=FAST, error_model="numpy")
def dot_two(x: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.float32, np.float32]:
    """Compute the products of a row with two others.

    Parameters
    ----------
    x, first, second : ndarray
        Of one length.

    Returns
    -------
    tuple of float32
        Both products.
    """
    one = two = np.float32(0.0)
    for i in range(x.shape[0]):
        one += x[i] * first[i]
        two += x[i] * second[i]
    return one, two


@njit(fastmath=FAST, error_model="numpy")
def add_two(target: np.ndarray, one: np.float32, first: np.ndarray, two: np.float32, second: np.ndarray) -> None:
    """Add two rows, each times a number, in place.

    Parameters
    ----------
    target : ndarray
        The row that changes.
    one, two : float32
        The numbers.
    first, second : ndarray
        The other rows.
    """
    for i in range(target.shape[0]):
        target[i] += one * first[i] + two * second[i]


@njit(fastmath=FAST, error_model="numpy")
def put_two(target: np.ndarray, one: np.float32, first: np.ndarray, two: np.float32, second: np.ndarray) -> None:
    """Write the sum of two rows, each times a number.

    Parameters
    ----------
    target : ndarray
        Takes the result.
    one, two : float32
        The numbers.
    first, second : ndarray
        The other rows.
    """
    for i in range(target.shape[0]):
        target[i] = one * first[i] + two * second[i]
