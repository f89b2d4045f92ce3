"""Sums and products of rows, as loops that are vectorised; and rows that are asked for before they are needed.

Rows are passed by their addresses. Numba passes an array as seven words and counts its owners, which takes longer than the work
on a short row.
"""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fedpdm.native.bridge import floats_at

__all__ = [
    "FAST",
    "FUSED",
    "LINE",
    "add",
    "add_two",
    "address",
    "announce",
    "announce_until",
    "dot",
    "dot_two",
    "put",
    "put_two",
    "row_at",
]

# Sums may be taken in any order, so that they are vectorised; NaN and infinity stay what they are.
FAST = {"reassoc", "contract", "arcp", "nsz"}
FUSED = {"contract", "nsz"}  # sums in the order that is written: then each product is one instruction with its sum
LINE = 64  # bytes that memory sends at once


@intrinsic
def _fetch(typing_context: Any, address: Any) -> Any:
    """Ask for the part of memory at this address; nobody waits for it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], cgutils.voidptr_t)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, word(0), word(2), word(1)])  # to read, into the second cache, data
        return context.get_dummy_value()

    return types.void(address), generate


@njit
def address(values: np.ndarray) -> int:
    """Find where an array begins.

    Parameters
    ----------
    values : ndarray
        The array; its owner must keep it as long as the address is used.

    Returns
    -------
    int
        The address.
    """
    return np.int64(values.ctypes.data)


@njit
def row_at(base: int, n: int, place: int) -> int:
    """Find where a row of a matrix begins.

    Parameters
    ----------
    base : int
        Address of the matrix, whose rows follow each other.
    n : int
        Length of a row.
    place : int
        Number of the row.

    Returns
    -------
    int
        The address.
    """
    return base + 4 * n * place


@njit(error_model="numpy")
def announce(n: int, row: int) -> None:
    """Ask the memory for a row; nobody waits for it.

    Parameters
    ----------
    n : int
        Its length.
    row : int
        Its address.
    """
    announce_until(row, row + 4 * n)


@njit(error_model="numpy")
def announce_until(start: int, end: int) -> None:
    """Ask the memory for everything between two addresses; nobody waits for it.

    Parameters
    ----------
    start, end : int
        The addresses.
    """
    for place in range(start, end, LINE):
        _fetch(place)


@njit(fastmath=FAST, error_model="numpy")
def dot(n: int, left: int, right: int) -> np.float32:
    """Compute the product of two rows.

    Parameters
    ----------
    n : int
        Length of a row.
    left, right : int
        Their addresses.

    Returns
    -------
    float32
        The sum of the products.
    """
    a, b = floats_at(left, (n,)), floats_at(right, (n,))
    total = np.float32(0.0)
    for i in range(n):
        total += a[i] * b[i]
    return total


@njit(fastmath=FAST, error_model="numpy")
def add(n: int, target: int, factor: np.float32, row: int) -> None:
    """Add a row times a number, in place.

    Parameters
    ----------
    n : int
        Length of a row.
    target : int
        Address of the row that changes.
    factor : float32
        The number.
    row : int
        Address of the other row.
    """
    sums, values = floats_at(target, (n,)), floats_at(row, (n,))
    for i in range(n):
        sums[i] += factor * values[i]


@njit(fastmath=FAST, error_model="numpy")
def put(n: int, target: int, factor: np.float32, row: int) -> None:
    """Write a row times a number.

    Parameters
    ----------
    n : int
        Length of a row.
    target : int
        Address of the result.
    factor : float32
        The number.
    row : int
        Address of the row.
    """
    sums, values = floats_at(target, (n,)), floats_at(row, (n,))
    for i in range(n):
        sums[i] = factor * values[i]


# Two examples at once: the model is read and written once for both, and nothing waits for a single sum.


@njit(fastmath=FAST, error_model="numpy")
def dot_two(n: int, x: int, first: int, second: int) -> tuple[np.float32, np.float32]:
    """Compute the products of a row with two others.

    Parameters
    ----------
    n : int
        Length of a row.
    x, first, second : int
        Their addresses.

    Returns
    -------
    tuple of float32
        Both products.
    """
    model, a, b = floats_at(x, (n,)), floats_at(first, (n,)), floats_at(second, (n,))
    one = two = np.float32(0.0)
    for i in range(n):
        one += model[i] * a[i]
        two += model[i] * b[i]
    return one, two


@njit(fastmath=FAST, error_model="numpy")
def add_two(n: int, target: int, one: np.float32, first: int, two: np.float32, second: int) -> None:
    """Add two rows, each times a number, in place.

    Parameters
    ----------
    n : int
        Length of a row.
    target : int
        Address of the row that changes.
    one, two : float32
        The numbers.
    first, second : int
        Addresses of the other rows.
    """
    sums, a, b = floats_at(target, (n,)), floats_at(first, (n,)), floats_at(second, (n,))
    for i in range(n):
        sums[i] += one * a[i] + two * b[i]


@njit(fastmath=FAST, error_model="numpy")
def put_two(n: int, target: int, one: np.float32, first: int, two: np.float32, second: int) -> None:
    """Write the sum of two rows, each times a number.

    Parameters
    ----------
    n : int
        Length of a row.
    target : int
        Address of the result.
    one, two : float32
        The numbers.
    first, second : int
        Addresses of the rows.
    """
    sums, a, b = floats_at(target, (n,)), floats_at(first, (n,)), floats_at(second, (n,))
    for i in range(n):
        sums[i] = one * a[i] + two * b[i]
