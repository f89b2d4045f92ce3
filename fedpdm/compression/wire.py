"""Encode messages as bytes, and decode messages from anybody.

    header   magic "fp" | version (1 byte) | number of vectors (1) | payload length (4) | CRC-32 of all the rest (4)
    vector   dimension | count (both seven bits to a byte) | coding + 8 * kind (1 byte) | indices | values

Numbers are little-endian. `indices` and `values` describe the last two. There is exactly one message for given vectors and
kinds. Bytes from outside are not trusted: `decode` accepts only what `encode` would have made. It compares every claim with the
bytes that are there before it allocates memory, and raises WireError otherwise. The checksum detects accidents; it does not
authenticate the sender.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpdm.compression.indices import DENSE, RICE, SHARED, decode_indices, encode_indices
from fedpdm.compression.refusal import Reason, WireError
from fedpdm.compression.sizes import HEADER_BYTES
from fedpdm.compression.values import KINDS, pack_values, packed_length, unpack_values
from fedpdm.errors import ConfigError

__all__ = ["HEADER_BYTES", "Part", "WireError", "encode", "decode", "make_part", "spread"]

_MAGIC = b"fp"
_VERSION = 1
_HEADER = struct.Struct("<2sBBI")  # the checksum follows
_KINDS = tuple(KINDS)  # the order is part of the format
_LARGEST_NUMBER = 2**32 - 1


class Part(NamedTuple):
    """One vector of a message."""

    dimension: int
    indices: np.ndarray | None  # sorted; None if all coordinates are sent, or if the receiver knows which
    values: np.ndarray  # float32, in the order of the indices
    shared: bool = False  # the receiver knows which coordinates are sent
    kind: str | None = None  # kind of the values; None: the one that `encode` gets


def make_part(values: np.ndarray, mask: np.ndarray, *, shared: bool = False, kind: str | None = None) -> Part:
    """Make a part of a message from the coordinates in a mask.

    Parameters
    ----------
    values : ndarray
        A vector of any shape; it counts flattened.
    mask : ndarray
        Bool, the coordinates to send.
    shared : bool
        The receiver knows the mask.
    kind : str or None
        The kind of the values; None: the one that `encode` gets.

    Returns
    -------
    Part
        The part.
    """
    sent = np.asarray(mask, bool).ravel()
    chosen = np.asarray(values, np.float32).ravel()[sent]
    indices = None if shared or sent.all() else np.flatnonzero(sent)
    return Part(sent.size, indices, chosen, shared, kind)


def spread(part: Part, support: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Spread the values of a part over its coordinates.

    Parameters
    ----------
    part : Part
        A part of a decoded message.
    support : ndarray or None
        Sorted indices; a shared part needs them.

    Returns
    -------
    tuple
        The flat vector, zero where no value was sent, and the mask.
    """
    where = support if part.shared else part.indices
    values, mask = np.zeros(part.dimension, np.float32), np.zeros(part.dimension, bool)
    place = slice(None) if where is None else where
    values[place], mask[place] = part.values, True
    return values, mask


