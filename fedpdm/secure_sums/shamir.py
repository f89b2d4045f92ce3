"""Shamir's secret sharing over a prime field: any `threshold` pieces give the secret, fewer reveal nothing about it.

Why not a package: the maintained one (PyCryptodome) shares 16 bytes at a time in GF(2^128) and computes the weights again for
every secret. To open a sum of 100 members would take about ten seconds, and of 1,000 members hours. This module computes the
weights once for all secrets whose pieces the same members hold.
"""

import secrets
from collections.abc import Mapping, Sequence

__all__ = ["PRIME", "SECRET_BYTES", "PIECE_BYTES", "split", "combine"]

PRIME = 2**256 + 297  # the smallest prime above 2^256
SECRET_BYTES = 32
PIECE_BYTES = 33


def split(secret: bytes, threshold: int, members: Sequence[int]) -> dict[int, bytes]:
    """Split a secret into one piece per member.

    Parameters
    ----------
    secret : bytes
        32 bytes.
    threshold : int
        The number of pieces that give the secret.
    members : sequence of int
        Different numbers from 1 on.

    Returns
    -------
    dict of int to bytes
        The pieces by member.

    References
    ----------
    Shamir: "How to share a secret", Communications of the ACM 1979.

    Examples
    --------
    >>> pieces = split(bytes(range(32)), 2, [1, 2, 3])
    >>> combine([{1: pieces[1], 3: pieces[3]}])[0] == bytes(range(32))
    True
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(members):
        raise ValueError(f"Expected a secret of {SECRET_BYTES} bytes and 1 <= threshold={threshold} <= {len(members)} members.")
    if min(members) < 1 or len(set(members)) != len(members):
        raise ValueError("Expected members to be different numbers from 1 on: the piece of number 0 is the secret itself.")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {member: _value(polynomial, member).to_bytes(PIECE_BYTES, "big") for member in members}


def _value(polynomial: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


def combine(pieces: Sequence[Mapping[int, bytes]]) -> list[bytes]:
    """Recover secrets from their pieces. A wrong piece gives a wrong secret without an error: check the secrets.

    Parameters
    ----------
    pieces : sequence of mappings
        For each secret the pieces by member: the same members for all, at least as many as the threshold.

    Returns
    -------
    list of bytes
        The secrets.
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
    """Return the Lagrange weight of a member at 0."""
    above, below = 1, 1
    for other in members:
        if other != member:
            above, below = above * other % PRIME, below * (other - member) % PRIME
    return above * pow(below, -1, PRIME) % PRIME
