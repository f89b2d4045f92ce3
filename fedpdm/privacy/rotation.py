r"""A public rotation of a vector, which spreads it evenly over its coordinates before it is rounded to few bits.

With $m$ the largest power of two up to the length and $H$ the normalised Walsh-Hadamard matrix of that size,
$R = (I \oplus H)\,D_2\,(H \oplus I)\,D_1$: signs, $H$ on the first m coordinates, signs, $H$ on the last m. Each factor is
orthogonal, so $R$ keeps every norm and distance: no sensitivity changes. The signs $D_1, D_2$ are a public function of the
length. Over random signs a coordinate of $R v$ is sub-Gaussian with variance at most $\|v\|^2/m$, so that the largest one is a
few times $\|v\|/\sqrt m$, whatever v is: a modulus need not leave room for all of v in one coordinate. A vector that was chosen
to spoil this wraps, which costs accuracy, never privacy.
"""

import hashlib
import math
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["block", "rotate", "rotate_back"]

DOMAIN = b"fedpdm rotation 1"


def block(length: int) -> int:
    """Return the largest power of two up to the length: the rotation spreads each coordinate over at least this many.

    Parameters
    ----------
    length
        Of the vector, at least 1.

    Returns
    -------
    int
        The power of two.

    Examples
    --------
    >>> [block(n) for n in (1, 2, 2010, 39700)]
    [1, 2, 1024, 32768]
    """
    return 1 << (length.bit_length() - 1)


def rotate(vector: Any) -> Any:
    """Compute R v.

    Parameters
    ----------
    vector
        A flat NumPy or JAX array.

    Returns
    -------
    array
        As long as the vector.

    Examples
    --------
    >>> v = np.array([3.0, 0.0, 4.0])
    >>> bool(np.isclose(np.linalg.norm(rotate(v)), 5.0)), bool(np.allclose(rotate_back(rotate(v)), v))
    (True, True)
    """
    first, second = _signs(len(vector))
    size = block(len(vector))
    return _at_end(_at_start(vector * first, size) * second, size)


def rotate_back(vector: Any) -> Any:
    """Undo `rotate`.

    Parameters
    ----------
    vector
        R v, flat.

    Returns
    -------
    array
        v.
    """
    first, second = _signs(len(vector))
    size = block(len(vector))
    return _at_start(_at_end(vector, size) * second, size) * first


@lru_cache(maxsize=32)
def _signs(length: int) -> tuple[np.ndarray, np.ndarray]:
    stream = hashlib.shake_256(b"%s %d" % (DOMAIN, length)).digest(-(-2 * length // 8))
    bits = np.unpackbits(np.frombuffer(stream, np.uint8))[: 2 * length].astype(np.float32)
    return tuple((1 - 2 * bits).reshape(2, length))  # type: ignore[return-value]


def _at_start(vector: Any, size: int) -> Any:
    return _library(vector).concatenate([_hadamard(vector[:size]), vector[size:]])


def _at_end(vector: Any, size: int) -> Any:
    return _library(vector).concatenate([vector[:-size], _hadamard(vector[-size:])])


def _hadamard(vector: Any) -> Any:
    size, half = len(vector), 1
    while half < size:
        pairs = vector.reshape(-1, 2, half)
        vector = _library(vector).stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(size)
        half *= 2
    return vector / math.sqrt(size)


def _library(array: Any) -> Any:
    return jnp if isinstance(array, jax.Array) else np
