"""Messages of a secure sum as bytes. This module alone reads bytes from outside, and checks all of them."""

import struct
from collections.abc import Sequence
from typing import Literal

import numpy as np

__all__ = ["ProtocolError", "Reason", "KINDS", "pack", "unpack", "pack_numbers", "unpack_numbers", "pack_words", "unpack_words"]

Reason = Literal["format", "order", "roster", "terms", "signature", "seal", "threshold", "secret"]
MAGIC = b"fpS1"
KINDS = ("invitation", "keys", "all-keys", "pieces", "own-pieces", "masked", "survivors", "agreement", "agreements", "reveal")
KINDS += ("step",)  # in a deployment: a message of the server, and the model beside it
MOST_FIELDS = 2**16
MOST_BYTES = 2**28


class ProtocolError(Exception):
    """A message that does not belong to this sum, or a step that is not allowed. Nothing of the message is used.

    Parameters
    ----------
    reason : str
        One of `Reason`; refusals are counted by it.
    sentence : str
        The expected and the actual content.
    """

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(reason, sentence)  # both, so that it survives pickling
        self.reason = reason

    def __str__(self) -> str:
        return self.args[1]


def pack(kind: str, fields: Sequence[bytes]) -> bytes:
    """Make a message: its fields, each after its length.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    fields : sequence of bytes
        The fields.

    Returns
    -------
    bytes
        The message.

    Examples
    --------
    >>> unpack("keys", pack("keys", [b"one", b""]))
    [b'one', b'']
    """
    head = MAGIC + struct.pack("<BI", KINDS.index(kind), len(fields))
    return head + b"".join(struct.pack("<I", len(field)) + field for field in fields)


def unpack(kind: str, message: bytes, count: int | None = None) -> list[bytes]:
    """Read a message.

    Parameters
    ----------
    kind : str
        The expected kind.
    message : bytes
        The message.
    count : int, optional
        The expected number of fields.

    Returns
    -------
    list of bytes
        The fields.

    Raises
    ------
    ProtocolError
        If the message has another form.
    """
    start = len(MAGIC) + 5
    if len(message) > MOST_BYTES or len(message) < start or message[: len(MAGIC)] != MAGIC:
        raise ProtocolError("format", f"Expected a message of kind {kind!r}, got {len(message)} bytes of something else.")
    number, fields = struct.unpack_from("<BI", message, len(MAGIC))
    if number != KINDS.index(kind) or fields > MOST_FIELDS or count not in (None, fields):
        raise ProtocolError("format", f"Expected a message of kind {kind!r}, got kind {number} with {fields} fields.")
    found = []
    for _ in range(fields):
        if len(message) < start + 4:
            raise ProtocolError("format", f"A message of kind {kind!r} ends within a field.")
        (length,) = struct.unpack_from("<I", message, start)
        start += 4 + length
        if len(message) < start:
            raise ProtocolError("format", f"A message of kind {kind!r} ends within a field.")
        found.append(message[start - length : start])
    if start != len(message):
        raise ProtocolError("format", f"A message of kind {kind!r} has {len(message) - start} bytes too many.")
    return found


def pack_numbers(numbers: Sequence[int]) -> bytes:
    """Turn members' numbers into a field.

    Parameters
    ----------
    numbers : sequence of int
        The numbers.

    Returns
    -------
    bytes
        The field.
    """
    return struct.pack(f"<{len(numbers)}I", *numbers)


def unpack_numbers(field: bytes, members: int) -> list[int]:
    """Read different members' numbers in rising order.

    Parameters
    ----------
    field : bytes
        The field.
    members : int
        The largest allowed number; the smallest is 1.

    Returns
    -------
    list of int
        The numbers.
    """
    if len(field) % 4:
        raise ProtocolError("format", f"A list of members has {len(field)} bytes.")
    numbers = list(struct.unpack(f"<{len(field) // 4}I", field))
    if numbers != sorted(set(numbers)) or (numbers and not 1 <= numbers[0] <= numbers[-1] <= members):
        raise ProtocolError("roster", f"Expected different members from 1 to {members} in rising order.")
    return numbers


def pack_words(words: np.ndarray, bits: int) -> bytes:
    """Pack words of `bits` bits without gaps.

    Parameters
    ----------
    words : ndarray
        Words of 32 bits, of which only the lowest `bits` count.
    bits : int
        Bits per word.

    Returns
    -------
    bytes
        The field.

    Examples
    --------
    >>> words = np.array([1, 2, 1023], np.uint32)
    >>> len(pack_words(words, 10)), unpack_words(pack_words(words, 10), 3, 10).tolist()
    (4, [1, 2, 1023])
    """
    if bits == 32:
        return words.astype("<u4").tobytes()
    each = np.unpackbits(words.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return np.packbits(each[:, :bits], bitorder="little").tobytes()


def unpack_words(field: bytes, count: int, bits: int) -> np.ndarray:
    """Read words of `bits` bits; unused bits at the end must be zero.

    Parameters
    ----------
    field : bytes
        The field.
    count, bits : int
        Number of words, and bits per word.

    Returns
    -------
    ndarray
        Words of 32 bits.
    """
    if len(field) != -(-count * bits // 8):
        raise ProtocolError("format", f"Expected {count} words of {bits} bits, got {len(field)} bytes.")
    if bits == 32:
        return np.frombuffer(field, "<u4").astype(np.uint32)
    every = np.unpackbits(np.frombuffer(field, np.uint8), bitorder="little")
    if every[count * bits :].any():
        raise ProtocolError("format", "Bits after the last word are set.")
    each = np.zeros((count, 32), np.uint8)
    each[:, :bits] = every[: count * bits].reshape(count, bits)
    return np.packbits(each, axis=1, bitorder="little").view("<u4").ravel().astype(np.uint32)
