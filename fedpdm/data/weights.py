"""The weights of rows: 1/m for each of a person's m rows at a client."""

__all__ = ["clients_per_person", "padded", "person_weights", "unit_shares"]

from collections.abc import Sequence

import numpy as np


def person_weights(units: np.ndarray, parts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return every client's row weights, and its number of persons.

    Parameters
    ----------
    units : ndarray
        [rows] equal numbers for rows of one person.
    parts : sequence of ndarray
        Every client's rows.

    Returns
    -------
    list of ndarray, ndarray
        The weights, and the numbers of persons.
    """
    weights, persons = [], np.zeros(len(parts), np.int32)
    for client, part in enumerate(parts):
        _, place, rows = np.unique(units[part], return_inverse=True, return_counts=True)
        weights.append(unit_shares(rows)[place])
        persons[client] = len(rows)
    return weights, persons


def unit_shares(rows: np.ndarray) -> np.ndarray:
    """Return the float32 weight of each row of a person: at most 1/m, so that the sum over the m rows is never above 1.

    Parameters
    ----------
    rows : ndarray
        m, the number of rows of each person.

    Returns
    -------
    ndarray
        The weights.
    """
    exact = 1.0 / rows
    near = exact.astype(np.float32)
    return np.where(near > exact, np.nextafter(near, np.float32(0)), near)


def clients_per_person(units: np.ndarray, parts: Sequence[np.ndarray]) -> int:
    """Return the most clients that hold rows of one person.

    Parameters
    ----------
    units, parts
        As in `person_weights`.

    Returns
    -------
    int
        The number of clients.
    """
    places = np.unique(units, return_inverse=True)[1]
    return int(np.bincount(np.concatenate([np.unique(places[part]) for part in parts])).max())


def padded(weights: Sequence[np.ndarray]) -> np.ndarray:
    """Stack the weights of all clients, with zeros after a client's own rows.

    Parameters
    ----------
    weights : sequence of ndarray
        Every client's weights.

    Returns
    -------
    ndarray
        [clients, rows of the largest], float32.

    Examples
    --------
    >>> padded([np.array([1.0]), np.array([0.5, 0.5])]).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    found = np.zeros((len(weights), max(map(len, weights))), np.float32)
    for client, own in enumerate(weights):
        found[client, : len(own)] = own
    return found
