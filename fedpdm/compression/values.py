"""Encode values as float32, float16, or int8 with one scale per vector.

Values that already hold noise may be rounded freely (post-processing). `rounded` computes in JAX the values that arrive, for
simulation; `pack_values` and `unpack_values` make and read the bytes. The two agree in every bit. For that, int8's step has at
most 17 significant bits: then code * step is exact in float32, and packing unpacked values gives the same bytes again.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from fedpdm.choices.words import VALUE_KINDS
from fedpdm.compression.refusal import WireError
from fedpdm.errors import ConfigError, DivergedError

__all__ = ["KINDS", "rounded", "chosen_kind", "pack_values", "unpack_values", "packed_length"]

KINDS: dict[str, int] = dict(zip(VALUE_KINDS, (4, 2, 1), strict=True))  # bytes per value
_CODES = 127  # largest int8 code; -128 is never used
_HALF_LARGEST = 65504.0  # largest finite float16
_HALF_STEP = 2.0**-11  # largest relative error of float16 ...
_HALF_SMALLEST = 2.0**-25  # ... but never a smaller absolute one
# The int8 step's range. Below, everything counts as zero: JAX flushes subnormal numbers to zero where NumPy does not, and
# this keeps clear of them. Above, values saturate: 127 steps are still finite.
_SMALLEST_STEP, _LARGEST_STEP = 2.0**-110, 2.0**120
_STEP_BITS = 7  # low bits of a float32's 24 that a step does not use, since a code needs 7


def _check(kind: str, *, auto: bool) -> None:
    allowed = [*KINDS, "auto"] if auto else list(KINDS)
    if kind not in allowed:
        way_out = "" if auto else ": see `chosen_kind` for the kind that auto chooses"
        raise ConfigError(f"Expected kind={kind!r} to be one of {', '.join(allowed)}{way_out}.")


def _step(largest: Array) -> Array:
    """The int8 step for the largest magnitude: a 127th of it to 17 significant bits, NaN if it is not finite."""
    # A product, since a compiler may replace a division by a constant.
    share = largest.astype(jnp.float32) * jnp.float32(1 / _CODES)
    bits = lax.bitcast_convert_type(share, jnp.int32)
    bits = (bits + (1 << (_STEP_BITS - 1))) >> _STEP_BITS << _STEP_BITS
    step = jnp.minimum(lax.bitcast_convert_type(bits, jnp.float32), _LARGEST_STEP)
    return jnp.where(jnp.isfinite(largest), jnp.where(step < _SMALLEST_STEP, 0.0, step), jnp.nan)


def _through_int8(values: Array, step: Array) -> Array:
    codes = jnp.rint(values / jnp.where(step > 0, step, 1.0))
    # By way of integers: there is no negative zero on the wire.
    codes = jnp.clip(jnp.where(step > 0, codes, 0.0), -_CODES, _CODES).astype(jnp.int8)
    return codes * step


def _through_float16(values: Array) -> Array:
    """Round to the nearest float16, halves to even; saturate. Written out, since XLA may drop a pair of conversions."""
    bits = lax.bitcast_convert_type(values, jnp.int32)
    exponent = jnp.clip((bits >> 23) & 0xFF, 127 - 14, 127 + 15)
    spacing = lax.bitcast_convert_type((exponent - 10) << 23, jnp.float32)
    nearest = jnp.clip(jnp.rint(values / spacing) * spacing, -_HALF_LARGEST, _HALF_LARGEST)
    return jnp.where(jnp.isfinite(values), nearest, values)


def _automatic(largest: Array, noise: ArrayLike) -> Array:
    """Bytes per value of the coarsest kind whose error is well below the noise."""
    sigma = jnp.asarray(noise, jnp.float32)
    half_error = jnp.maximum(largest * _HALF_STEP, _HALF_SMALLEST)
    fits_int8 = (sigma > 0) & (_step(largest) <= sigma / 2) & (largest <= _CODES * _LARGEST_STEP)
    fits_float16 = (sigma > 0) & (half_error <= sigma / 4) & (largest <= _HALF_LARGEST)
    return jnp.where(fits_int8, 1, jnp.where(fits_float16, 2, 4)).astype(jnp.int32)


def rounded(values: Array, mask: Array, kind: str, noise: ArrayLike) -> tuple[Array, Array]:
    """Compute the values as they arrive, zero where they are not sent. It can be traced and mapped.

    Parameters
    ----------
    values : Array
        One vector of any shape.
    mask : Array
        Bool, the coordinates that are sent.
    kind : str
        "float32", "float16" (magnitudes above 65504 saturate), "int8" (to the nearest multiple of a 127th of the largest
        magnitude; see the module for the last bits of that step), or "auto": the coarsest of the three whose error stays
        well below the noise, that is int8 if its step is at most noise/2, which adds at most 2.1 % to the noise's variance,
        else float16 if its largest error is at most noise/4, else float32.
    noise : float or Array
        The standard deviation of the noise that the values already hold; only "auto" looks at it. Zero gives float32.

    Returns
    -------
    tuple of Array
        float32 values, and an int32 scalar: 4, 2 or 1. A NaN or an infinity arrives as such (int8: everything is NaN).
    """
    _check(kind, auto=True)
    sent = jnp.where(mask, values.astype(jnp.float32), 0.0)
    if kind == "float32":
        return sent, jnp.int32(4)
    if kind == "float16":
        return _through_float16(sent), jnp.int32(2)
    largest = jnp.max(jnp.abs(sent))
    in_int8 = jnp.where(mask, _through_int8(sent, _step(largest)), 0.0)
    if kind == "int8":
        return in_int8, jnp.int32(1)
    size = _automatic(largest, noise)
    return jnp.where(size == 1, in_int8, jnp.where(size == 2, _through_float16(sent), sent)), size


def chosen_kind(values: np.ndarray, noise: float) -> str:
    """Find the kind that "auto" chooses.

    Parameters
    ----------
    values : ndarray
        The values to send.
    noise : float
        Standard deviation of the noise in them.

    Returns
    -------
    str
        A key of `KINDS`.
    """
    size = int(_automatic(jnp.max(jnp.abs(jnp.asarray(values, jnp.float32))), noise))
    return next(kind for kind, each in KINDS.items() if each == size)


def packed_length(count: int, kind: str) -> int:
    """Count the bytes that `pack_values` makes.

    Parameters
    ----------
    count : int
        Number of values.
    kind : str
        "float32", "float16" or "int8".

    Returns
    -------
    int
        Number of bytes.
    """
    return KINDS[kind] * count + (4 if kind == "int8" else 0)


def _pack_int8(values: np.ndarray) -> bytes:
    largest = np.max(np.abs(values), initial=np.float32(0))
    bits = (largest * np.float32(1 / _CODES)).view(np.int32)
    bits = (bits + (1 << (_STEP_BITS - 1))) >> _STEP_BITS << _STEP_BITS
    step = np.minimum(np.int32(bits).view(np.float32), np.float32(_LARGEST_STEP))
    if step < _SMALLEST_STEP:
        return bytes(4 + values.size)
    codes = np.clip(np.rint(values / step), -_CODES, _CODES)
    return step.astype("<f4").tobytes() + codes.astype(np.int8).tobytes()


def pack_values(values: np.ndarray, kind: str) -> bytes:
    """Encode finite values: little-endian floats, or a float32 step and one signed byte per value.

    Parameters
    ----------
    values : ndarray
        Finite numbers.
    kind : str
        "float32", "float16" or "int8".

    Returns
    -------
    bytes
        The encoded values.

    Raises
    ------
    DivergedError
        If a value is NaN or infinite.
    """
    _check(kind, auto=False)
    values = np.asarray(values, np.float32)
    if not np.all(np.isfinite(values)):
        raise DivergedError("Expected finite values to send, found NaN or infinity: lower the step size.")
    if kind == "int8":
        return _pack_int8(values)
    if kind == "float16":
        return np.clip(values, -_HALF_LARGEST, _HALF_LARGEST).astype("<f2").tobytes()
    return values.astype("<f4").tobytes()


def _unpack_int8(data: bytes) -> np.ndarray:
    step = np.frombuffer(data, "<f4", 1)
    _refuse_non_finite(step)
    codes = np.frombuffer(data, np.int8, offset=4)
    with np.errstate(over="ignore"):
        values = codes * step.astype(np.float32)
    _refuse_non_finite(values)
    # One test for everything that packing never makes: a negative or stray step, code -128, no code of magnitude 127.
    if _pack_int8(values) != data:
        raise WireError("kind", f"Expected int8 codes and a step that packing makes, got a step of {step[0]}.")
    return values


def _refuse_non_finite(values: np.ndarray) -> None:
    if np.any(np.isnan(values)):
        raise WireError("not-a-number", "Expected finite values, got NaN.")
    if np.any(np.isinf(values)):
        raise WireError("infinity", "Expected finite values, got an infinity.")


def unpack_values(data: bytes, count: int, kind: str) -> np.ndarray:
    """Decode values from untrusted bytes.

    Parameters
    ----------
    data : bytes
        Exactly the bytes of `pack_values`.
    count : int
        Number of values.
    kind : str
        "float32", "float16" or "int8".

    Returns
    -------
    ndarray
        float32 values.

    Raises
    ------
    WireError
        For all bytes but those that `pack_values` makes.
    """
    _check(kind, auto=False)
    if len(data) != packed_length(count, kind):
        raise WireError("length", f"Expected {packed_length(count, kind)} bytes for {count} {kind} values, got {len(data)}.")
    if kind == "int8":
        return _unpack_int8(bytes(data))
    values = np.frombuffer(data, "<f4" if kind == "float32" else "<f2").astype(np.float32)
    _refuse_non_finite(values)
    return values
