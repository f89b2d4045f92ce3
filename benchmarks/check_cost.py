"""What the check of messages costs, and that it changes nothing without attackers: MNIST as in `fedpdm run demo`.

    python benchmarks/check_cost.py [--work demo linearised batches] [--repeats 3] [--out FILE]

Seconds are CPU time of compiled rounds, the median of the repeats; the two kinds take turns. `demo` takes the preset's local
steps, `linearised` one gradient in a round, and `batches` a few small batches: the less the work of a round, the more the check
counts.
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

WORK = {
    "demo": [],
    "linearised": ["privacy.mode=linearised", "local.steps=1", "local.step_size=18"],
    "batches": ["privacy.mode=one-pass", "local.batch_size=64", "local.steps=4"],
}


def timed(simulation: Simulation) -> tuple[float, list[dict[str, Any]]]:
    """Run from the start with programs that are compiled already; CPU seconds, and the rows."""
    simulation.restart(0)
    began = time.process_time()
    rows = list(simulation.run())
    return time.process_time() - began, rows


def measure(work: str, rounds: int, repeats: int) -> dict[str, Any]:
    """Compare rounds with and without the check."""
    quiet = ["data.basis_size=200", "metrics.diagnose_every=0", f"metrics.evaluate_every={rounds}", f"rounds.total={rounds}"]
    config = load_config("demo", [*quiet, *WORK[work]])
    federation = build_federation(config, progress=False)
    plain = build_simulation(config, federation)
    band = band_of(plain.setup, plain.plan, radius_of(config))
    schedule, shares = plain.schedule, plain.shares
    checked = Simulation(plain.setup._replace(band=band), plain.federation, schedule, plain.plan, shares)
    kinds = {"plain": plain, "checked": checked}
    rows = {name: list(simulation.run()) for name, simulation in kinds.items()}  # compiles
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(repeats):
        for name, simulation in kinds.items():
            seconds, rows[name] = timed(simulation)
            taken[name].append(seconds)
    middle = {name: float(np.median(seconds)) for name, seconds in taken.items()}
    models = [np.asarray(simulation.state.server.x0) for simulation in kinds.values()]
    return {
        "milliseconds_per_round": {name: round(1e3 * seconds / rounds, 2) for name, seconds in middle.items()},
        "overhead": round(middle["checked"] / middle["plain"] - 1, 4),
        "accuracy": {name: found[-1]["test_accuracy"] for name, found in rows.items()},
        "largest_difference_of_a_weight": float(np.max(np.abs(models[0] - models[1]))),
        "messages_refused": sum(row["refused"] for row in rows["checked"]),
        "messages": rounds * config.rounds.participants,
    }


def main() -> None:
    """Measure each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    remember_compilations()
    result = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for work in options.work:
        result[work] = measure(work, options.rounds, options.repeats)
        print(work, json.dumps(result[work], indent=1), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
