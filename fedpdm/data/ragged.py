"""Rows of clients of very unequal sizes, without padding."""

__all__ = ["Ragged", "pays", "real_rows", "size_classes", "stacked"]

from collections.abc import Sequence
from typing import Any

import numpy as np

LEAST_BYTES = 2**26  # of padded rows: below it padding is cheaper than a second way to compute
LEAST_SAVED = 1.25  # padded over real rows from which it pays to leave padding out
MOST_CLASSES = 4  # size classes, each of which is compiled by itself
CLOSE = 1.5  # rows of the classes over real rows that is close enough
CANDIDATES = 64


class Ragged:
    """All clients' rows one after the other, in the place of the padded array [clients, largest client, ...].

    It has that array's shape, and its parts where they are asked for; `numpy.asarray` gives all of it, padding included.

    Parameters
    ----------
    rows : ndarray
        [rows of all clients, ...], the first client's first.
    sizes : ndarray
        [clients].

    Examples
    --------
    >>> ragged = Ragged(np.arange(4), np.array([1, 3]))
    >>> ragged.shape, ragged[1, :3].tolist(), np.asarray(ragged).tolist()
    ((2, 3), [1, 2, 3], [[0, 0, 0], [1, 2, 3]])
    """

    def __init__(self, rows: np.ndarray, sizes: np.ndarray) -> None:
        self.rows, self.sizes = rows, np.asarray(sizes)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int32)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the padded array."""
        return len(self.sizes), int(self.sizes.max()), *self.rows.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        """The rows' type."""
        return self.rows.dtype

    @property
    def ndim(self) -> int:
        """The padded array's number of axes."""
        return self.rows.ndim + 1

    @property
    def nbytes(self) -> int:
        """The bytes of the rows."""
        return self.rows.nbytes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, key: Any) -> np.ndarray:
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], int | np.integer) and isinstance(key[1], slice):
            own = self.rows[self.starts[key[0]] : self.starts[key[0]] + self.sizes[key[0]]]
            if (key[1].start or 0) >= 0 and key[1].stop is not None and key[1].stop <= len(own):
                return own[key[1]]
        chosen = np.arange(len(self))[key[0] if isinstance(key, tuple) else key]
        blocks = self._padded(np.atleast_1d(chosen))
        blocks = blocks[0] if np.ndim(chosen) == 0 else blocks
        rest = key[1:] if isinstance(key, tuple) else ()
        return blocks[rest if np.ndim(chosen) == 0 else (slice(None), *rest)] if rest else blocks

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self._padded(np.arange(len(self)))
        return found if dtype is None else found.astype(dtype)

    def _padded(self, clients: np.ndarray) -> np.ndarray:
        found = np.zeros((len(clients), *self.shape[1:]), self.dtype)
        for place, client in enumerate(clients):
            found[place, : self.sizes[client]] = self.rows[self.starts[client] : self.starts[client] + self.sizes[client]]
        return found


def pays(sizes: np.ndarray, row_bytes: int) -> bool:
    """Decide whether clients of these sizes are stored without padding.

    Parameters
    ----------
    sizes : ndarray
        Rows of every client.
    row_bytes : int
        Bytes of one row.

    Returns
    -------
    bool
        Whether it saves enough.
    """
    padded = len(sizes) * int(sizes.max())
    return padded * row_bytes > LEAST_BYTES and padded > LEAST_SAVED * int(sizes.sum())


def stacked(parts: Sequence[np.ndarray], like: np.ndarray, ragged: bool) -> Any:
    """Stack rows by clients: padded with zeros to the largest client, or one after the other.

    Parameters
    ----------
    parts : sequence of ndarray
        Every client's places in `like`.
    like : ndarray
        [rows, ...].
    ragged : bool
        Without padding.

    Returns
    -------
    ndarray or Ragged
        [clients, largest client, ...].
    """
    sizes = np.array([len(part) for part in parts], np.int32)
    if ragged:
        return Ragged(like[np.concatenate(parts)], sizes)
    found = np.zeros((len(parts), sizes.max(), *like.shape[1:]), like.dtype)
    for client, part in enumerate(parts):
        found[client, : len(part)] = like[part]
    return found


def real_rows(array: Any, sizes: np.ndarray) -> np.ndarray:
    """Return every client's own rows of a stacked array, one after the other.

    Parameters
    ----------
    array : ndarray or Ragged
        [clients, largest client, ...].
    sizes : ndarray
        [clients].

    Returns
    -------
    ndarray
        [rows of all clients, ...].

    Examples
    --------
    >>> real_rows(np.array([[5, 0], [6, 7]]), np.array([1, 2])).tolist()
    [5, 6, 7]
    """
    if isinstance(array, Ragged):
        return array.rows
    return array[np.arange(array.shape[1]) < np.asarray(sizes)[:, None]]


def size_classes(sizes: np.ndarray) -> list[int]:
    """Choose up to four block sizes, the largest client's last. A client's rows are read as the smallest block that holds them.

    The fewest classes are taken whose blocks have at most 1.5 times the real rows; of four, those with the fewest rows.

    Parameters
    ----------
    sizes : ndarray
        Rows of every client.

    Returns
    -------
    list of int
        The block sizes, in order.

    Examples
    --------
    >>> size_classes(np.array([20, 25, 30, 1000, 1100, 20000]))
    [1100, 20000]
    >>> size_classes(np.array([7, 7]))
    [7]
    """
    ordered = np.sort(sizes)
    places = np.unique(np.linspace(0, len(ordered) - 1, CANDIDATES).round().astype(int))
    caps = np.unique(ordered[places])
    counts = np.searchsorted(ordered, caps, side="right")
    # cost[j]: rows of the blocks of all clients up to caps[j], with so many classes, the last of them caps[j]
    cost, chosen = counts * caps, [[int(cap)] for cap in caps]
    for _ in range(MOST_CLASSES - 1):
        if cost[-1] <= CLOSE * ordered.sum():
            break
        table = cost[:, None] + np.maximum(counts[None, :] - counts[:, None], 0) * caps[None, :]
        table = np.where(np.arange(len(caps))[:, None] < np.arange(len(caps))[None, :], table, np.iinfo(np.int64).max)
        table = np.vstack([table, cost])  # no further class
        best = table.argmin(axis=0)
        chosen = [chosen[j] if best[j] == len(caps) else [*chosen[best[j]], int(caps[j])] for j in range(len(caps))]
        cost = table.min(axis=0)
    return chosen[-1]
