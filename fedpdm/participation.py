"""The clients of every round: decided before training, from the seed alone, the same in every engine."""

import math
from typing import Any

import numpy as np

__all__ = [
    "Roster",
    "roster",
    "cohort_roster",
    "cohort_table",
    "deal_cohorts",
    "cohorts_per_round",
    "fair_share",
    "largest_cohort",
]

COHORT_STREAM = 2**31  # no round has this number

Roster = list[tuple[np.ndarray, np.ndarray]]  # per round: the chosen clients, and which of them take part


def roster(sampling: str, *, rounds: int, clients: int, participants: int, seed: int, all_first: bool, cap: int = 0) -> Roster:
    """Choose the clients of every round, and tell which of them may still take part under the cap.

    Parameters
    ----------
    sampling : str
        "uniform" draws different clients anew in every round. "cycle" repeats one random order of all clients, so that after
        any number of rounds no two clients differ by more than one participation.
    rounds, clients, participants : int
        Number of rounds, of clients, and of clients per round.
    seed : int
        The seed of the draw.
    all_first : bool
        Whether all clients take part in the first round.
    cap : int
        The most participations that a client agrees to; 0: no limit.

    Returns
    -------
    Roster
        For every round the chosen clients, and a flag for each: whether it takes part.

    Examples
    --------
    >>> rounds = roster("cycle", rounds=5, clients=4, participants=2, seed=0, all_first=False)
    >>> sorted(np.bincount(np.concatenate([chosen for chosen, _ in rounds])).tolist())
    [2, 2, 3, 3]
    """
    order = np.random.default_rng([seed, 0]).permutation(clients)
    taken = np.zeros(clients, int)
    result = []
    for t in range(rounds):
        if all_first and t == 0:
            chosen = np.arange(clients)
        elif sampling == "cycle":
            chosen = order[((t - all_first) * participants + np.arange(participants)) % clients]
        else:
            chosen = np.random.default_rng([seed, t + 1]).choice(clients, participants, replace=False)
        present = taken[chosen] < cap if cap else np.ones(len(chosen), bool)
        taken[chosen[present]] += 1
        result.append((chosen.astype(np.int32), present))
    return result


def fair_share(*, rounds: int, clients: int, participants: int, all_first: bool) -> int:
    """Return the participations per client if rounds are shared evenly: "cycle" never exceeds this cap.

    Parameters
    ----------
    rounds, clients, participants, all_first
        As in `roster`.

    Returns
    -------
    int
        The largest number of participations of a client.
    """
    later = rounds - all_first
    return math.ceil(later * participants / clients) + all_first


def cohorts_per_round(participants: int, size: int) -> int:
    """Return how many whole cohorts take part in a round, at least one.

    Parameters
    ----------
    participants, size : int
        Clients per round, and members of a cohort.

    Returns
    -------
    int
        The number of cohorts.
    """
    return max(1, participants // size)


def deal_cohorts(order: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Split clients, in this order, into cohorts of at least `size` members.

    Parameters
    ----------
    order : ndarray
        The clients.
    size : int
        The fewest members of a cohort.

    Returns
    -------
    ndarray, ndarray
        A table with one row per cohort, padded to the widest; and which entries are real members.

    Examples
    --------
    >>> deal_cohorts(np.arange(7), 3)[0].tolist(), deal_cohorts(np.arange(7), 3)[1].sum(axis=1).tolist()
    ([[0, 1, 2, 3], [4, 5, 6, 4]], [4, 3])
    """
    parts = np.array_split(order, max(1, len(order) // size))
    widest = max(len(part) for part in parts)
    table = np.stack([np.pad(part, (0, widest - len(part)), constant_values=part[0]) for part in parts])
    return table.astype(np.int32), np.stack([np.arange(widest) < len(part) for part in parts])


def largest_cohort(clients: int, size: int, fixed: bool) -> int:
    """Return the most members that a cohort of at least `size` can have.

    Parameters
    ----------
    clients, size : int
        Number of clients, and the fewest members of a cohort.
    fixed : bool
        Whether cohorts stay as they are. New ones are made of the clients that are there, whose number nobody knows before.

    Returns
    -------
    int
        The number of members.

    Examples
    --------
    >>> largest_cohort(19, 10, fixed=True), largest_cohort(20, 10, fixed=True), largest_cohort(20, 10, fixed=False)
    (19, 10, 19)
    """
    return math.ceil(clients / max(1, clients // size)) if fixed else min(clients, 2 * size - 1)


def cohort_table(clients: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split all clients at random into cohorts that stay fixed.

    Parameters
    ----------
    clients, size, seed : int
        Number of clients, fewest members of a cohort, and the seed of the draw.

    Returns
    -------
    ndarray, ndarray
        As in `deal_cohorts`.
    """
    return deal_cohorts(np.random.default_rng([seed, COHORT_STREAM]).permutation(clients), size)


def cohort_roster(sampling: str, *, size: int, fixed: bool, participants: int, clients: int, seed: int, **how: Any) -> Roster:
    """Choose the cohorts of every round: its clients, cohort by cohort, each padded to the round's widest.

    Parameters
    ----------
    size
        The fewest members of a cohort.
    fixed
        Whether a client stays in one cohort; else the chosen clients of a round form new ones.
    sampling, participants, clients, seed, **how
        As in `roster`. Of fixed cohorts, whole ones are chosen.

    Returns
    -------
    Roster
        As in `roster`.
    """
    count = cohorts_per_round(participants, size)
    if fixed:
        table, real = cohort_table(clients, size, seed)
        chosen = roster(sampling, clients=len(table), participants=min(count, len(table)), seed=seed, **how)
        return [(table[who].ravel(), (real[who] & here[:, None]).ravel()) for who, here in chosen]
    result = []
    for t, (who, here) in enumerate(roster(sampling, clients=clients, participants=count * size, seed=seed, **how)):
        # an order of their own: where all clients take part in every round, they would meet the same ones again and again
        table, real = deal_cohorts(np.random.default_rng([seed, COHORT_STREAM, t]).permutation(len(who)), size)
        result.append((who[table].ravel(), (here[table] & real).ravel()))
    return result
