"""Encode the positions of the sent coordinates.

A set of k out of d positions is encoded in the code that takes the fewest bytes:

- nothing, if every coordinate is sent (dense) or both sides know the set already (shared);
- bitmap: a bit per coordinate;
- packed: the positions, with as many bits each as the largest possible one needs;
- rice: the gaps between the positions, Golomb-Rice coded with a parameter that depends on d and k alone: all quotients in
  unary (zeros, then a one), then all remainders, in one bit stream. On random sets this is 1 to 5 % above log2 C(d,k).

Packed and rice encode the set or its complement, whichever is smaller; the encoded one is called "rare". The last byte is
filled up with zero bits.
"""

import math
from typing import TypeVar

import numpy as np
from jax import Array

from fedpdm.compression.refusal import WireError

__all__ = [
    "DENSE",
    "SHARED",
    "BITMAP",
    "PACKED",
    "RICE",
    "rice_parameter",
    "code_lengths",
    "encode_indices",
    "decode_indices",
    "entropy_bits",
]

DENSE, SHARED, BITMAP, PACKED, RICE = range(5)
Whole = TypeVar("Whole", int, Array)  # the same integer arithmetic runs on the host and, traced, in JAX


def entropy_bits(dimension: int, count: int) -> float:
    """Compute log2 C(d, k), the least average number of bits for a set of k out of d positions.

    Parameters
    ----------
    dimension : int
        Number of coordinates d.
    count : int
        Size of the set k.

    Returns
    -------
    float
        Number of bits.
    """
    logarithms = math.lgamma(dimension + 1) - math.lgamma(count + 1) - math.lgamma(dimension - count + 1)
    return max(0.0, logarithms / math.log(2))


def rice_parameter(dimension: int, rare: Whole) -> Whole:
    """Choose how many low bits of a gap are written unchanged.

    The choice is optimal for random positions, except for almost empty and almost full sets. One more bit pays while the chance
    q^(2^r) of a gap of at least 2^r, with q = 1 - rare/d, is above the golden ratio 0.618. With ln(1/q) about rare/(d - rare/2)
    that is 2^(r+1) rare < 0.962 (d - rare/2); the code uses 0.969, which needs only shifts.

    Parameters
    ----------
    dimension : int
        Number of coordinates d.
    rare : int or Array
        Size of the smaller one of the set and its complement.

    Returns
    -------
    int or Array
        The number of bits, of the type of `rare`.
    """
    middle = dimension - rare // 2
    limit = middle - (middle >> 5) - 1
    bits = rare * 0
    for shift in range(1, dimension.bit_length()):
        bits = bits + (rare <= limit >> shift)
    return bits


def _width(dimension: int) -> int:
    return (dimension - 1).bit_length()


def code_lengths(dimension: int, rare: Whole, quotients: Whole) -> tuple[int, Whole, Whole]:
    """Compute the lengths of the three codes for a set of positions.

    Parameters
    ----------
    dimension : int
        Number of coordinates d.
    rare : int or Array
        Size of the smaller one of the set and its complement.
    quotients : int or Array
        Sum of the Rice quotients of the gaps.

    Returns
    -------
    tuple
        Bytes of the bitmap, the packed and the Rice code.
    """
    width = _width(dimension)
    packed = rare // 8 * width + (rare % 8 * width + 7) // 8  # in this order int32 does not overflow
    rice = (rare * (1 + rice_parameter(dimension, rare)) + quotients + 7) // 8
    return (dimension + 7) // 8, packed, rice


def _gaps(positions: np.ndarray) -> np.ndarray:
    return np.diff(positions, prepend=-1) - 1


def _complement(positions: np.ndarray, dimension: int) -> np.ndarray:
    others = np.ones(dimension, bool)
    others[positions] = False
    return np.flatnonzero(others)


def _smaller_side(positions: np.ndarray, dimension: int) -> np.ndarray:
    return _complement(positions, dimension) if 2 * positions.size > dimension else positions


def _choose(dimension: int, rare: np.ndarray) -> int:
    """Return the shortest coding, the simplest one of equals. The receiver requires it: one set has one code."""
    if not rare.size:
        return DENSE
    quotients = int(np.sum(_gaps(rare) >> rice_parameter(dimension, rare.size)))
    lengths = code_lengths(dimension, rare.size, quotients)
    return (BITMAP, PACKED, RICE)[lengths.index(min(lengths))]


def _low_bits(numbers: np.ndarray, width: int) -> np.ndarray:
    """Return the `width` low bits of every number, highest first, in one flat array."""
    shifts = np.arange(width - 1, -1, -1)
    return (numbers[:, None] >> shifts & 1).astype(np.uint8).ravel()


