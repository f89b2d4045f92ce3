"""Key agreement, sealed messages, masks and signatures. All primitives come from the package `cryptography`."""

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
    """Return an identity as a roster lists it.

    Parameters
    ----------
    key : Ed25519PrivateKey or Ed25519PublicKey
        A member's key.

    Returns
    -------
    str
        The public key in hexadecimal.
    """
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return public.public_bytes_raw().hex()


def verify(identity: str, signature: bytes, statement: bytes) -> None:
    """Check that a member signed a statement.

    Parameters
    ----------
    identity : str
        The member's public key in hexadecimal.
    signature, statement : bytes
        The signature and the signed bytes.

    Raises
    ------
    ProtocolError
        If the signature does not hold.
    """
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(identity)).verify(signature, statement)
    except (InvalidSignature, ValueError):
        raise ProtocolError("signature", f"A signature of {identity[:16]}... does not hold.") from None


def pair_label(purpose: bytes, one: int, other: int) -> bytes:
    """Return the label that binds a key of two members to one purpose.

    Parameters
    ----------
    purpose : bytes
        The purpose.
    one, other : int
        The members' numbers, in an order that both know.

    Returns
    -------
    bytes
        The label.
    """
    return b"%s %d %d" % (purpose, one, other)


def agree(own: X25519PrivateKey, other: bytes, context: bytes, label: bytes) -> bytes:
    """Derive a key that only two members know, for one purpose of one sum.

    Parameters
    ----------
    own : X25519PrivateKey
        The own private key.
    other : bytes
        The other member's public key.
    context, label : bytes
        The sum (`Terms.context`) and the purpose (`pair_label`).

    Returns
    -------
    bytes
        The key, 32 bytes.
    """
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # also for points that give everybody the same secret
        raise ProtocolError("secret", "A member's public key is not valid for key agreement.") from None
    return HKDF(algorithm=SHA256(), length=32, salt=context, info=label).derive(secret)


def mask(seed: bytes, context: bytes, count: int) -> np.ndarray:
    """Expand a seed to words that look random to everybody without the seed.

    Parameters
    ----------
    seed, context : bytes
        The secret, and the sum.
    count : int
        Number of words.

    Returns
    -------
    ndarray
        Words of 32 bits.
    """
    key = HKDF(algorithm=SHA256(), length=32, salt=context, info=b"mask stream").derive(seed)
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()  # a key serves one stream, so the nonce may be zero
    return np.frombuffer(stream.update(bytes(4 * count)), "<u4").astype(np.uint32)


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate a text. Use a key for one message only.

    Parameters
    ----------
    key, text : bytes
        A key of 32 bytes, and the text.

    Returns
    -------
    bytes
        The sealed text.
    """
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Decrypt a sealed text.

    Parameters
    ----------
    key, sealed : bytes
        The key, and the output of `seal`.

    Returns
    -------
    bytes
        The text.

    Raises
    ------
    ProtocolError
        If the sealed text was changed, or belongs to another key.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None)
    except (InvalidTag, ValueError):
        raise ProtocolError("seal", "A sealed piece was changed, or is meant for another sum.") from None


def commitment(context: bytes, seed: bytes) -> bytes:
    """Return a hash that identifies a seed of 32 random bytes without revealing it.

    Parameters
    ----------
    context, seed : bytes
        The sum, and the seed.

    Returns
    -------
    bytes
        The hash.
    """
    return hashlib.sha256(b"seed" + context + seed).digest()
