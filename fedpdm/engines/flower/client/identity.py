"""A client's own key: the server knows it again by this key, and the members of a cohort list it in their policies."""

import contextlib
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpdm.engines.flower.protocol import Meeting, statement
from fedpdm.errors import UserError
from fedpdm.secure_sums.keys import public_text

__all__ = ["KEY_FILE", "identity_of", "prove", "public_key"]

KEY_FILE = "identity.key"


def identity_of(state_dir: Path) -> Ed25519PrivateKey:
    """Return the client's key; make it at the first use. Only its owner may read the file.

    Parameters
    ----------
    state_dir : Path
        The state folder.

    Returns
    -------
    Ed25519PrivateKey
        The key.
    """
    path = state_dir / KEY_FILE
    try:
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
    except FileNotFoundError:
        state_dir.mkdir(parents=True, exist_ok=True)
    except ValueError:
        raise UserError(
            f"{path} is damaged: it is not a key. Put the backup of it back. With another key, servers and the members of a "
            "cohort do not know this client any more."
        ) from None
    _write_new(path, Ed25519PrivateKey.generate().private_bytes_raw())
    return Ed25519PrivateKey.from_private_bytes(path.read_bytes())


def _write_new(path: Path, secret: bytes) -> None:
    """Write the file in one step, unless another process was faster. It is never open to others."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(temporary, path)
    temporary.unlink()


def public_key(state_dir: Path) -> str:
    """Return the client's identity as the policies of others list it.

    Parameters
    ----------
    state_dir : Path
        The state folder.

    Returns
    -------
    str
        The public key in hexadecimal.
    """
    return public_text(identity_of(state_dir))


def prove(state_dir: Path, meeting: Meeting, client: int) -> tuple[str, str]:
    """Return the public key, and the signature of the server's challenge.

    Parameters
    ----------
    state_dir, meeting, client
        The state folder, the server's message, and the client's number.

    Returns
    -------
    tuple of str
        Public key and signature in hexadecimal; no signature without a challenge.
    """
    key = identity_of(state_dir)
    return public_text(key), key.sign(statement(meeting, client)).hex() if meeting.challenge else ""
