"""Many clients, large models: time and memory of a round.

    python benchmarks/scale.py [--quick] [--out docs/results/benchmarks]

Every point runs in a process of its own, whose largest memory is what the operating system says. Data come from a function of
the client's number, so that they take no room; what clients keep is in the simulator's store.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from workloads import RESULTS

HERE = Path(__file__).parent


class Drawn:
    """Rows of clients that take no room: every client has those of one of a few hundred, by its number."""

    def __init__(self, clients: int, pool: np.ndarray) -> None:
        self.shape, self.pool = (clients, *pool.shape[1:]), pool

    def __getitem__(self, clients: np.ndarray) -> np.ndarray:
        return self.pool[clients.astype(np.int64) * 2_654_435_761 % len(self.pool)]


def one_point(point: dict[str, Any]) -> dict[str, Any]:
    """Train a little; returns seconds a round and memory."""
    from fedpdm.config import load_config
    from fedpdm.data import Federation
    from fedpdm.engines.simulation.build import build_simulation

    n, k, classes, features, rows = (point[name] for name in ("clients", "participants", "classes", "features", "rows"))
    rng = np.random.default_rng(0)
    test = rng.standard_normal((100, features), np.float32), rng.integers(0, classes, 100, np.int32)
    names = tuple(map(str, range(classes))), ()
    pool = max(8, min(512, 2**28 // (4 * rows * features)))
    examples = rng.standard_normal((pool, rows, features), np.float32) / np.float32(features**0.5)
    labels = rng.integers(0, classes, (pool, rows), np.int32)
    federation = Federation(
        Drawn(n, examples),
        Drawn(n, labels),
        np.full(n, rows, np.int32),
        *test,
        classes,
        "drawn",
        *names,
        {},
    )  # type: ignore[arg-type]
    chunk = point.get("chunk", 10)
    settings = [
        *("algorithm.name=fedpdm", f"algorithm.server_rule={point.get('rule', 'participants')}", "algorithm.rho=0.1"),
        *(
            f"data.clients={n}",
            "rounds.all_first=false",
            f"rounds.participants={k}",
            "rounds.total=100000",
            "metrics.diagnose_every=0",
        ),
        *(f"local.steps={point['steps']}", f"local.batch_size={min(10, rows)}", "local.step_size=0.1"),
        *("metrics.evaluate_every=1000", f"compression.uplink={point.get('uplink', 1.0)}", "compression.kind=topk"),
    ]
    import fedpdm.engines.simulation.state as engine

    engine.CHUNK = chunk
    simulation = build_simulation(load_config("plain", settings), federation)
    parts = {"bring": 0.0, "compute": 0.0, "store": 0.0}
    for name, method in (("bring", "bring_in"), ("store", "take_out")):
        original = getattr(simulation.window, method)

        def timed(*args: Any, name: str = name, original: Any = original) -> Any:
            import jax

            if name == "store":
                jax.block_until_ready(args[0])
            began = time.perf_counter()
            result = original(*args)
            parts[name] += time.perf_counter() - began
            return result

        setattr(simulation.window, method, timed)
    simulation.advance()  # compiles
    parts.update(bring=0.0, store=0.0)
    calls, began = point.get("calls", 5), time.perf_counter()
    for _ in range(calls):
        simulation.advance()
    seconds, rounds = time.perf_counter() - began, calls * chunk
    kept = simulation.window.store.length if simulation.window.store else 0
    return {
        "ms_per_round": 1e3 * seconds / rounds,
        "ms_compute": 1e3 * (seconds - parts["bring"] - parts["store"]) / rounds,
        "ms_bring_in": 1e3 * parts["bring"] / rounds,
        "ms_store": 1e3 * parts["store"] / rounds,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "records": kept,
    }


ADULT = {"participants": 300, "classes": 2, "features": 81, "rows": 20, "steps": 10}
MNIST = {"participants": 30, "classes": 10, "features": 785, "rows": 20, "steps": 10}
LARGE = {"clients": 1000, "participants": 10, "classes": 10, "rows": 10, "steps": 3, "uplink": 0.01, "chunk": 1, "calls": 3}
POINTS: list[dict[str, Any]] = [
    *({"curve": "N", "clients": n, **ADULT} for n in (10_000, 100_000, 1_000_000)),
    *({"curve": "N", "clients": n, **MNIST} for n in (1_000, 10_000, 100_000)),
    {"curve": "rule", "clients": 1_000_000, **ADULT, "rule": "dual-memory"},
    *({"curve": "K", "clients": 100_000, **ADULT, "participants": k} for k in (30, 100, 1000)),
    *({"curve": "Q", "clients": 100_000, **ADULT, "steps": q} for q in (1, 30, 100)),
    *({"curve": "d", **LARGE, "features": d // 10} for d in (10_000, 100_000, 1_000_000, 10_000_000)),
]


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Time and memory against each of the sizes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(13, 3.6), layout="constrained")
    keys = {"N": "clients", "K": "participants", "Q": "steps", "d": "size"}
    for axis, (curve, key) in zip(axes, keys.items(), strict=True):
        rows = [row | {"size": row["classes"] * row["features"]} for row in found if row["curve"] == curve]
        memory = axis.twinx()
        for kind in sorted({row["classes"] for row in rows}):
            same = sorted((row for row in rows if row["classes"] == kind), key=lambda row: row[key])
            label = f"d={same[0]['size']:,}" if curve == "N" else None
            axis.plot([row[key] for row in same], [row["ms_per_round"] for row in same], "o-", label=label)
            memory.plot([row[key] for row in same], [row["peak_gb"] for row in same], "s:", color="0.5")
        axis.set(xscale="log", yscale="log", xlabel=f"{curve} ({key})" if key != "size" else "d", ylabel="ms a round")
        times = [row["ms_per_round"] for row in rows]
        axis.set_ylim(min(times) / 3, max(times) * 3)
        memory.set(ylabel="GB (dotted)", ylim=(0, 6.5))
        if curve == "N":
            axis.legend()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first points only")
    parser.add_argument("--curve", default="", help="one curve only")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(one_point(json.loads(options.point))))
        return
    found = []
    for point in POINTS[: 1 if options.quick else None]:
        if options.curve and point["curve"] != options.curve:
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--point", json.dumps(point)]
            done = subprocess.run(command, capture_output=True, text=True, env=None, cwd=folder, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        row = point | json.loads(done.stdout.splitlines()[-1])
        found.append(row)
        size = (
            f"N={row['clients']:>9,} K={row['participants']:>4} d={row['classes'] * row['features']:>10,} Q={row['steps']:>3}"
        )
        parts = f"compute {row['ms_compute']:.1f}, data {row['ms_bring_in']:.1f}, store {row['ms_store']:.1f}"
        print(f"{size}: {row['ms_per_round']:9.1f} ms a round ({parts}), {row['peak_gb']:.2f} GB", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scale.json").write_text(json.dumps(found, indent=1) + "\n")
    if not (options.quick or options.curve):
        draw(found, options.out / "scale.png")


if __name__ == "__main__":
    main()
