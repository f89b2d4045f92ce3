"""A member's side of one secure sum: five steps, each once and in order (Bonawitz et al. 2017, with consistency check).

1 advertise   two public keys, signed together with the terms
2 pieces      pieces of the own mask key and of the own seed, sealed for every other member
3 masked      the share, under masks that cancel in the sum and one that does not
4 agree       a signature under the list of members in the sum
5 reveal      with enough such signatures: pieces of the survivors' seeds, and of the others' mask keys, never both of one
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedpdm.secure_sums.keys import agree, commitment, mask, pair_label, public_text, seal, unseal, verify
from fedpdm.secure_sums.messages import ProtocolError, pack, pack_numbers, pack_words, unpack, unpack_numbers
from fedpdm.secure_sums.shamir import PIECE_BYTES, split
from fedpdm.secure_sums.terms import Approval, Terms

__all__ = ["Member", "agreement_statement", "keys_statement", "read_keys"]

KEY_BYTES = 32


def keys_statement(context: bytes, keys: bytes) -> bytes:
    """Return the statement that a member signs with its keys.

    Parameters
    ----------
    context, keys : bytes
        The sum, and the member's two public keys.

    Returns
    -------
    bytes
        The statement.
    """
    return b"keys" + context + keys


def agreement_statement(context: bytes, all_keys: bytes, sharers: Sequence[int], survivors: Sequence[int]) -> bytes:
    """Return the statement that a member signs about a sum: whose keys, whose pieces and whose shares are in it.

    Parameters
    ----------
    context, all_keys : bytes
        The sum, and the server's message with all keys.
    sharers, survivors : sequence of int
        Members that sent pieces, and members whose shares are in the sum.

    Returns
    -------
    bytes
        The statement.
    """
    lists = pack("survivors", [pack_numbers(sharers), pack_numbers(survivors)])
    return b"sum" + context + hashlib.sha256(b"all keys" + context + all_keys).digest() + lists


def read_keys(terms: Terms, message: bytes) -> dict[int, bytes]:
    """Read the keys of all members that sent some, and check their signatures.

    Parameters
    ----------
    terms : Terms
        The terms of the sum.
    message : bytes
        The server's message "all-keys".

    Returns
    -------
    dict of int to bytes
        Keys by member; at least `terms.least` of them.

    Raises
    ------
    ProtocolError
        If a signature does not hold, or there are too few keys.
    """
    numbers, *signed = unpack("all-keys", message)
    members = unpack_numbers(numbers, len(terms.roster))
    if len(members) != len(signed) or len(members) < terms.least:
        raise ProtocolError("threshold", f"{len(signed)} keys of {len(members)} members: at least {terms.least} are needed.")
    context, found = terms.context(), {}
    for member, field in zip(members, signed, strict=True):
        keys, signature = unpack("keys", field, 2)
        verify(terms.roster[member - 1], signature, keys_statement(context, keys))
        if len(keys) != 2 * KEY_BYTES:
            raise ProtocolError("format", f"The keys of member {member} have {len(keys)} bytes.")
        found[member] = keys
    return found


class Member:
    """One member's part in one sum. It serves one sum only, so no key is used twice.

    Parameters
    ----------
    identity
        The member's own key; the policies of its peers list the public half.
    approval
        The limits that the member agrees to.
    terms
        The terms of the server's invitation.

    References
    ----------
    Bonawitz et al.: "Practical secure aggregation for privacy-preserving machine learning", CCS 2017.
    """

    CLOSED = json.dumps({"step": -1, "keys": "", "survivors": []}).encode()  # a saved member that takes no further step

    def __init__(self, identity: Ed25519PrivateKey, approval: Approval, terms: Terms) -> None:
        terms.check()
        own = public_text(identity)
        approval.check(terms, own)
        self.terms, self.number = terms, terms.number_of(own)
        self._identity, self._context = identity, terms.context()
        self._seal_key, self._mask_key, self._seed = X25519PrivateKey.generate(), X25519PrivateKey.generate(), os.urandom(32)
        self._step = 0
        self._all_keys: bytes = b""
        self._keys: dict[int, bytes] = {}
        self._pieces: dict[int, bytes] = {}  # by member: its piece of mask key and seed
        self._survivors: list[int] = []

    def save(self) -> bytes:
        """Return what the next step needs, for a member whose process ends after every message. It holds secrets.

        It holds no more than that step needs: keys and seed until the share is masked, pieces until they are revealed, nothing
        after a step that failed. So a thief of the disk opens no sum of the past.
        """
        saved: dict[str, Any] = {"step": self._step, "keys": self._all_keys.hex(), "survivors": self._survivors}
        if self._step in (1, 2):
            keys = {"seal": self._seal_key.private_bytes_raw(), "mask": self._mask_key.private_bytes_raw(), "seed": self._seed}
            saved["secrets"] = {name: secret.hex() for name, secret in keys.items()}
        if self._step in (2, 3, 4):
            saved["pieces"] = {str(number): piece.hex() for number, piece in self._pieces.items()}
        return json.dumps(saved).encode()

    @classmethod
    def restore(cls, identity: Ed25519PrivateKey, approval: Approval, terms: Terms, saved: bytes) -> "Member":
        """Rebuild a saved member; the terms and the approval are checked again."""
        member, kept = cls(identity, approval, terms), json.loads(saved)
        if "secrets" in kept:  # else no later step uses keys or seed, and those of the new object stay unused
            secrets = {name: bytes.fromhex(secret) for name, secret in kept["secrets"].items()}
            member._seal_key = X25519PrivateKey.from_private_bytes(secrets["seal"])
            member._mask_key = X25519PrivateKey.from_private_bytes(secrets["mask"])
            member._seed = secrets["seed"]
        member._step = kept["step"]
        member._all_keys, member._survivors = bytes.fromhex(kept["keys"]), kept["survivors"]
        member._keys = read_keys(terms, member._all_keys) if member._all_keys else {}
        member._pieces = {int(number): bytes.fromhex(piece) for number, piece in kept.get("pieces", {}).items()}
        return member

    def _take(self, step: int) -> None:
        """Allow every step once and in order; a step that fails ends the member's part."""
        if self._step != step - 1:
            raise ProtocolError("order", f"Step {step} of a sum was requested after step {self._step}.")
        self._step = -1

    def advertise(self) -> bytes:
        """Step 1: return the keys of this sum."""
        self._take(1)
        keys = b"".join(key.public_key().public_bytes_raw() for key in (self._seal_key, self._mask_key))
        self._step = 1
        return pack("keys", [keys, self._identity.sign(keys_statement(self._context, keys))])

    def pieces(self, all_keys: bytes) -> bytes:
        """Step 2: read everybody's keys, return sealed pieces of the own secrets."""
        self._take(2)
        self._all_keys, self._keys = all_keys, read_keys(self.terms, all_keys)
        if self.number not in self._keys:
            raise ProtocolError("roster", "The server's list of keys lacks this member's own keys.")
        members, threshold = sorted(self._keys), self.terms.cohort.threshold
        parts = [split(secret, threshold, members) for secret in (self._mask_key.private_bytes_raw(), self._seed)]
        sealed = []
        for member in members:
            text = parts[0][member] + parts[1][member]
            if member == self.number:
                self._pieces[member] = text
            else:
                sealed.append(pack_numbers([member]) + seal(self._pair_key(member, self.number, member), text))
        self._step = 2
        return pack("pieces", [commitment(self._context, self._seed), *sealed])

    def _pair_key(self, other: int, sender: int, receiver: int) -> bytes:
        label = pair_label(b"seal", sender, receiver)
        return agree(self._seal_key, self._keys[other][:KEY_BYTES], self._context, label)

    def masked(self, own_pieces: bytes, share: Callable[[], np.ndarray]) -> bytes:
        """Step 3: read the pieces that others sealed for this member, return its masked share.

        Parameters
        ----------
        own_pieces
            The server's message.
        share
            Called after all checks; it records the release in the ledger, and returns the words of the share.
        """
        self._take(3)
        numbers, *sealed = unpack("own-pieces", own_pieces)
        senders = unpack_numbers(numbers, len(self.terms.roster))
        if len(senders) != len(sealed) or len(senders) + 1 < self.terms.least:
            raise ProtocolError("threshold", f"Pieces of {len(senders)} others: at least {self.terms.least - 1} are needed.")
        if self.number in senders or any(member not in self._keys for member in senders):
            raise ProtocolError("roster", "Pieces of members that sent no keys.")
        for member, field in zip(senders, sealed, strict=True):
            text = unseal(self._pair_key(member, member, self.number), field)
            if len(text) != 2 * PIECE_BYTES:
                raise ProtocolError("format", f"The piece of member {member} has {len(text)} bytes.")
            self._pieces[member] = text
        masks, words = self._masks(), share()  # in this order: a key that is no key must not cost a release
        if words.dtype != np.uint32 or words.shape != masks.shape:
            raise ValueError(f"Expected {self.terms.words} words of uint32, got {words.shape} of {words.dtype}.")
        self._seed, self._step = b"", 3
        return pack("masked", [pack_words((words + masks) & np.uint32(2**self.terms.bits - 1), self.terms.bits)])

    def _masks(self) -> np.ndarray:
        """Return the sum of the own mask and of those that cancel."""
        terms = self.terms
        total = mask(self._seed, self._context, terms.words)
        for member in self._pieces:
            if member != self.number:
                low, high = sorted((member, self.number))
                seed = agree(self._mask_key, self._keys[member][KEY_BYTES:], self._context, pair_label(b"mask", low, high))
                common = mask(seed, self._context, terms.words)
                total = total + common if self.number == low else total - common
        return total

    def agree(self, survivors: bytes) -> bytes:
        """Step 4: sign the list of members in the sum, if it is long enough and this member is on it."""
        self._take(4)
        sharers, present = (unpack_numbers(field, len(self.terms.roster)) for field in unpack("survivors", survivors, 2))
        if sharers != sorted(self._pieces):
            raise ProtocolError("roster", "The server names other members with pieces than those whose pieces it sent.")
        if self.number not in present or not set(present) <= set(sharers):
            raise ProtocolError("roster", "The sum lacks this member, or has members that this one shares no masks with.")
        if len(present) < self.terms.least:
            raise ProtocolError("threshold", f"The sum has {len(present)} members, fewer than {self.terms.least}.")
        self._survivors = present
        self._step = 4
        return pack("agreement", [self._identity.sign(self._statement())])

    def _statement(self) -> bytes:
        return agreement_statement(self._context, self._all_keys, sorted(self._pieces), self._survivors)

    def reveal(self, agreements: bytes) -> bytes:
        """Step 5: with the agreement of enough survivors, return the pieces that open the sum, and forget them."""
        self._take(5)
        numbers, *signatures = unpack("agreements", agreements)
        signers = unpack_numbers(numbers, len(self.terms.roster))
        if len(signers) != len(signatures) or len(signers) < self.terms.cohort.threshold:
            raise ProtocolError("threshold", f"{len(signers)} members agree: {self.terms.cohort.threshold} are needed.")
        if not set(signers) <= set(self._survivors):
            raise ProtocolError("roster", "Agreements of members that are not in the sum.")
        for member, signature in zip(signers, signatures, strict=True):
            verify(self.terms.roster[member - 1], signature, self._statement())
        opened = []
        for member in sorted(self._pieces):
            text = self._pieces[member]
            opened.append(text[PIECE_BYTES:] if member in self._survivors else text[:PIECE_BYTES])
        self._pieces, self._step = {}, 5
        return pack("reveal", opened)