def _number(value: int) -> bytes:
    """Seven bits to a byte, lowest first; the high bit says that more follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _check_part(part: Part) -> None:
    count = part.values.size
    if not 1 <= part.dimension <= _LARGEST_NUMBER:
        raise ConfigError(f"Expected dimension={part.dimension} from 1 to {_LARGEST_NUMBER}.")
    if part.values.ndim != 1 or not 1 <= count <= part.dimension:
        raise ConfigError(f"Expected a flat array of 1 to {part.dimension} values, got shape {part.values.shape}.")
    if part.indices is None:
        if not part.shared and count != part.dimension:
            raise ConfigError(f"Expected {part.dimension} values without indices, got {count}: pass indices, or shared=True.")
        return
    indices = part.indices
    if part.shared:
        raise ConfigError("Expected no indices in a shared part: the receiver knows them.")
    if indices.shape != (count,) or indices.dtype.kind not in "iu":
        raise ConfigError(f"Expected {count} integer indices, got {indices.dtype} of shape {indices.shape}.")
    if indices[0] < 0 or indices[-1] >= part.dimension or np.any(indices[1:] <= indices[:-1]):
        raise ConfigError(f"Expected increasing indices from 0 to {part.dimension - 1}: sort them, each once.")


def _encode_part(part: Part, kind: str) -> bytes:
    _check_part(part)
    values = pack_values(part.values, kind)
    coding, indices = SHARED if part.shared else DENSE, b""
    if part.indices is not None:
        coding, indices = encode_indices(part.indices.astype(np.int64), part.dimension)
    flags = bytes([coding + 8 * _KINDS.index(kind)])
    return _number(part.dimension) + _number(part.values.size) + flags + indices + values


def _seal(vectors: int, payload: bytes) -> bytes:
    head = _HEADER.pack(_MAGIC, _VERSION, vectors, len(payload))
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload


def encode(parts: Sequence[Part], kind: str = "float32") -> bytes:
    """Encode a message of 1 to 255 vectors.

    Parameters
    ----------
    parts : sequence of Part
        See `make_part`.
    kind : str
        The kind of the values of parts that name none: "float32", "float16" or "int8".

    Returns
    -------
    bytes
        The message.
    """
    if not 1 <= len(parts) <= 255:
        raise ConfigError(f"Expected 1 to 255 vectors in a message, got {len(parts)}.")
    payload = b"".join(_encode_part(part, part.kind or kind) for part in parts)
    if len(payload) > _LARGEST_NUMBER:
        raise ConfigError(f"Expected at most {_LARGEST_NUMBER} bytes in a message, got {len(payload)}: send fewer values.")
    return _seal(len(parts), payload)


class _Reader:
    """The rest of a payload; reading beyond its end is an error."""

    def __init__(self, data: memoryview) -> None:
        self.left = data

    def take(self, length: int) -> memoryview:
        if length > len(self.left):
            raise WireError("length", f"Expected {length} more bytes, {len(self.left)} are left.")
        taken, self.left = self.left[:length], self.left[length:]
        return taken

    def number(self, reason: Reason) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and not byte:
                    break
                return value
        raise WireError(reason, f"Expected a {reason} of at most five bytes in its shortest form, got another.")


def _read_indices(reader: _Reader, coding: int, dimension: int, count: int, support: np.ndarray | None) -> np.ndarray | None:
    if coding > RICE:
        raise WireError("coding", f"Expected an index coding from 0 to {RICE}, got {coding}.")
    if (coding == SHARED) != (support is not None):
        expected = "an own set of indices" if support is None else "the shared set of indices"
        raise WireError("coding", f"Expected {expected}, got coding {coding}.")
    if coding in (DENSE, SHARED):
        known = dimension if support is None else support.size
        if count != known:
            raise WireError("count", f"Expected {known} values, the message claims {count}.")
        return None
    indices, length = decode_indices(coding, reader.left, dimension, count)
    reader.take(length)
    return indices


def _decode_part(reader: _Reader, dimension: int, support: np.ndarray | None, limit: float) -> Part:
    if (claimed := reader.number("dimension")) != dimension:
        raise WireError("dimension", f"Expected dimension {dimension}, the message claims {claimed}.")
    count = reader.number("count")
    if not 1 <= count <= dimension:
        raise WireError("count", f"Expected 1 to {dimension} values, the message claims {count}.")
    flags = reader.take(1)[0]
    if flags >> 3 >= len(_KINDS):
        raise WireError("kind", f"Expected a value kind from 0 to {len(_KINDS) - 1}, got {flags >> 3}.")
    kind = _KINDS[flags >> 3]
    length = packed_length(count, kind)
    if length > len(reader.left):  # checked here, before the indices are read
        raise WireError("length", f"Expected {length} bytes for {count} values, {len(reader.left)} are left.")
    indices = _read_indices(reader, flags & 7, dimension, count, support)
    values = unpack_values(bytes(reader.take(length)), count, kind)
    if (largest := float(np.max(np.abs(values)))) > limit:
        raise WireError("magnitude", f"Expected magnitudes of at most {limit:g}, got {largest:g}.")
    return Part(dimension, indices, values, flags & 7 == SHARED, kind)


def _open(data: bytes) -> tuple[int, memoryview]:
    """The number of vectors and the payload, once header and checksum have been found right."""
    if len(data) < HEADER_BYTES:
        raise WireError("length", f"Expected at least {HEADER_BYTES} bytes, got {len(data)}.")
    magic, version, vectors, length = _HEADER.unpack_from(data)
    (checksum,) = struct.unpack_from("<I", data, _HEADER.size)
    if magic != _MAGIC:
        raise WireError("magic", f"Expected a message that starts with {_MAGIC!r}, got {magic!r}.")
    if version != _VERSION:
        raise WireError("version", f"Expected version {_VERSION}, got {version}: the two sides must run the same release.")
    if length != len(data) - HEADER_BYTES:
        raise WireError("length", f"Expected {length} bytes of payload, got {len(data) - HEADER_BYTES}.")
    payload = memoryview(data)[HEADER_BYTES:]
    if checksum != (found := zlib.crc32(payload, zlib.crc32(data[: _HEADER.size]))):
        raise WireError("checksum", f"Expected checksum {checksum:08x}, the content has {found:08x}: damaged on the way.")
    return vectors, payload


def decode(
    data: bytes, *, dimensions: Sequence[int], supports: Sequence[np.ndarray | None] | None = None, limit: float
) -> list[Part]:
    """Decode a message from anybody.

    Encoding the result gives the same bytes.

    Parameters
    ----------
    data : bytes
        The message.
    dimensions : sequence of int
        The expected dimension of every vector.
    supports : sequence of array or None
        For every vector the sorted indices that both sides know, or None if the sender chooses them.
    limit : float
        The largest magnitude that is accepted.

    Returns
    -------
    list of Part
        The vectors.

    Raises
    ------
    WireError
        For all bytes but those that `encode` makes.
    """
    if not limit >= 0:
        raise ConfigError(f"Expected limit={limit} of at least 0.")
    known = [None] * len(dimensions) if supports is None else supports
    if len(known) != len(dimensions):
        raise ConfigError(f"Expected one support or None for each of {len(dimensions)} vectors, got {len(known)}.")
    vectors, payload = _open(data)
    if vectors != len(dimensions):
        raise WireError("vectors", f"Expected {len(dimensions)} vectors, got {vectors}.")
    reader = _Reader(payload)
    parts = [_decode_part(reader, dimension, support, limit) for dimension, support in zip(dimensions, known, strict=True)]
    if reader.left:
        raise WireError("length", f"Expected the end of the message, {len(reader.left)} bytes are left.")
    return parts
