"""Shamir's secret sharing over a prime field: any `threshold` pieces give the secret, fewer say nothing about it.

Why not a package: the maintained one (PyCryptodome) shares 16 bytes at a time in GF(2^128) and solves for the weights anew with
every secret; a server of 100 members that opens a sum would be at it for about ten seconds, one of 1,000 for hours. Here the
weights are computed once for all secrets that the same members hold pieces of.
"""

import secrets
from collections.abc import Mapping, Sequence

__all__ = ["PRIME", "SECRET_BYTES", "PIECE_BYTES", "split", "combine"]

PRIME = 2**256 + 297  # the smallest prime above 2^256
SECRET_BYTES = 32
PIECE_BYTES = 33


def split(secret: bytes, threshold: int, members: Sequence[int]) -> dict[int, bytes]:
    """A piece of the secret for every member; members are different numbers from 1 on.

    >>> pieces = split(bytes(range(32)), 2, [1, 2, 3])
    >>> combine([{1: pieces[1], 3: pieces[3]}])[0] == bytes(range(32))
    True
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(members):
        raise ValueError(f"Expected a secret of {SECRET_BYTES} bytes and 1 <= threshold={threshold} <= {len(members)} members.")
    if min(members) < 1 or len(set(members)) != len(members):
        raise ValueError("Expected members to be different numbers from 1 on: at 0 the secret itself is.")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {member: _value(polynomial, member).to_bytes(PIECE_BYTES, "big") for member in members}


def _value(polynomial: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


def combine(pieces: Sequence[Mapping[int, bytes]]) -> list[bytes]:
    """The secrets behind these pieces: per secret, the pieces of the same members, at least as many as the threshold.

    Nothing tells a wrong piece from a right one: check the secrets.
    """
    if not pieces:
        return []
    members = sorted(pieces[0])
    if any(sorted(own) != members for own in pieces):
        raise ValueError("Expected pieces of the same members for every secret.")
    weights = {member: _weight(member, members) for member in members}
    found = [sum(weights[m] * int.from_bytes(own[m], "big") for m in members) % PRIME for own in pieces]
    return [(value % 2**256).to_bytes(SECRET_BYTES, "big") for value in found]


def _weight(member: int, members: Sequence[int]) -> int:
    """The Lagrange weight of a member at 0."""
    above, below = 1, 1
    for other in members:
        if other != member:
            above, below = above * other % PRIME, below * (other - member) % PRIME
    return above * pow(below, -1, PRIME) % PRIME
