"""A file outside of a node's folder: it names the ledger of the node's data and its last known head.

It reveals that the whole folder was replaced by an older copy, or that a second folder spends for the same data.
"""

import hashlib
import os
import uuid
from pathlib import Path
from typing import NamedTuple

from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.privacy.chain import Chain, Head
from fedpdm.runs.folder import atomic_write

__all__ = ["Seal", "seal_of"]

SUFFIX = ".fedpdm-seal"


def seal_of(source: NodeSource, folder: Path | None) -> "Seal | None":
    """Return the seal of a node's data: in the policy's folder, else beside the data file.

    Parameters
    ----------
    source : NodeSource
        The node's data.
    folder : Path or None
        The folder in the policy.

    Returns
    -------
    Seal or None
        The seal. A part of a public data set has none, unless the policy names a folder.
    """
    name = str(source.path.resolve()) if source.path else f"client {source.client} of {source.data_dir}"
    if folder is not None:
        return Seal(folder / (hashlib.sha256(name.encode()).hexdigest()[:32] + SUFFIX))
    return Seal(source.path.with_name(source.path.name + SUFFIX)) if source.path else None


class Seal(NamedTuple):
    """The file: identity of the ledger, its number of entries, its last hash; one line, in hexadecimal digits."""

    path: Path

    def trouble(self, chain: Chain, *, new: bool) -> str | None:
        """Return how the seal contradicts the ledger, or None; a `new` ledger gets its seal.

        A seal that is older than the ledger is no contradiction: a crash between the two writes leaves it so.
        """
        try:
            text = self.path.read_text(encoding="ascii")
        except FileNotFoundError:
            return None if new and self._claim(chain) else f"its seal {self.path} is missing"
        except UnicodeDecodeError:
            return f"its seal {self.path} is damaged"
        identity, _, rest = text.partition(" ")
        if identity != chain.identity.hex():
            return f"the seal {self.path} belongs to another state folder for the same data"
        count, _, last = rest.rstrip("\n").partition(" ")
        held = count.isdecimal() and chain.holds(Head(int(count), _bytes(last)))
        return None if held else f"the ledger is older than its seal {self.path}"

    def write(self, chain: Chain) -> None:
        """Record the ledger's present head."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path, _line(chain))

    def _claim(self, chain: Chain) -> bool:
        """Make the file, unless another folder was faster."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex}")
        try:
            atomic_write(draft, _line(chain))
            os.link(draft, self.path)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        return True


def _line(chain: Chain) -> bytes:
    return f"{chain.identity.hex()} {chain.head.entries} {chain.head.hash.hex()}\n".encode()


def _bytes(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return b""
