"""Assign the examples of a data set to clients: every example to exactly one client, none left over."""

__all__ = ["labels_per_client", "one_class_per_client", "dirichlet", "iid", "by_column"]

import numpy as np

from fedpdm.errors import ConfigError, DataError

_DRAWS = 10  # random assignments of labels to clients tried before unequal sizes are accepted


def labels_per_client(
    labels: np.ndarray, clients: int, labels_per_client: int = 4, seed: int | np.random.Generator = 0
) -> list[np.ndarray]:
    """Give each client examples of exactly `labels_per_client` labels, and all clients equally many.

    Classes are not equally large, so a client's share of each of its labels varies: first every class gets
    clients at random, in proportion to its size; then shares move along chains of clients that hold two
    labels (augmenting paths) until both the clients' and the classes' totals are right.

    Parameters
    ----------
    labels : ndarray
        [examples] class of every example.
    clients : int
        The number of clients.
    labels_per_client : int
        How many different labels every client holds.
    seed : int or Generator
        Source of the random choices.

    Returns
    -------
    list of ndarray
        Every client's example indices, sorted. The number of labels is always exact. Sizes differ by at
        most one if one of ten random draws of the label sets allows it, else as little as those draws allow.
    """
    rng = np.random.default_rng(seed)
    present, counts, total = _classes_of(labels, clients)
    held = labels_per_client
    if not 1 <= held <= len(present):
        raise ConfigError(f"labels per client is {held}, but the data has {len(present)} labels; give 1 to that many")
    slots = clients * held
    if slots < len(present):
        raise ConfigError(
            f"{clients} clients with {held} labels each cannot hold all {len(present)} labels; raise either number"
        )
    if np.minimum(counts, clients).sum() < slots:
        raise ConfigError(
            f"{clients} clients with {held} labels each need {slots} different (client, label) pairs, but "
            f"{total} examples give only {np.minimum(counts, clients).sum()}; lower either number"
        )
    holders = _apportion(counts, slots, np.minimum(counts, clients))
    sizes = np.diff(np.linspace(0, total, clients + 1).astype(int))
    best, spread = np.zeros((0, 0), int), np.inf
    for _ in range(_DRAWS):
        shares = _balance(_draw_label_sets(holders, clients, held, rng), counts, rng.permutation(sizes))
        if np.ptp(shares.sum(1)) < spread:
            best, spread = shares, np.ptp(shares.sum(1))
        if spread <= 1:
            break
    return _deal(labels, present, best, rng)


