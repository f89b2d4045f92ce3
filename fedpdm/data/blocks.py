"""Large arrays of features without a second copy: filled column by column, stored row by row, and shortened in place."""

__all__ = ["BLOCKS", "Blocks", "RowBlocks", "keep_rows"]

import itertools
from typing import TypeAlias

import numpy as np

BLOCKS = 8  # of rows; while they become one array, one of them is in memory twice
Blocks: TypeAlias = list[tuple[slice, np.ndarray]]  # rows, and the place for some of their features


class RowBlocks:
    """[rows, width] float32 zeros, to be filled column by column.

    A column of an array that is stored row by row touches all of its memory. Stored column by column, memory is taken as
    columns are filled, while the table gives back what its encoded columns took.

    Parameters
    ----------
    rows, width : int
        The shape.
    blocks : int
        Into how many blocks of rows the array is divided, each stored column by column; 1: it is stored row by row at once.

    Examples
    --------
    >>> features = RowBlocks(5, 3, blocks=2)
    >>> for rows, block in features.columns(1, 1):
    ...     block[:, 0] = np.arange(5)[rows]
    >>> features.joined()[:, 1].tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """

    def __init__(self, rows: int, width: int, blocks: int) -> None:
        bounds = np.linspace(0, rows, blocks + 1).astype(int).tolist()
        self._slices = [slice(*ends) for ends in itertools.pairwise(bounds)]
        order = "C" if blocks == 1 else "F"
        self._blocks = [np.zeros((own.stop - own.start, width), np.float32, order=order) for own in self._slices]
        self._width = width

    def columns(self, place: int, width: int) -> Blocks:
        """Return the places for some columns, by blocks of rows."""
        return [(own, block[:, place : place + width]) for own, block in zip(self._slices, self._blocks, strict=True)]

    def joined(self) -> np.ndarray:
        """Return one array that is stored row by row. The blocks are given up on the way."""
        if len(self._blocks) == 1:
            return self._blocks.pop()
        found = np.empty((0, self._width), np.float32)
        for own in self._slices:
            found.resize((own.stop, self._width), refcheck=False)
            found[own] = self._blocks.pop(0)
        return found


def keep_rows(array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Keep some rows of an array that nothing else uses: they move up in its own memory, and the rest is given back.

    Parameters
    ----------
    array : ndarray
        [rows, width]. It must not be used afterwards.
    places : ndarray
        The rows to keep, in rising order.

    Returns
    -------
    ndarray
        [places, width].

    Examples
    --------
    >>> keep_rows(np.arange(8).reshape(4, 2), np.array([1, 3])).tolist()
    [[2, 3], [6, 7]]
    """
    step = max(1, len(array) // BLOCKS)
    for start in range(0, len(places), step):
        chosen = places[start : start + step]
        array[start : start + len(chosen)] = array[chosen]  # rows only move up, so none is overwritten before it is read
    if array.base is not None:
        return array[: len(places)]
    array.resize((len(places), *array.shape[1:]), refcheck=False)
    return array
