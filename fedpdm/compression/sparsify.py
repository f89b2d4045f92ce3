"""Choose the coordinates to send: the k largest or k random ones, always exactly k, without a sort.

The k-th largest key is found by bisection on the bits of the magnitudes: at most 32 counts over the vector, and as many more as
the index has bits to break ties. On a CPU, vectors of thousands of coordinates and more take a fortieth of the time of XLA's
stable sort, and the time hardly depends on k, unlike that of `lax.top_k` (`benchmarks/wire.py` measures it). For many clients
at once a kernel of machine code makes the same choice (`fedpdm.native.selection`).
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpdm.errors import ConfigError
from fedpdm.native import native_kernels

__all__ = ["coordinate_count", "top_k_mask", "random_mask"]

# XLA does not vectorise a reduction over one long axis, but it does vectorise a sum of that many rows
_ROWS, _MOST_ROWS = 8, 32
_NOT_A_NUMBER = 0x7F800001  # just above the bits of infinity


@functools.lru_cache
def coordinate_count(ratio: float, size: int) -> int:
    """Compute how many coordinates are sent: floor(ratio * size), at least 1.

    The ratio counts as the decimal number that it is written as, so that rounding never loses a coordinate.

    Parameters
    ----------
    ratio : float
        Share of the coordinates, in (0, 1].
    size : int
        Number of coordinates.

    Returns
    -------
    int
        The count k.

    Examples
    --------
    >>> coordinate_count(0.29, 100), coordinate_count(0.1, 7850), coordinate_count(0.001, 162)
    (29, 785, 1)
    """
    if not 0 < ratio <= 1:
        raise ConfigError(f"Expected ratio={ratio} in (0, 1]: 1 keeps everything.")
    if size < 1:
        raise ConfigError(f"Expected size={size} of at least 1.")
    return max(1, math.floor(Fraction(str(float(ratio))) * size))


def _check(k: int, size: int) -> None:
    if not 1 <= k <= size:
        raise ConfigError(f"Expected k={k} from 1 to the number of coordinates, {size}: see `coordinate_count`.")


def _count(rows: list[Array]) -> Array:
    total = rows[0].astype(jnp.int32)
    for row in rows[1:]:
        total = total + row
    return jnp.sum(total, dtype=jnp.int32)


def _first(low: Array, high: Array, reached: Callable[[Array], Array]) -> Array:
    """The smallest end in [low, high] that has been `reached`, given that high has."""

    def step(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = reached(middle)
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    return lax.while_loop(lambda bounds: bounds[0] < bounds[1], step, (low, high))[1]


def _threshold(rows: Array, k: int, size: int) -> tuple[Array, Array, Array]:
    """A key t, the number of keys >= t, which is at least k, and the number of keys > t, which is less than k.

    If just k keys are >= t, then t need not be a key itself and the last number is not known (0 is returned).
    """

    def unfinished(state: tuple[Array, Array, Array, Array]) -> Array:
        low, high, at_low, _ = state
        return (high - low > 1) & (at_low != k)

    def step(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        low, high, at_low, at_high = state
        # Ask for 1, all non-zeros, first: that ends the search at once for a sparse vector with fewer than k of them.
        middle = jnp.where(low == 0, 1, low + (high - low) // 2)
        count = _count([row >= middle for row in rows])
        enough = count >= k
        return (
            jnp.where(enough, middle, low),
            jnp.where(enough, high, middle),
            jnp.where(enough, count, at_low),
            jnp.where(enough, at_high, count),
        )

    start = (jnp.int32(0), jnp.int32(_NOT_A_NUMBER + 1), jnp.int32(size), jnp.int32(0))
    low, _, at_low, at_high = lax.while_loop(unfinished, step, start)
    return low, at_low, at_high


@functools.partial(jax.jit, static_argnames="k")
def _largest(keys: Array, k: int) -> Array:
    """The k largest of the int32 `keys` from 0 to _NOT_A_NUMBER; ties by lower index."""
    size, shape = keys.size, keys.shape
    if len(shape) == 2 and _ROWS <= shape[0] <= _MOST_ROWS:  # as it is: a change of shape costs XLA a division per key
        rows = keys
    else:
        width = -(-size // _ROWS)
        rows = jnp.pad(keys.ravel(), (0, _ROWS * width - size), constant_values=-1).reshape(_ROWS, width)
    width = rows.shape[1]
    low, at_low, at_high = _threshold(rows, k, size)
    column = lax.iota(jnp.int32, width)

    def enough_ties(end: Array) -> Array:
        ties = _count([(row == low) & (column < end - i * width) for i, row in enumerate(rows)])
        return ties >= k - at_high

    # Nothing to search for without surplus ties: the loop is not entered.
    start = jnp.where(at_low == k, size, 0).astype(jnp.int32)
    end = _first(start, jnp.full_like(start, size), enough_ties)
    place = column + width * lax.iota(jnp.int32, len(rows))[:, None]
    chosen = (rows > low) | ((rows == low) & (place < end))
    return chosen if rows is keys else chosen.ravel()[:size].reshape(shape)


@functools.cache
def _mappable(k: int) -> Callable[[Array], Array]:
    """`_largest` for this k. Mapped over clients it becomes one call of the kernel, if that can be used."""

    @jax.custom_batching.custom_vmap
    def choose(keys: Array) -> Array:
        return _largest(keys, k)

    @choose.def_vmap
    def _(axis_size: int, batched: list[bool], keys: Array) -> tuple[Array, bool]:
        if native_kernels() and jax.default_backend() == "cpu":
            from fedpdm.native.selection import largest

            return largest(keys, k), True
        return jax.vmap(lambda own: _largest(own, k))(keys), True

    return choose


def top_k_mask(values: Array, k: int) -> Array:
    """Mark exactly k coordinates: the largest magnitudes, ties by lower index. It can be traced and mapped.

    Parameters
    ----------
    values : Array
        Of any shape; it counts flattened, and as float32. NaN counts as the largest.
    k : int
        Static, from 1 to the number of coordinates.

    Returns
    -------
    Array
        Bool, of the shape of `values`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> top_k_mask(jnp.array([1.0, -3.0, 0.5, 1.0]), 2).tolist()
    [True, True, False, False]
    """
    _check(k, values.size)
    # Without the sign bit the bits of a float are ordered like its magnitude.
    bits = lax.bitcast_convert_type(values.astype(jnp.float32), jnp.int32) & 0x7FFFFFFF
    return _mappable(k)(jnp.minimum(bits, _NOT_A_NUMBER))


def random_mask(key: Array, shape: tuple[int, ...], k: int) -> Array:
    """Mark a uniformly random set of exactly k coordinates. The same key gives the same set everywhere.

    The set holds the k largest of random 30-bit numbers. Equal numbers at the edge go to the lower index, which changes the
    chance of a coordinate by less than one in 2^30.

    Parameters
    ----------
    key : Array
        JAX random key.
    shape : tuple of int
        Shape of the mask.
    k : int
        Static, from 1 to the number of coordinates.

    Returns
    -------
    Array
        Bool, of this shape.

    Examples
    --------
    >>> import jax
    >>> int(random_mask(jax.random.key(0), (3, 5), 4).sum())
    4
    """
    size = math.prod(shape)
    _check(k, size)
    numbers = jax.random.bits(key, (size,), jnp.uint32) >> 2
    return _mappable(k)(numbers.astype(jnp.int32)).reshape(shape)
