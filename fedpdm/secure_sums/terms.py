"""The terms of a secure sum: its members, its purpose and its noise. Every key, signature and mask is bound to them."""

import hashlib
import json
from dataclasses import asdict, dataclass

from fedpdm.errors import ConfigError
from fedpdm.privacy.sums import MOST_BITS, Cohort
from fedpdm.secure_sums.messages import ProtocolError, pack, unpack

__all__ = ["Terms", "Approval", "MOST_WORDS"]

DOMAIN = b"fedpdm secure sum 1"
MOST_WORDS = 2**26


@dataclass(frozen=True)
class Terms:
    """The terms of one sum.

    Parameters
    ----------
    job, round
        The training and its round; a key is used for one round only.
    roster
        The members' identities: Ed25519 public keys in hexadecimal, in rising order. A member's number is its position, from 1.
    settings
        A digest of all settings that the members' work depends on.
    sigma, scale, bits
        A share's noise, and the lattice.
    least, colluding
        The fewest members in an opened sum, and how many may work with the server.
    words
        Coordinates of the sum.
    """

    job: str
    round: int
    roster: tuple[str, ...]
    settings: str
    sigma: float
    scale: int
    bits: int
    least: int
    colluding: int
    words: int

    @property
    def cohort(self) -> Cohort:
        """Return the members that share the sum."""
        return Cohort(len(self.roster), self.colluding, len(self.roster) - self.least)

    def encode(self) -> bytes:
        """Return the server's invitation."""
        return pack("invitation", [json.dumps(asdict(self), sort_keys=True).encode()])

    def context(self) -> bytes:
        """Return 32 bytes that no other terms have; signatures and keys are bound to them."""
        return hashlib.sha256(DOMAIN + self.encode()).digest()

    @classmethod
    def decode(cls, message: bytes) -> "Terms":
        """Read the terms of an invitation; raise a ProtocolError if they are not well formed."""
        (field,) = unpack("invitation", message, 1)
        try:
            values = json.loads(field)
            terms = cls(**{**values, "roster": tuple(values["roster"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ProtocolError("format", "The invitation does not hold the terms of a sum.") from None
        terms.check()
        return terms

    def check(self) -> None:
        """Refuse terms that no honest server would send."""
        whole = ("round", "scale", "bits", "least", "colluding", "words")
        texts = (self.job, self.settings, *self.roster)
        if any(type(getattr(self, name)) is not int for name in whole) or any(type(text) is not str for text in texts):
            raise ProtocolError("format", "The terms of the sum are not of the right types.")
        ranges = 0 <= self.round < 2**31 and 2 <= self.bits <= MOST_BITS and 1 <= self.words <= MOST_WORDS
        power = 1 <= self.scale <= 2**24 and self.scale & (self.scale - 1) == 0
        if not (ranges and power and type(self.sigma) is float and 0 < self.sigma < 2**31):
            raise ProtocolError("terms", "The terms of the sum are out of range.")
        if list(self.roster) != sorted(set(self.roster)) or any(not _is_key(key) for key in self.roster):
            raise ProtocolError("roster", "The roster is not a list of different keys in rising order.")
        try:
            self.cohort.check()
        except ConfigError as error:
            raise ProtocolError("terms", str(error)) from None

    def number_of(self, key: str) -> int:
        """Return a member's number, from 1."""
        if key not in self.roster:
            raise ProtocolError("roster", f"The key {key[:16]}... is not on the roster of this sum.")
        return self.roster.index(key) + 1


def _is_key(text: str) -> bool:
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)


@dataclass(frozen=True)
class Approval:
    """The limits that a member agrees to in its own policy: a server can neither invent members nor reduce the noise.

    Parameters
    ----------
    keys
        Public keys of all members that may share a sum with this one.
    size
        The fewest invited members.
    colluding
        The fewest colluding members that the noise must allow for.
    dropouts
        The most members that may be missing in a sum.
    """

    keys: frozenset[str]
    size: int
    colluding: int
    dropouts: int

    def check(self, terms: Terms, own: str) -> None:
        """Raise a ProtocolError unless the policy approves these terms."""
        strangers = [key for key in terms.roster if key not in self.keys]
        if strangers:
            raise ProtocolError("roster", f"{len(strangers)} members of the roster are not approved: {strangers[0][:16]}...")
        terms.number_of(own)
        cohort = terms.cohort
        if cohort.members < self.size:
            raise ProtocolError("terms", f"{cohort.members} members are invited, fewer than the {self.size} of the policy.")
        if cohort.colluding < self.colluding:
            raise ProtocolError(
                "terms", f"The noise allows for {cohort.colluding} colluding members, the policy asks for {self.colluding}."
            )
        if cohort.dropouts > self.dropouts:
            raise ProtocolError("terms", f"{cohort.dropouts} members may be missing, the policy allows {self.dropouts}.")
