"""Four examples at once, for short rows. Rows are passed by address, as in `fedpdm.native.vectors`."""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import numpy as np
from numba import njit

from fedpdm.native.bridge import floats_at, words_at
from fedpdm.native.vectors import FAST

__all__ = ["GROUP", "add_four", "add_group", "dot_four", "dot_group"]

GROUP = 4


@njit(fastmath=FAST, error_model="numpy")
def dot_four(n: int, x: int, first: int, scores: int) -> None:
    """Compute the products of a row with four others that follow each other.

    Parameters
    ----------
    n : int
        Length of a row.
    x, first : int
        Addresses of the row, and of the first of the four.
    scores : int
        Address of the four results.
    """
    model, found = floats_at(x, (n,)), floats_at(scores, (GROUP,))
    r0, r1, r2, r3 = _following(first, n)
    s0 = s1 = s2 = s3 = np.float32(0.0)
    for i in range(n):
        s0 += model[i] * r0[i]
        s1 += model[i] * r1[i]
        s2 += model[i] * r2[i]
        s3 += model[i] * r3[i]
    found[0], found[1], found[2], found[3] = s0, s1, s2, s3


@njit(fastmath=FAST, error_model="numpy")
def add_four(n: int, target: int, times: int, first: int) -> None:
    """Add four rows that follow each other, each times a number, in place.

    Parameters
    ----------
    n : int
        Length of a row.
    target : int
        Address of the row that changes.
    times : int
        Address of the four numbers.
    first : int
        Address of the first of the four rows.
    """
    sums = floats_at(target, (n,))
    r0, r1, r2, r3 = _following(first, n)
    a0, a1, a2, a3 = _numbers(times)
    for i in range(n):
        sums[i] += a0 * r0[i] + a1 * r1[i] + a2 * r2[i] + a3 * r3[i]


@njit(fastmath=FAST, error_model="numpy")
def dot_group(n: int, models: int, rows: int, scores: int) -> None:
    """Compute the products of four rows, each with a model of its own.

    Parameters
    ----------
    n : int
        Length of a row.
    models, rows : int
        Where the addresses of the models and of the rows are.
    scores : int
        Address of the four results.
    """
    x0, x1, x2, x3 = _four(models, n)
    r0, r1, r2, r3 = _four(rows, n)
    s0 = s1 = s2 = s3 = np.float32(0.0)
    for i in range(n):
        s0 += x0[i] * r0[i]
        s1 += x1[i] * r1[i]
        s2 += x2[i] * r2[i]
        s3 += x3[i] * r3[i]
    found = floats_at(scores, (GROUP,))
    found[0], found[1], found[2], found[3] = s0, s1, s2, s3


@njit(fastmath=FAST, error_model="numpy")
def add_group(n: int, first: int, second: int, times: int, others: int, rows: int) -> None:
    """Add four rows, each times a number, to two sums.

    Parameters
    ----------
    n : int
        Length of a row.
    first, second : int
        Addresses of the sums.
    times, others : int
        Addresses of the four numbers for the first sum, and for the second.
    rows : int
        Where the addresses of the rows are.
    """
    sum_one, sum_two = floats_at(first, (n,)), floats_at(second, (n,))
    r0, r1, r2, r3 = _four(rows, n)
    a0, a1, a2, a3 = _numbers(times)
    b0, b1, b2, b3 = _numbers(others)
    for i in range(n):
        sum_one[i] += a0 * r0[i] + a1 * r1[i] + a2 * r2[i] + a3 * r3[i]
        sum_two[i] += b0 * r0[i] + b1 * r1[i] + b2 * r2[i] + b3 * r3[i]


@njit(error_model="numpy")
def _four(addresses: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The rows at four addresses."""
    a = words_at(addresses, GROUP)
    return floats_at(a[0], (n,)), floats_at(a[1], (n,)), floats_at(a[2], (n,)), floats_at(a[3], (n,))


@njit(error_model="numpy")
def _following(first: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Four rows that follow each other."""
    size = 4 * n
    return (
        floats_at(first, (n,)),
        floats_at(first + size, (n,)),
        floats_at(first + 2 * size, (n,)),
        floats_at(first + 3 * size, (n,)),
    )


@njit(error_model="numpy")
def _numbers(address: int) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    values = floats_at(address, (GROUP,))
    return values[0], values[1], values[2], values[3]