def one_class_per_client(labels: np.ndarray, clients: int, seed: int | np.random.Generator = 0) -> list[np.ndarray]:
    """Give each client examples of one class. Classes get clients in proportion to their size.

    The first clients hold the first class, and so on. Sizes within a class differ by at most one.

    Parameters
    ----------
    labels : ndarray
        Label of every example.
    clients : int
        Number of clients.
    seed : int or numpy Generator
        Source of the random choices.

    Returns
    -------
    list of ndarray
        The example indices of every client.
    """
    rng = np.random.default_rng(seed)
    present, counts, _ = _classes_of(labels, clients)
    if clients < len(present):
        raise ConfigError(f"{clients} clients with one class each cannot hold {len(present)} classes; raise clients")
    parts = []
    for label, share in zip(present, _apportion(counts, clients, counts), strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        parts += [np.sort(part) for part in np.array_split(members, share)]
    return parts


def dirichlet(
    labels: np.ndarray,
    clients: int,
    alpha: float = 0.5,
    seed: int | np.random.Generator = 0,
    minimum: int = 1,
) -> list[np.ndarray]:
    """Split every class by a Dirichlet(alpha) draw. Sizes are ragged; classes are more mixed the larger `alpha` is.

    A client with fewer than `minimum` examples gets random ones from the clients that have most.

    Parameters
    ----------
    labels : ndarray
        Label of every example.
    clients : int
        Number of clients.
    alpha : float
        Concentration, above 0.
    seed : int or numpy Generator
        Source of the random choices.
    minimum : int
        The fewest examples of a client.

    Returns
    -------
    list of ndarray
        The example indices of every client.

    References
    ----------
    Hsu, Qi, Brown: "Measuring the effects of non-identical data distribution for federated visual classification", 2019.
    """
    rng = np.random.default_rng(seed)
    if not 1e-3 <= alpha <= 1e6:
        raise ConfigError(f"alpha is {alpha}, but must lie in [0.001, 1e6]; 0.5 is usual, smaller is more uneven")
    present, _, total = _classes_of(labels, clients)
    if not 0 < clients * minimum <= total:
        raise ConfigError(
            f"{clients} clients with at least {minimum} examples each do not fit {total} examples; "
            f"the minimum must lie in [1, {total // clients}]"
        )
    owner = np.empty(total, int)
    for label in present:
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(members)
        owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    sizes = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes < minimum):
        while sizes[client] < minimum:
            richest = int(np.argmax(sizes))
            give = min(minimum - sizes[client], max(1, (sizes[richest] - minimum) // 2))
            owner[rng.permutation(np.flatnonzero(owner == richest))[:give]] = client
            sizes[richest] -= give
            sizes[client] += give
    return [np.flatnonzero(owner == client) for client in range(clients)]


def iid(labels: np.ndarray, clients: int, seed: int | np.random.Generator = 0) -> list[np.ndarray]:
    """Split the shuffled examples evenly; sizes differ by at most one.

    Parameters
    ----------
    labels : ndarray
        Label of every example.
    clients : int
        Number of clients.
    seed : int or numpy Generator
        Source of the random choices.

    Returns
    -------
    list of ndarray
        The example indices of every client.
    """
    _, _, total = _classes_of(labels, clients)
    order = np.random.default_rng(seed).permutation(total)
    return [np.sort(part) for part in np.array_split(order, clients)]


def by_column(clients: np.ndarray) -> list[np.ndarray]:
    """Give each client the examples that have its number.

    Parameters
    ----------
    clients : ndarray
        Number of the client, from 0, for every example.

    Returns
    -------
    list of ndarray
        The example indices of every client.

    Examples
    --------
    >>> [part.tolist() for part in by_column(np.array([1, 0, 1]))]
    [[1], [0, 2]]
    """
    return np.split(np.argsort(clients, kind="stable"), np.cumsum(np.bincount(clients))[:-1])


def _classes_of(labels: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the classes that occur, their counts, and the number of examples; every client must get one."""
    if clients < 1:
        raise ConfigError(f"clients is {clients}, but must be at least 1")
    if clients > len(labels):
        raise DataError(f"{clients} clients cannot share {len(labels)} examples; give at most {len(labels)} clients")
    present, counts = np.unique(labels, return_counts=True)
    return present, counts, len(labels)


def _apportion(counts: np.ndarray, total: int, most: np.ndarray) -> np.ndarray:
    """Divide `total` in proportion to `counts` by largest remainder, each share within [1, most]."""
    quota = total * counts / counts.sum()
    shares = np.clip(quota.astype(int), 1, most)
    while shares.sum() != total:
        if shares.sum() < total:
            shares[np.argmax(np.where(shares < most, quota - shares, -np.inf))] += 1
        else:
            shares[np.argmin(np.where(shares > 1, quota - shares, np.inf))] -= 1
    return shares


def _draw_label_sets(holders: np.ndarray, clients: int, held: int, rng: np.random.Generator) -> np.ndarray:
    """Draw which client holds which class: `held` per client, `holders[k]` clients for class k."""
    # handing out the classes in rounds gives no client a class twice, since no class has more than one round
    order = rng.permutation(len(holders))
    sets = np.repeat(order, holders[order]).reshape(held, clients).T.copy()
    # random exchanges that keep both counts remove the pattern of this assignment
    moves = 10 * sets.size
    pairs = zip(rng.integers(clients, size=(moves, 2)), rng.integers(held, size=(moves, 2)), strict=True)
    for (one, other), (slot, place) in pairs:
        if sets[one, slot] not in sets[other] and sets[other, place] not in sets[one]:
            sets[one, slot], sets[other, place] = sets[other, place], sets[one, slot]
    holds = np.zeros((clients, len(holders)), bool)
    holds[np.arange(clients)[:, None], sets] = True
    return holds


def _balance(holds: np.ndarray, counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Find whole shares, at least 1 where `holds`, whose rows sum to `sizes` and columns to `counts`."""
    held = holds.sum(1)
    shares = np.where(holds, (sizes // held)[:, None], 0)
    # the remainder of the division goes to a client's first labels
    shares += holds & (np.cumsum(holds, axis=1) <= (sizes % held)[:, None])
    while (excess := shares.sum(0) - counts).any():
        path = _path(shares, excess)
        if not path:
            return _settle(shares, holds, counts)
        # small steps keep the shares even; large ones keep the number of steps small
        amount = min(excess[path[0][1]], -excess[path[-1][2]])
        amount = min(max(1, amount // len(holds)), *(shares[client, label] - 1 for client, label, _ in path))
        for client, label, other in path:
            shares[client, label] -= amount
            shares[client, other] += amount
    return shares


def _path(shares: np.ndarray, excess: np.ndarray) -> list[tuple[int, int, int]]:
    """Find moves (client, from label, to label) that lead from a label in excess to one in deficit."""
    came: dict[int, tuple[int, int, int] | None] = {int(label): None for label in np.flatnonzero(excess > 0)}
    queue = list(came)
    for label in queue:
        if excess[label] < 0:
            path = []
            while (move := came[label]) is not None:
                path.append(move)
                label = move[1]
            return path[::-1]
        givers = np.where((shares[:, label] > 1)[:, None] & (shares > 0), shares[:, [label]], 0)
        for other in np.flatnonzero(givers.any(0)).tolist():
            if other not in came:
                came[other] = (int(np.argmax(givers[:, other])), label, other)
                queue.append(other)
    return []


def _settle(shares: np.ndarray, holds: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Correct the classes' totals if equal sizes are not possible, and make the sizes as even as possible."""
    for label in range(len(counts)):
        while (excess := shares[:, label].sum() - counts[label]) != 0:
            sizes = shares.sum(1)
            if excess > 0:
                client = np.argmax(np.where(shares[:, label] > 1, sizes, -1))
            else:
                client = np.argmin(np.where(holds[:, label], sizes, np.iinfo(int).max))
            shares[client, label] -= np.sign(excess)
    return shares


def _deal(labels: np.ndarray, present: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Hand out shuffled examples: `shares[i, k]` of class `present[k]` to client i."""
    hands: list[list[np.ndarray]] = [[] for _ in shares]
    for label, share in zip(present, shares.T, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        for hand, part in zip(hands, np.split(members, np.cumsum(share)[:-1]), strict=True):
            hand.append(part)
    return [np.sort(np.concatenate(hand)) for hand in hands]
