"""Who takes part when: decided before training, from the seed alone, the same in every engine."""

import math

import numpy as np

__all__ = ["SAMPLINGS", "roster", "fair_share"]

SAMPLINGS = ("uniform", "cycle")


def roster(
    sampling: str, *, rounds: int, clients: int, participants: int, seed: int, all_first: bool, cap: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every round the chosen clients, and which of them may still take part under the cap.

    "uniform" draws `participants` different clients anew in every round. "cycle" goes through one random order of all
    clients again and again, so that after any number of rounds no two clients differ by more than one participation.
    With `all_first` the first round has everybody. `cap` > 0 is the most participations that a client agrees to.

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
    """Participations per client when they are dealt evenly: the cap that "cycle" never exceeds."""
    later = rounds - all_first
    return math.ceil(later * participants / clients) + all_first
