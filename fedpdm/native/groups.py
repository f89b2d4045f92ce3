"""Four examples at once. Rows are passed by address, as in `fedpdm.native.vectors`."""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import numpy as np
from numba import njit

from fedpdm.native.bridge import floats_at, words_at
from fedpdm.native.vectors import FAST, FUSED

__all__ = ["GROUP", "add_four", "add_four_to_two", "add_group", "dot_four", "dot_four_with_two", "dot_group"]

GROUP = 4


@njit(fastmath=FAST, error_model="numpy")
def dot_four(size: int, x: int, first: int, apart: int, scores: int) -> None:
    """Add the products of a row with four others to four numbers.

    Parameters
    ----------
    size : int
        Length of a row, or of the part that is multiplied.
    x : int
        Address of the row.
    first, apart : int
        Address of the first of the four, and the bytes from each to the next.
    scores : int
        Address of the four numbers.
    """
    model = floats_at(x, (size,))
    r0, r1, r2, r3 = _following(first, apart, size)
    s0 = s1 = s2 = s3 = np.float32(0.0)
    for i in range(size):
        s0 += model[i] * r0[i]
        s1 += model[i] * r1[i]
        s2 += model[i] * r2[i]
        s3 += model[i] * r3[i]
    _increase(scores, s0, s1, s2, s3)


@njit(fastmath=FAST, error_model="numpy")
def dot_four_with_two(size: int, x: int, x_apart: int, first: int, apart: int, scores: int, scores_apart: int) -> None:
    """Add the products of two rows with four others to twice four numbers.

    Parameters
    ----------
    size : int
        Length of a row, or of the part that is multiplied.
    x, x_apart : int
        Address of the first of the two rows, and the bytes from there to the second.
    first, apart : int
        Address of the first of the four, and the bytes from each to the next.
    scores, scores_apart : int
        Address of the four numbers of the first row, and the bytes from there to those of the second.
    """
    one, two = floats_at(x, (size,)), floats_at(x + x_apart, (size,))
    r0, r1, r2, r3 = _following(first, apart, size)
    s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = np.float32(0.0)
    for i in range(size):
        s0 += one[i] * r0[i]
        s1 += one[i] * r1[i]
        s2 += one[i] * r2[i]
        s3 += one[i] * r3[i]
        t0 += two[i] * r0[i]
        t1 += two[i] * r1[i]
        t2 += two[i] * r2[i]
        t3 += two[i] * r3[i]
    _increase(scores, s0, s1, s2, s3)
    _increase(scores + scores_apart, t0, t1, t2, t3)


@njit(fastmath=FUSED, error_model="numpy")
def add_four(size: int, target: int, times: int, first: int, apart: int) -> None:
    """Add four rows, each times a number, to a row.

    Parameters
    ----------
    size : int
        Length of a row, or of the part that is added.
    target : int
        Address of the row that changes.
    times : int
        Address of the four numbers.
    first, apart : int
        Address of the first of the four rows, and the bytes from each to the next.
    """
    sums = floats_at(target, (size,))
    r0, r1, r2, r3 = _following(first, apart, size)
    a0, a1, a2, a3 = _numbers(times)
    for i in range(size):
        sums[i] = sums[i] + a0 * r0[i] + a1 * r1[i] + a2 * r2[i] + a3 * r3[i]


@njit(fastmath=FUSED, error_model="numpy")
def add_four_to_two(size: int, target: int, target_apart: int, times: int, times_apart: int, first: int, apart: int) -> None:
    """Add four rows, each times a number, to two rows.

    Parameters
    ----------
    size : int
        Length of a row, or of the part that is added.
    target, target_apart : int
        Address of the first of the two rows that change, and the bytes from there to the second.
    times, times_apart : int
        Address of the four numbers for the first, and the bytes from there to those for the second.
    first, apart : int
        Address of the first of the four rows, and the bytes from each to the next.
    """
    sum_one, sum_two = floats_at(target, (size,)), floats_at(target + target_apart, (size,))
    r0, r1, r2, r3 = _following(first, apart, size)
    a0, a1, a2, a3 = _numbers(times)
    b0, b1, b2, b3 = _numbers(times + times_apart)
    for i in range(size):
        v0, v1, v2, v3 = r0[i], r1[i], r2[i], r3[i]
        sum_one[i] = sum_one[i] + a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
        sum_two[i] = sum_two[i] + b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3


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
def _following(first: int, apart: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Four rows, the same number of bytes apart."""
    return (
        floats_at(first, (size,)),
        floats_at(first + apart, (size,)),
        floats_at(first + 2 * apart, (size,)),
        floats_at(first + 3 * apart, (size,)),
    )


@njit(error_model="numpy")
def _increase(place: int, a: np.float32, b: np.float32, c: np.float32, d: np.float32) -> None:
    """Add to four numbers that follow each other."""
    found = floats_at(place, (GROUP,))
    found[0] += a
    found[1] += b
    found[2] += c
    found[3] += d


@njit(error_model="numpy")
def _numbers(address: int) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    values = floats_at(address, (GROUP,))
    return values[0], values[1], values[2], values[3]
