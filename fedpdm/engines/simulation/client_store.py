"""The clients' states on disk, for federations whose states do not fit into memory.

The store is a log of records of one size, each the number of a client and its state. A new state is appended; the last record
of a client counts, and a client without a record has the first state. So clients that never took part need no space, a log that
is cut to an earlier length is the store of that time, and a crash loses only an incomplete record.
"""

import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpdm.errors import UserError

__all__ = ["ClientStore"]


class ClientStore:
    """States of clients by number.

    Parameters
    ----------
    clients : int
        How many there are.
    first : pytree of arrays
        The state of a client that never took part.
    path : Path, optional
        The log; an existing one is continued. None: a temporary file that is removed with this object.

    Examples
    --------
    >>> store = ClientStore(1_000_000, {"dual": np.zeros(3, np.float32)})
    >>> store.append(np.array([7, 999_999]), {"dual": np.ones((2, 3), np.float32)})
    >>> store.read(np.array([999_999, 5]))["dual"].tolist()
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """

    def __init__(self, clients: int, first: Any, path: Path | None = None) -> None:
        leaves, self._tree = jax.tree.flatten(first)
        self._first = [np.asarray(leaf) for leaf in leaves]
        fields = [(str(i), leaf.dtype, leaf.shape) for i, leaf in enumerate(self._first)]
        self._record = np.dtype([("client", np.int64), *fields])
        self._file = tempfile.TemporaryFile() if path is None else path.open("a+b")  # noqa: SIM115
        self.close = weakref.finalize(self, self._file.close)
        self._last = np.full(clients, -1, np.int64)
        self.length = 0
        self.cut(os.fstat(self._file.fileno()).st_size // self._record.itemsize)

    def read(self, clients: np.ndarray) -> Any:
        """Return the states of these clients, stacked."""
        places = self._last[clients]
        known = np.flatnonzero(places >= 0)
        stacked = [np.broadcast_to(leaf, (len(clients), *leaf.shape)).copy() for leaf in self._first]
        if len(known):
            records = self._mapped()
            for i, leaf in enumerate(stacked):
                leaf[known] = records[str(i)][places[known]]
        return jax.tree.unflatten(self._tree, stacked)

    def append(self, clients: np.ndarray, states: Any) -> None:
        """Add new states of these clients, which are all different."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]
        for place, client in enumerate(clients):  # one by one: states may be large
            record = np.empty((), self._record)
            record["client"] = client
            for i, leaf in enumerate(leaves):
                record[str(i)] = leaf[place]
            self._file.write(record.tobytes())
        self._file.flush()
        self._last[clients] = self.length + np.arange(len(clients))
        self.length += len(clients)

    def sync(self) -> None:
        """Make sure that all records survive a loss of power."""
        os.fsync(self._file.fileno())

    def cut(self, length: int) -> None:
        """Go back to the store with this number of records."""
        size = os.fstat(self._file.fileno()).st_size
        if length * self._record.itemsize > size:
            raise UserError(
                f"The clients' states are incomplete: {size // self._record.itemsize} of {length} records in "
                f"{self._file.name}. Restore the file, or begin again."
            )
        self._file.truncate(length * self._record.itemsize)
        self._file.seek(0, os.SEEK_END)
        self.length = length
        self._last[:] = -1
        if length:
            self._last[np.asarray(self._mapped()["client"])] = np.arange(length)  # the last record of a client counts

    def _mapped(self) -> np.ndarray:
        return np.memmap(self._file, self._record, "r", shape=(self.length,))
