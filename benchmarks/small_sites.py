"""Does a small site make a private model worse than leaving it out? Seven clients of 20 to 20,000 rows, made-up rows.

    python benchmarks/small_sites.py    # writes docs/results/benchmarks/small_sites.json, about five minutes

Each client in turn is left out, at epsilon 1, with shares by precision (what `problem.weights = "rows"` does under privacy), by
rows, and with equal shares. The figure is the log loss on test rows. A draw deals the rows to the clients at random and draws
the noise; the runs with and without a client share their draw: the others have the same rows and the same noise.
"""

import argparse
import itertools
import json

import numpy as np
from fit_defaults import DELTA, RESULTS, MadeUp, made_up, private

from fedpdm.setup.defaults import CLIP, Sizes, rule, signal
from fedpdm.setup.shares import precisions

SIZES = np.geomspace(20, 20_000, 7).round().astype(int)
EPSILON = 1.0
SHARES = {"precision": precisions, "rows": lambda sizes, *_: sizes.copy(), "clients": lambda sizes, *_: np.ones(len(sizes))}


def large_tables(count: int) -> list[MadeUp]:
    """The first made-up tables with enough rows."""
    found = (made_up(seed) for seed in itertools.count(2000))
    return list(itertools.islice((table for table in found if (~table.test).sum() >= SIZES.sum()), count))


def dealt(table: MadeUp, draw: int) -> MadeUp:
    """The table's training rows, dealt to clients of these sizes; those that are left over belong to nobody."""
    order = np.random.default_rng(draw).permutation(np.flatnonzero(~table.test))[: SIZES.sum()]
    clients = np.full(len(table.labels), -1)
    clients[order] = np.repeat(np.arange(len(SIZES)), SIZES)
    return table._replace(clients=clients)


def loss(table: MadeUp, shares: str, left_out: int | None, draw: int) -> float:
    """The log loss of one draw."""
    table = dealt(table, draw)
    if left_out is not None:
        table = table._replace(clients=np.where(table.clients == left_out, -1, table.clients))
    chosen = rule(signal(Sizes(SIZES.astype(float), len(table.names)), EPSILON, DELTA))
    travel = chosen["rounds"]["total"] / chosen["algorithm"]["rho"]
    shrink = chosen["data"]["standard_shrink"]
    return private(table, EPSILON, travel, CLIP, draw, shrink, SHARES[shares])["log_loss"]


def main() -> None:
    """Every kind of share, with all clients and without each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20, help="for each table")
    parser.add_argument("--tables", type=int, default=2)
    parser.add_argument("--shares", nargs="+", choices=SHARES, default=list(SHARES))
    given = parser.parse_args()
    tables, cells = large_tables(given.tables), []
    draws = list(itertools.product(tables, range(given.draws)))
    for shares in given.shares:
        whole = np.array([loss(table, shares, None, draw) for table, draw in draws])
        for client, size in enumerate(SIZES):
            change = np.array([loss(table, shares, client, draw) for table, draw in draws]) - whole
            error = float(change.std(ddof=1) / len(draws) ** 0.5)
            cells.append({"shares": shares, "left_out": int(size), "log_loss": round(float(whole.mean()), 5)})
            cells[-1] |= {"change": round(float(change.mean()), 6), "error": round(error, 6), "draws": len(draws)}
            print(cells[-1], flush=True)
    if given.shares == list(SHARES):
        (RESULTS / "small_sites.json").write_text(json.dumps(cells, indent=1) + "\n")


if __name__ == "__main__":
    main()
