"""JAX's own random numbers from a program without loops: keys bit for bit, normal numbers up to rounding.

On a CPU, JAX compiles its generator Threefry-2x32 to a loop that goes through memory in each of its five turns. Written out,
XLA turns a draw, and what is computed from it, into a single pass. A round draws a few keys for every client, so this matters
even for small models. Keys of other generators are left to JAX.
"""

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["fold_in", "normal", "split"]

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA
Pair = tuple[Array, Array]


def fold_in(key: Array, number: Array | int) -> Array:
    """Derive a key from a key and a number: `jax.random.fold_in`.

    Parameters
    ----------
    key : Array
        A JAX key.
    number : int or Array
        A whole number.

    Returns
    -------
    Array
        The key.
    """
    if not _written_out(key):
        return jax.random.fold_in(key, number)
    low = jnp.asarray(number).astype(jnp.uint32)
    return _wrapped(key, _threefry(_words(key), (jnp.zeros_like(low), low)))


def split(key: Array, count: int) -> Array:
    """Derive several keys from one: `jax.random.split`.

    Parameters
    ----------
    key : Array
        A JAX key.
    count : int
        How many.

    Returns
    -------
    Array
        [count] keys.
    """
    if not _written_out(key):
        return jax.random.split(key, count)
    return _wrapped(key, _threefry(_words(key), _counter((count,))))


def normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw standard normal numbers: `jax.random.normal` in float32.

    Parameters
    ----------
    key : Array
        A JAX key.
    shape : tuple of int
        Their shape.

    Returns
    -------
    Array
        The numbers; they agree with JAX's up to rounding, and are the same where both are compiled alike.
    """
    if not _written_out(key):
        return jax.random.normal(key, shape, jnp.float32)
    high, low = _threefry(_words(key), _counter(shape))
    # 23 random bits behind the exponent of 1: a number in [1, 2)
    unit = jax.lax.bitcast_convert_type(((high ^ low) >> jnp.uint32(9)) | jnp.uint32(0x3F800000), jnp.float32) - 1.0
    least = jnp.nextafter(jnp.float32(-1.0), jnp.float32(0.0))
    return jnp.float32(2**0.5) * jax.lax.erf_inv(jnp.maximum(least, unit * (1.0 - least) + least))


def _written_out(key: Array) -> bool:
    known = str(jax.random.key_impl(key)) == "threefry2x32"
    return known and bool(jax.config.jax_threefry_partitionable)  # pyright: ignore[reportAttributeAccessIssue]


def _words(key: Array) -> Pair:
    data = jax.random.key_data(key)
    return data[..., 0], data[..., 1]


def _wrapped(key: Array, words: Pair) -> Array:
    return jax.random.wrap_key_data(jnp.stack(words, axis=-1), impl=jax.random.key_impl(key))


def _counter(shape: tuple[int, ...]) -> Pair:
    """The numbers 0, 1, ... in the order of memory, in two words each."""
    low = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        low = low + jnp.uint32(stride) * jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        stride *= shape[axis]
    if stride > 2**32:
        raise ValueError(f"Expected at most 2^32 numbers from one key, got {stride}.")
    return jnp.zeros(shape, jnp.uint32), low


@jax.jit  # one program, where a draw is not part of another one
def _threefry(key: Pair, counter: Pair) -> Pair:
    """Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011)."""
    words = *key, key[0] ^ key[1] ^ jnp.uint32(PARITY)
    x, y = counter[0] + words[0], counter[1] + words[1]
    for turn in range(5):
        for by in ROTATIONS[turn % 2]:
            x = x + y
            y = ((y << jnp.uint32(by)) | (y >> jnp.uint32(32 - by))) ^ x
        x = x + words[(turn + 1) % 3]
        y = y + words[(turn + 2) % 3] + jnp.uint32(turn + 1)
    return x, y
