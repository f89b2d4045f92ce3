"""The choice of test rows of a table, and clients with few rows."""

__all__ = ["gather_small", "set_apart", "split"]

import numpy as np

from fedpdm.data.datasets import Dataset
from fedpdm.data.encoding import Encoded, Members
from fedpdm.errors import DataError

VALIDATION_SHARE = 0.1
GATHERED = "(small clients)"


def gather_small(rows: Encoded, least: int | None) -> tuple[Encoded, tuple[str, ...]]:
    """Join the clients with few rows into one.

    Parameters
    ----------
    rows : Encoded
        The rows and their clients.
    least : int, optional
        Clients with fewer rows are joined; None: all stay separate.

    Returns
    -------
    Encoded, tuple of str
        The rows, and a note if a client is small.
    """
    places, names = rows.clients
    sizes = np.bincount(places, minlength=len(names)) if names else np.zeros(0, int)
    small = np.flatnonzero(sizes < (least or 2))
    if not len(small):
        return rows, ()
    have = f"{len(small)} of {len(names)} clients {'has' if len(small) == 1 else 'have'}"
    if least is None:
        return rows, (f"{have} a single row, which is not used for testing (--min-rows N joins clients below N rows)",)
    if len(small) == 1:
        return rows, (
            f"{have} fewer than {least} rows ({names[small[0]]}, {sizes[small[0]]}): unchanged, as there is no other to join",
        )
    gathered = GATHERED if GATHERED not in names else GATHERED * 2
    renamed = np.array(names, object)
    renamed[small] = gathered
    kept = tuple(sorted(set(renamed.tolist())))
    order = {name: place for place, name in enumerate(kept)}
    moved = np.array([order[name] for name in renamed.tolist()], np.int32)
    line = f"{have} fewer than {least} rows: joined into one, {gathered!r}, with {int(sizes[small].sum())} rows"
    return rows._replace(clients=Members(moved[places], kept)), (line,)


def split(rows: Encoded, share: float, seed: int, table: str) -> tuple[np.ndarray, np.ndarray]:
    """Choose a share of every client's rows to test with.

    If the rows are about persons, persons are drawn instead, and all rows of a drawn person are in the test part.

    Parameters
    ----------
    rows : Encoded
        The rows and their clients.
    share : float
        The share of test rows.
    seed : int
        The seed of the partition.
    table : str
        The name of the table, for the error.

    Returns
    -------
    ndarray, ndarray
        Training rows and test rows. A client's only row is never a test row.
    """
    test = _chosen(rows.clients.places, rows.units, len(rows.labels), share, seed)
    if not test.any():
        raise DataError(
            f"{table}: no client has a row to spare for testing ({len(rows.labels)} rows): name "
            "another table to test on (--test), join small clients (--min-rows 2), or give more rows"
        )
    return np.flatnonzero(~test), np.flatnonzero(test)


def set_apart(dataset: Dataset, seed: int) -> tuple[Dataset, tuple[np.ndarray, np.ndarray]]:
    """Set a tenth of the training rows apart, drawn as `split` draws.

    Parameters
    ----------
    dataset : Dataset
        The data set.
    seed : int
        The seed of the partition.

    Returns
    -------
    Dataset, (ndarray, ndarray)
        The data set without these rows; and their features and labels.
    """
    units = dataset.units if len(dataset.units) else None
    chosen = _chosen(dataset.clients, units, len(dataset.labels), VALIDATION_SHARE, seed + 1)
    if not chosen.any():
        raise DataError(f"{dataset.name} has no rows to spare to choose a threshold on: give metrics.threshold as a number")
    rest = dataset._replace(
        features=dataset.features[~chosen],
        labels=dataset.labels[~chosen],
        clients=dataset.clients[~chosen] if len(dataset.clients) else dataset.clients,
        units=dataset.units[~chosen] if len(dataset.units) else dataset.units,
    )
    return rest, (dataset.features[chosen], dataset.labels[chosen])


def _chosen(places: np.ndarray, units: np.ndarray | None, rows: int, share: float, seed: int) -> np.ndarray:
    """Return [rows] which ones are drawn; `places` gives their owners, and may be empty."""
    places = places if len(places) else np.zeros(rows, np.int32)
    members = np.split(np.argsort(places, kind="stable"), np.cumsum(np.bincount(places))[:-1])
    rng = np.random.default_rng(seed)
    return _drawn(members, share, rng) if units is None else _persons_drawn(members, units, share, rng)


def _drawn(members: list[np.ndarray], share: float, rng: np.random.Generator) -> np.ndarray:
    test = np.zeros(sum(map(len, members)), bool)
    for part in members:
        if len(part) > 1:
            test[rng.permutation(part)[: min(max(1, round(share * len(part))), len(part) - 1)]] = True
    return test


def _persons_drawn(members: list[np.ndarray], units: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draw client after client, among the persons that no earlier client had; a client with nobody left gets its own back."""
    drawn = np.zeros(units.max() + 1, bool)
    seen = np.zeros(units.max() + 1, bool)
    for part in members:
        new = np.unique(units[part])
        new = new[~seen[new]]
        seen[new] = True
        if len(new) > 1:
            drawn[rng.permutation(new)[: min(max(1, round(share * len(new))), len(new) - 1)]] = True
    for part in members:
        if drawn[units[part]].all():
            drawn[units[part]] = False
    return drawn[units]
