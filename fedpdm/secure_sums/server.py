"""The server's side of one secure sum. It checks every message, and opens no sum without the threshold of agreements."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedpdm.secure_sums.keys import agree, commitment, mask, pair_label, verify
from fedpdm.secure_sums.member import KEY_BYTES, agreement_statement, keys_statement
from fedpdm.secure_sums.messages import (
    ProtocolError,
    pack,
    pack_numbers,
    unpack,
    unpack_numbers,
    unpack_words,
)
from fedpdm.secure_sums.shamir import PIECE_BYTES, combine
from fedpdm.secure_sums.terms import Terms

__all__ = ["SumServer"]


class SumServer:
    """Collects the members' messages, step by step, and opens their sum.

    `take_...` raises a ProtocolError for a message that breaks the rules: treat that member as dropped out. A method that
    makes the next message raises one if too few members are left: the sum then stays closed for good.

    References
    ----------
    Bonawitz et al.: "Practical secure aggregation for privacy-preserving machine learning", CCS 2017.
    """

    def __init__(self, terms: Terms) -> None:
        terms.check()
        self.terms, self._context = terms, terms.context()
        self._signed: dict[int, bytes] = {}
        self._commitments: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}  # receiver: sender: piece
        self._words: dict[int, np.ndarray] = {}
        self._agreements: dict[int, bytes] = {}
        self._revealed: dict[int, list[bytes]] = {}
        self._all_keys = b""
        self._sharers: list[int] = []
        self.survivors: list[int] = []

    def _enough(self, members: int, least: int, what: str) -> None:
        if members < least:
            raise ProtocolError("threshold", f"{members} members {what}, but {least} are needed: the sum stays closed.")

    def invitation(self) -> bytes:
        """Return the message to every member of the roster."""
        return self.terms.encode()

    def take_keys(self, member: int, message: bytes) -> None:
        """Take step 1 of a member."""
        keys, signature = unpack("keys", message, 2)
        verify(self.terms.roster[member - 1], signature, keys_statement(self._context, keys))
        if len(keys) != 2 * KEY_BYTES or self._all_keys:
            raise ProtocolError("order" if self._all_keys else "format", f"The keys of member {member} are late or invalid.")
        for key in (keys[:KEY_BYTES], keys[KEY_BYTES:]):  # one that nobody can agree with would end everybody's part
            agree(X25519PrivateKey.generate(), key, self._context, b"trial")
        self._signed[member] = message

    def all_keys(self) -> bytes:
        """Return the message to every member that sent keys."""
        self._enough(len(self._signed), self.terms.least, "sent keys")
        members = sorted(self._signed)
        self._all_keys = pack("all-keys", [pack_numbers(members), *(self._signed[member] for member in members)])
        return self._all_keys

    def take_pieces(self, member: int, message: bytes) -> None:
        """Take step 2 of a member."""
        promised, *sealed = unpack("pieces", message)
        if self._sharers or member not in self._signed:
            raise ProtocolError("order", f"The pieces of member {member} are late, or it sent no keys.")
        receivers = [unpack_numbers(field[:4], len(self.terms.roster))[0] for field in sealed if len(field) > 4]
        if receivers != [other for other in sorted(self._signed) if other != member] or len(receivers) != len(sealed):
            raise ProtocolError("roster", f"Member {member} did not send a piece to everybody.")
        self._commitments[member] = promised
        for receiver, field in zip(receivers, sealed, strict=True):
            self._sealed.setdefault(receiver, {})[member] = field[4:]

    def pieces_for(self, member: int) -> bytes:
        """Return the message to a member that sent pieces."""
        if not self._sharers:
            self._enough(len(self._commitments), self.terms.least, "sent pieces")
            self._sharers = sorted(self._commitments)
        senders = [other for other in self._sharers if other != member]
        return pack("own-pieces", [pack_numbers(senders), *(self._sealed[member][sender] for sender in senders)])

    def take_masked(self, member: int, message: bytes) -> None:
        """Take step 3 of a member."""
        (field,) = unpack("masked", message, 1)
        if self.survivors or member not in self._sharers:
            raise ProtocolError("order", f"The share of member {member} is late, or it sent no pieces.")
        self._words[member] = unpack_words(field, self.terms.words, self.terms.bits)

    def survivors_list(self) -> bytes:
        """Return the message to every member whose share has arrived; from now on the members of the sum are fixed."""
        self._enough(len(self._words), self.terms.least, "sent shares")
        self.survivors = sorted(self._words)
        return pack("survivors", [pack_numbers(self._sharers), pack_numbers(self.survivors)])

    def take_agreement(self, member: int, message: bytes) -> None:
        """Take step 4 of a member."""
        (signature,) = unpack("agreement", message, 1)
        if member not in self.survivors:
            raise ProtocolError("order", f"Member {member} agrees to a sum that it is not in.")
        statement = agreement_statement(self._context, self._all_keys, self._sharers, self.survivors)
        verify(self.terms.roster[member - 1], signature, statement)
        self._agreements[member] = signature

    def agreements(self) -> bytes:
        """Return the message to every member that agreed."""
        self._enough(len(self._agreements), self.terms.cohort.threshold, "agreed")
        members = sorted(self._agreements)
        return pack("agreements", [pack_numbers(members), *(self._agreements[member] for member in members)])

    def take_reveal(self, member: int, message: bytes) -> None:
        """Take step 5 of a member."""
        pieces = unpack("reveal", message, len(self._sharers))
        if member not in self._agreements or any(len(piece) != PIECE_BYTES for piece in pieces):
            raise ProtocolError("format", f"Member {member} reveals other pieces than the server asked for.")
        self._revealed[member] = pieces

    def open(self) -> np.ndarray:
        """Return the exact sum of the survivors' words modulo 2^bits, or raise a ProtocolError."""
        threshold = self.terms.cohort.threshold
        self._enough(len(self._revealed), threshold, "revealed their pieces")
        holders = sorted(self._revealed)[:threshold]
        columns = [{holder: self._revealed[holder][place] for holder in holders} for place in range(len(self._sharers))]
        secrets = dict(zip(self._sharers, combine(columns), strict=True))
        total = np.zeros(self.terms.words, np.uint32)
        for member, secret in secrets.items():
            if member in self.survivors:
                if commitment(self._context, secret) != self._commitments[member]:
                    raise ProtocolError("secret", f"The pieces of member {member}'s seed do not fit: the sum stays closed.")
                total += self._words[member] - mask(secret, self._context, self.terms.words)
            else:
                total -= self._left_over(member, secret)
        return total & np.uint32(2**self.terms.bits - 1)

    def _left_over(self, dropped: int, secret: bytes) -> np.ndarray:
        """Return the masks that the survivors share with a member that dropped out, with the signs of the survivors' shares."""
        key = X25519PrivateKey.from_private_bytes(secret)
        if key.public_key().public_bytes_raw() != self._mask_public(dropped):
            raise ProtocolError("secret", f"The pieces of member {dropped}'s key do not fit: the sum stays closed.")
        total = np.zeros(self.terms.words, np.uint32)
        for member in self.survivors:
            low, high = sorted((member, dropped))
            seed = agree(key, self._mask_public(member), self._context, pair_label(b"mask", low, high))
            common = mask(seed, self._context, self.terms.words)
            total = total + common if member == low else total - common
        return total

    def _mask_public(self, member: int) -> bytes:
        return unpack("keys", self._signed[member], 2)[0][KEY_BYTES:]
