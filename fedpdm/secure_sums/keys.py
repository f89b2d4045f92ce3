"""Agreements, seals, masks and signatures, from primitives of the package `cryptography`; nothing is invented here."""

import hashlib

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpdm.secure_sums.messages import ProtocolError

__all__ = ["public_text", "verify", "agree", "mask", "seal", "unseal", "commitment", "pair_label"]


def public_text(key: Ed25519PrivateKey | Ed25519PublicKey) -> str:
    """An identity as it stands in a roster."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return public.public_bytes_raw().hex()


def verify(identity: str, signature: bytes, statement: bytes) -> None:
    """A ProtocolError unless this member signed this statement."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(identity)).verify(signature, statement)
    except (InvalidSignature, ValueError):
        raise ProtocolError("signature", f"A signature of {identity[:16]}... does not hold.") from None


def pair_label(purpose: bytes, one: int, other: int) -> bytes:
    """What a key of two members is for."""
    return b"%s %d %d" % (purpose, one, other)


def agree(own: X25519PrivateKey, other: bytes, context: bytes, label: bytes) -> bytes:
    """A key of 32 bytes that two members alone know, for one purpose of one sum."""
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # also for points that give everybody the same secret
        raise ProtocolError("secret", "A member's public key is not one to agree with.") from None
    return HKDF(algorithm=SHA256(), length=32, salt=context, info=label).derive(secret)


def mask(seed: bytes, context: bytes, count: int) -> np.ndarray:
    """`count` words of 32 bits that look random to all who do not know the seed."""
    key = HKDF(algorithm=SHA256(), length=32, salt=context, info=b"mask stream").derive(seed)
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()  # a key serves one stream, so the nonce may be zero
    return np.frombuffer(stream.update(bytes(4 * count)), "<u4").astype(np.uint32)


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate; a key seals one message only."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """The text, or a ProtocolError if it was changed or is not for us."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None)
    except (InvalidTag, ValueError):
        raise ProtocolError("seal", "A sealed piece was changed, or is meant for another sum.") from None


def commitment(context: bytes, seed: bytes) -> bytes:
    """By which a seed of 32 random bytes is recognised, and not found."""
    return hashlib.sha256(b"seed" + context + seed).digest()
