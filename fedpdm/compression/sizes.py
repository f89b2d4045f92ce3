"""Compute the length of a message in JAX, without making the message: the simulator counts real bytes with it."""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fedpdm.compression.indices import code_lengths, rice_parameter

__all__ = ["HEADER_BYTES", "index_bytes", "part_bytes", "message_bytes"]

HEADER_BYTES = 12
_WORD = 32  # coordinates of a word are scanned one by one; the words in parallel


def _quotients(flags: Array, parameter: Array) -> Array:
    """The sum of gap >> parameter over the gaps before each True."""
    size = flags.size
    words = -(-size // _WORD)
    # One row per place in a word. A scan over all coordinates would be far slower than one over the words.
    columns = jnp.pad(flags, (0, words * _WORD - size)).reshape(words, _WORD).T
    index = lax.iota(jnp.int32, words * _WORD).reshape(words, _WORD).T
    last_in_word = jnp.max(jnp.where(columns, index, -1), axis=0)
    last = jnp.concatenate([jnp.full(1, -1, jnp.int32), lax.cummax(last_in_word)[:-1]])

    def one_place(carry: tuple[Array, Array], place: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        (last, total), (flag, position) = carry, place
        total = total + jnp.where(flag, (position - last - 1) >> parameter, 0)
        return (jnp.where(flag, position, last), total), None

    (_, total), _ = lax.scan(one_place, (last, jnp.zeros(words, jnp.int32)), (columns, index))
    return jnp.sum(total)


def _number_bytes(number: Array | int) -> Array:
    """Bytes of a number that is written seven bits to a byte."""
    whole = jnp.asarray(number, jnp.int32)
    shifts = jnp.array([7, 14, 21, 28], jnp.int32)
    return 1 + jnp.sum(whole >> shifts > 0, dtype=jnp.int32)


def index_bytes(mask: Array) -> Array:
    """Count the bytes of the positions in a mask, in their shortest code.

    Parameters
    ----------
    mask : Array
        Bool, of any shape and at most 10^8 coordinates; at least one is True.

    Returns
    -------
    Array
        int32 scalar.
    """
    flags = mask.ravel()
    count = jnp.sum(flags, dtype=jnp.int32)
    rare = jnp.minimum(count, flags.size - count)
    quotients = _quotients(flags ^ (rare < count), rice_parameter(flags.size, rare))
    bitmap, packed, rice = code_lengths(flags.size, rare, quotients)
    return jnp.minimum(bitmap, jnp.minimum(packed, rice))


def part_bytes(mask: Array, bytes_per_value: ArrayLike, shared: bool = False) -> Array:
    """Count the bytes of one vector in a message: exactly what `fedpdm.compression.wire.encode` makes.

    Parameters
    ----------
    mask : Array
        Bool, of any shape and at most 10^8 coordinates; at least one is True.
    bytes_per_value : int or Array
        As `fedpdm.compression.values.rounded` returns it.
    shared : bool
        Static: both sides know the mask, no indices are sent.

    Returns
    -------
    Array
        int32 scalar.
    """
    each = jnp.asarray(bytes_per_value, jnp.int32)
    count = jnp.sum(mask, dtype=jnp.int32)
    values = each * count + jnp.where(each == 1, 4, 0)
    indices = jnp.int32(0) if shared else index_bytes(mask)
    return _number_bytes(mask.size) + _number_bytes(count) + 1 + indices + values


def message_bytes(mask: Array, bytes_per_value: ArrayLike, shared: bool = False) -> Array:
    """Count the bytes of a message with one vector; with more, add the `part_bytes` of each to HEADER_BYTES.

    Parameters
    ----------
    mask : Array
        Bool, of any shape and at most 10^8 coordinates; at least one is True.
    bytes_per_value : int or Array
        As `fedpdm.compression.values.rounded` returns it.
    shared : bool
        Static: both sides know the mask, no indices are sent.

    Returns
    -------
    Array
        int32 scalar.
    """
    return HEADER_BYTES + part_bytes(mask, bytes_per_value, shared)
