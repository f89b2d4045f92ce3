"""The order in which a client's rows are visited: JAX's own random numbers, bit for bit, and their sort."""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import numpy as np
from numba import njit

__all__ = ["DRAW_BITS", "draw", "order_of"]

DRAW_BITS = 23


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
def draw(key: np.ndarray, draws: np.ndarray) -> None:
    """Draw `jax.random.uniform` with a threefry key, times 2^23: the counter-based generator Threefry-2x32 with 20 rounds.

    Parameters
    ----------
    key : ndarray
        The two words of the key.
    draws : ndarray
        Takes the whole numbers.
    """
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
def order_of(draws: np.ndarray, order: np.ndarray, starts: np.ndarray) -> None:
    """Compute the stable argsort of the draws, which are uniform in 0 ... 2^23 - 1: by buckets of about one each.

    Parameters
    ----------
    draws : ndarray
        The whole numbers.
    order : ndarray
        Takes the order.
    starts : ndarray
        Room for one number more than there are draws.
    """
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
