"""A note outside of a node's folder: which ledger counts for its data, and how far that ledger had come.

It shows that the whole folder was replaced by an older copy, and that a second folder spends for the same data.
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
    """Where the seal of a node's data is: in the policy's `folder`, else beside the data file.

    A part of a public data set has none unless the policy names a folder.
    """
    name = str(source.path.resolve()) if source.path else f"client {source.client} of {source.data_dir}"
    if folder is not None:
        return Seal(folder / (hashlib.sha256(name.encode()).hexdigest()[:32] + SUFFIX))
    return Seal(source.path.with_name(source.path.name + SUFFIX)) if source.path else None


class Seal(NamedTuple):
    """The file: identity of the ledger, its number of entries, its last hash; one line, in hexadecimal digits."""

    path: Path

    def trouble(self, chain: Chain, *, new: bool) -> str | None:
        """How the seal contradicts the ledger, if it does; the seal of a `new` ledger is made.

        A seal that is behind the ledger is no trouble: a crash between the two leaves it so.
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
        return None if held else f"the ledger is an older copy than its seal {self.path} knows of"

    def write(self, chain: Chain) -> None:
        """Say how far the ledger has come."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path, _line(chain))

    def _claim(self, chain: Chain) -> bool:
        """Make the file unless another folder was faster."""
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
