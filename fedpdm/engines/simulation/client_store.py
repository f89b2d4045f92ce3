"""What clients keep, on disk: for federations whose states do not fit into memory.

A log of records of one size, each the number of a client and its state. A new state is appended; the last record of a client
counts, and a client without one has the state that all begin with. So nothing is stored for clients that never took part, a
log that is cut to an earlier length is the store of that time, and a crash costs nothing but what was not yet complete.
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
        The log; one that is there is gone on with. None: a temporary file that goes with this object.

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
        """The states of these clients, stacked."""
        places = self._last[clients]
        known = np.flatnonzero(places >= 0)
        stacked = [np.broadcast_to(leaf, (len(clients), *leaf.shape)).copy() for leaf in self._first]
        if len(known):
            records = self._mapped()
            for i, leaf in enumerate(stacked):
                leaf[known] = records[str(i)][places[known]]
        return jax.tree.unflatten(self._tree, stacked)

    def append(self, clients: np.ndarray, states: Any) -> None:
        """Take new states of these clients, which are all different."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]
        for place, client in enumerate(clients):  # one at a time: states may be large
            record = np.empty((), self._record)
            record["client"] = client
            for i, leaf in enumerate(leaves):
                record[str(i)] = leaf[place]
            self._file.write(record.tobytes())
        self._file.flush()
        self._last[clients] = self.length + np.arange(len(clients))
        self.length += len(clients)

    def sync(self) -> None:
        """Make sure that what was appended outlives a loss of power."""
        os.fsync(self._file.fileno())

    def cut(self, length: int) -> None:
        """Go back to the store as it was when it held so many records."""
        size = os.fstat(self._file.fileno()).st_size
        if length * self._record.itemsize > size:
            raise UserError(
                f"What the clients keep is not all there: {size // self._record.itemsize} of {length} records in "
                f"{self._file.name}. Bring the file back, or begin again."
            )
        self._file.truncate(length * self._record.itemsize)
        self._file.seek(0, os.SEEK_END)
        self.length = length
        self._last[:] = -1
        if length:
            self._last[np.asarray(self._mapped()["client"])] = np.arange(length)  # the last one of a client stays

    def _mapped(self) -> np.ndarray:
        return np.memmap(self._file, self._record, "r", shape=(self.length,))