def _from_bits(bits: np.ndarray, count: int, width: int) -> np.ndarray:
    return bits.reshape(count, width) @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64))


def _rice_bits(positions: np.ndarray, dimension: int) -> np.ndarray:
    parameter = rice_parameter(dimension, positions.size)
    gaps = _gaps(positions)
    ends = np.cumsum((gaps >> parameter) + 1)
    unary = np.zeros(ends[-1], np.uint8)
    unary[ends - 1] = 1
    return np.concatenate([unary, _low_bits(gaps, parameter)])


def encode_indices(positions: np.ndarray, dimension: int) -> tuple[int, bytes]:
    """Encode a set of positions in its shortest code.

    Parameters
    ----------
    positions : ndarray
        Sorted positions, at least one.
    dimension : int
        Number of coordinates d.

    Returns
    -------
    tuple
        The coding (DENSE, BITMAP, PACKED or RICE) and the bytes.
    """
    rare = _smaller_side(positions, dimension)
    coding = _choose(dimension, rare)
    if coding == DENSE:
        return coding, b""
    if coding == BITMAP:
        bits = np.zeros(dimension, np.uint8)
        bits[positions] = 1
    elif coding == PACKED:
        bits = _low_bits(rare, _width(dimension))
    else:
        bits = _rice_bits(rare, dimension)
    return coding, np.packbits(bits).tobytes()


def _bits(data: memoryview, count: int) -> np.ndarray:
    """Return the first `count` bits, after a check that there are enough."""
    if count > 8 * len(data):
        raise WireError("length", f"Expected at least {count} bits of indices, {8 * len(data)} are left.")
    return np.unpackbits(np.frombuffer(data[: (count + 7) // 8], np.uint8))[:count]


def _read_rice(data: memoryview, dimension: int, rare: int) -> tuple[np.ndarray, int]:
    """Return the positions, and how many bits they took."""
    parameter = rice_parameter(dimension, rare)
    longest = rare * (1 + parameter) + (dimension - rare >> parameter)
    bits = _bits(data, min(longest, 8 * len(data)))
    ends = np.flatnonzero(bits)[:rare]
    if ends.size < rare:
        raise WireError("index", f"Expected {rare} rice codes, found {ends.size}.")
    used = int(ends[-1]) + 1 + rare * parameter
    remainders = _from_bits(_bits(data, used)[ends[-1] + 1 :], rare, parameter)
    return np.cumsum((_gaps(ends) << parameter) + remainders + 1) - 1, used


def _read_rare(coding: int, data: memoryview, dimension: int, rare: int) -> tuple[np.ndarray, int]:
    if coding == RICE:
        positions, used = _read_rice(data, dimension, rare)
    else:
        used = rare * _width(dimension)
        positions = _from_bits(_bits(data, used), rare, _width(dimension))
    if positions[-1] >= dimension or np.any(positions[1:] <= positions[:-1]):
        raise WireError("index", f"Expected increasing indices below {dimension}, got others.")
    return positions, used


def decode_indices(coding: int, data: memoryview, dimension: int, count: int) -> tuple[np.ndarray, int]:
    """Decode a set of positions from untrusted bytes.

    It allocates no more memory than `data` or `dimension` justify.

    Parameters
    ----------
    coding : int
        BITMAP, PACKED or RICE.
    data : memoryview
        The bytes, and all bytes after them.
    dimension : int
        Number of coordinates d.
    count : int
        Size of the set.

    Returns
    -------
    tuple
        The sorted positions, and how many bytes of `data` they took.

    Raises
    ------
    WireError
        For all bytes but those that `encode_indices` makes.
    """
    rare = min(count, dimension - count)
    if rare < 1:
        raise WireError("coding", f"Expected no indices with {count} of {dimension} coordinates sent.")
    if coding == BITMAP:
        used = dimension
        positions = np.flatnonzero(_bits(data, used))
        if positions.size != count:
            raise WireError("index", f"Expected {count} bits set in the bitmap, got {positions.size}.")
    else:
        positions, used = _read_rare(coding, data, dimension, rare)
        positions = _complement(positions, dimension) if 2 * count > dimension else positions
    length = (used + 7) // 8
    if used % 8 and data[length - 1] & (0xFF >> used % 8):
        raise WireError("index", "Expected zero bits to fill up the last byte of the indices, got others.")
    if (best := _choose(dimension, _smaller_side(positions, dimension))) != coding:
        raise WireError("coding", f"Expected the shortest coding of the indices, {best}, got {coding}.")
    return positions, length
