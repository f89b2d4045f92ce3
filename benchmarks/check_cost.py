"""What the check of messages costs, and that it changes nothing without attackers: MNIST as in `fedpdm run demo`.

    python benchmarks/check_cost.py [--rounds 30] [--repeats 3] [--out docs/results/benchmarks/check_cost.json]

Seconds are CPU time of compiled rounds, the least of the repeats; the two kinds take turns.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.cache import remember_compilations
from fedpdm.config import load_config
from fedpdm.data.prepare import build_federation, radius_of
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.setup.band import band_of


def timed(simulation: Simulation) -> tuple[float, list[dict[str, Any]]]:
    """Run from the start with programs that are compiled already; CPU seconds, and the rows."""
    simulation.restart(0)
    began = time.process_time()
    rows = list(simulation.run())
    return time.process_time() - began, rows


def main() -> None:
    """Compare rounds with and without the check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    remember_compilations()
    quiet = [
        "data.basis_size=200",
        "metrics.diagnose_every=0",
        f"metrics.evaluate_every={options.rounds}",
        f"rounds.total={options.rounds}",
    ]
    config = load_config("demo", ["data.basis_size=200", *quiet])
    federation = build_federation(config, progress=False)
    plain = build_simulation(config, federation)
    band = band_of(plain.setup, plain.plan, radius_of(config))
    schedule, shares = plain.schedule, plain.shares
    checked = Simulation(plain.setup._replace(band=band), plain.federation, schedule, plain.plan, shares)
    kinds = {"plain": plain, "checked": checked}
    rows = {name: list(simulation.run()) for name, simulation in kinds.items()}  # compiles
    best = dict.fromkeys(kinds, np.inf)
    for _ in range(options.repeats):
        for name, simulation in kinds.items():
            seconds, rows[name] = timed(simulation)
            best[name] = min(best[name], seconds)
    models = [np.asarray(simulation.state.server.x0) for simulation in kinds.values()]
    result = {
        "milliseconds_per_round": {name: round(1e3 * seconds / options.rounds, 2) for name, seconds in best.items()},
        "overhead": round(best["checked"] / best["plain"] - 1, 4),
        "accuracy": {name: found[-1]["test_accuracy"] for name, found in rows.items()},
        "largest_difference_of_a_weight": float(np.max(np.abs(models[0] - models[1]))),
        "messages_refused": sum(row["refused"] for row in rows["checked"]),
        "messages": options.rounds * config.rounds.participants,
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
