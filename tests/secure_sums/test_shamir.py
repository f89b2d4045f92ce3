"""Shamir's sharing: any threshold of pieces, no fewer, and a field that is one."""

import itertools
import secrets

import pytest

from fedpdm.secure_sums.shamir import PRIME, combine, split


def test_the_modulus_is_prime():
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):  # Miller-Rabin
        x = pow(base, odd, PRIME)
        squares = [pow(x, 2**i, PRIME) for i in range(twos)]
        assert x == 1 or PRIME - 1 in squares


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(range(32))], ids=["zeros", "ones", "mixed"])
def test_every_choice_of_enough_pieces_gives_the_secret(secret):
    pieces = split(secret, 3, [1, 2, 4, 7, 9])
    for chosen in itertools.combinations(pieces, 3):
        assert combine([{m: pieces[m] for m in chosen}] * 2) == [secret, secret]
    assert combine([pieces]) == [secret]


def test_too_few_pieces_fit_every_secret():
    """With one piece fewer than the threshold, each secret has exactly one missing piece that leads to it."""
    pieces = split(secrets.token_bytes(32), 2, [1, 2])
    for guess in (bytes(32), b"\x07" * 32):
        value, other = int.from_bytes(guess, "big"), int.from_bytes(pieces[2], "big")
        first = (other + value) * pow(2, -1, PRIME) % PRIME  # the line through (0, guess) and (2, piece), at 1
        assert combine([{1: first.to_bytes(33, "big"), 2: pieces[2]}]) == [guess]
    found = {combine([{1: split(bytes(32), 2, [1, 2])[1]}])[0] for _ in range(20)}
    assert len(found) == 20  # a single piece of one secret is different every time


def test_what_would_give_the_secret_away_is_refused():
    with pytest.raises(ValueError, match="number 0 is the secret"):
        split(bytes(32), 2, [0, 1, 2])
    with pytest.raises(ValueError, match="number 0 is the secret"):
        split(bytes(32), 2, [1, 1, 2])
    with pytest.raises(ValueError, match="threshold"):
        split(bytes(32), 4, [1, 2, 3])
    with pytest.raises(ValueError, match="same members"):
        combine([{1: bytes(33)}, {2: bytes(33)}])
