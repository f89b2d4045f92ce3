"""Compute the length of a message in JAX, without making the message: the simulator counts real bytes with it."""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fedpdm.compression.indices import code_lengths, rice_parameter

__all__ = ["HEADER_BYTES", "index_bytes", "part_bytes", "value_bytes", "message_bytes"]

HEADER_BYTES = 12
_WORD = 32  # coordinates whose flags fit into a word: the nearest one below another is found without a scan
_LONG = 256  # coordinates: shorter rows are not filled up


def _quotients(flags: Array, parameter: Array) -> Array:
    """The sum of gap >> parameter over the gaps before each True."""
    # Rows are filled up to whole words one by one: XLA is slow at other shapes of the whole.
    table = flags.reshape(-1, flags.shape[-1]) if flags.ndim > 1 and flags.shape[-1] >= _LONG else flags.reshape(1, -1)
    rows, width = table.shape
    words = -(-width // _WORD)
    grid = jnp.pad(table, ((0, 0), (0, words * _WORD - width))).reshape(rows, words, _WORD)
    place = lax.iota(jnp.int32, _WORD)
    start = width * lax.iota(jnp.int32, rows)[:, None] + _WORD * lax.iota(jnp.int32, words)
    word = jnp.sum(grid.astype(jnp.uint32) << place.astype(jnp.uint32), axis=2, dtype=jnp.uint32)
    last_in_word = jnp.where(word > 0, start + _highest(word), -1).ravel()
    before = jnp.concatenate([jnp.full(1, -1, jnp.int32), lax.cummax(last_in_word)[:-1]]).reshape(rows, words, 1)
    lower = word[..., None] & ((jnp.uint32(1) << place.astype(jnp.uint32)) - 1)
    last = jnp.where(lower > 0, start[..., None] + _highest(lower), before)
    gaps = start[..., None] + place - last - 1
    return jnp.sum(jnp.where(grid, gaps >> parameter, 0))


def _highest(word: Array) -> Array:
    """The place of the highest bit; -1 if there is none."""
    return _WORD - 1 - lax.clz(word).astype(jnp.int32)


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
    count = jnp.sum(mask, dtype=jnp.int32)
    rare = jnp.minimum(count, mask.size - count)
    quotients = _quotients(mask ^ (rare < count), rice_parameter(mask.size, rare))
    bitmap, packed, rice = code_lengths(mask.size, rare, quotients)
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
    return value_bytes(mask, bytes_per_value) + (jnp.int32(0) if shared else index_bytes(mask))


def value_bytes(mask: Array, bytes_per_value: ArrayLike) -> Array:
    """Count the bytes of one vector in a message without its indices.

    Parameters
    ----------
    mask : Array
        Bool, of any shape and at most 10^8 coordinates; at least one is True.
    bytes_per_value : int or Array
        As `fedpdm.compression.values.rounded` returns it.

    Returns
    -------
    Array
        int32 scalar.
    """
    each = jnp.asarray(bytes_per_value, jnp.int32)
    count = jnp.sum(mask, dtype=jnp.int32)
    return _number_bytes(mask.size) + _number_bytes(count) + 1 + each * count + jnp.where(each == 1, 4, 0)


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
