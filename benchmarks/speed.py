"""How fast a round is: the simulator against a Numba program, and against other simulators where they are installed.

    python benchmarks/speed.py [--repeats 5] [--out docs/results/benchmarks] [--only NAME ...] [--anyway]

All programs are made first. Then everything is timed in one run, in turn, so that a machine that slows down slows down
everybody; a figure is the median over the repeats of the milliseconds per round, after compilation. Peers (`make bench-peers`)
run in processes and environments of their own, which sit still while others are timed. On a busy machine nothing is reported:
see `busy`.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numba import njit

sys.path.insert(0, str(Path(__file__).parent))
from numba_reference import Reference
from workloads import BATCH, CLIENTS, EVALUATE_EVERY, PARTICIPANTS, RESULTS, STEPS, WORKLOADS, Workload, arrays

from fedpdm.choices import ALGORITHMS
from fedpdm.config import load_config
from fedpdm.data import federation_from_arrays
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.native import SWITCH

HERE = Path(__file__).parent
PEERS = HERE.parent / ".venv-peers"
LEAST_SHARE = 0.85  # of the processor time that a pure computation on all cores must get

Run = Callable[[int], Any]

THIN = (
    "privacy.mechanism=paper",
    "privacy.epsilon=100000",
    "privacy.delta=1e-4",
    "compression.kind=topk",
    "compression.uplink=0.1",
)


def ours(workload: Workload, *settings: str, native: bool = True) -> Run:
    """The simulator through its public functions, with its usual measurements of every round."""
    features, labels, *test = arrays(workload)
    os.environ[SWITCH] = str(int(native))
    fixed = [
        f"local.steps={STEPS}",
        f"local.batch_size={BATCH}",
        "local.tolerance=0",
        f"local.step_size={workload.step_size}",
        f"algorithm.rho={workload.rho}",
        f"problem.beta={workload.beta}",
        f"problem.gamma={workload.gamma * CLIENTS}",
        "rounds.total=20000",
        "rounds.all_first=false",
        f"rounds.participants={PARTICIPANTS}",
        f"metrics.evaluate_every={EVALUATE_EVERY}",
        f"metrics.diagnose_every={workload.rounds}",
    ]
    config = load_config("paper-mnist", [*fixed, *settings])
    federation = federation_from_arrays(list(zip(features, labels, strict=True)), *test)
    simulation = build_simulation(config, federation)
    simulation.diagnose = dict  # the objective over all data is not part of the workload

    def run(rounds: int) -> None:
        assert rounds == workload.rounds
        simulation.advance()

    run(workload.rounds)
    return run


WHOLE_STEPS, WHOLE_ROUNDS = 20, 10  # of local steps that use all of a client's examples


def products(workload: Workload) -> Run:
    """The matrix products of such steps and nothing else: scores and gradients, one client after the other, by XLA."""
    features = jnp.asarray(arrays(workload)[0][:PARTICIPANTS])

    def steps(client: jax.Array) -> jax.Array:
        def step(_: int, x: jax.Array) -> jax.Array:
            return 1e-3 * (x @ client.T) @ client

        return jax.lax.fori_loop(0, WHOLE_STEPS, step, client[: workload.classes])

    round_of = jax.jit(lambda features: jax.lax.map(steps, features))

    def run(rounds: int) -> None:
        for _ in range(rounds):
            round_of(features).block_until_ready()

    run(2)
    return run


def reference(workload: Workload, rho: float) -> Run:
    numbers = {"eta": workload.step_size, "rho": rho, "beta": workload.beta, "gamma": workload.gamma}
    found = Reference(*arrays(workload), participants=PARTICIPANTS, steps=STEPS, batch=BATCH, **numbers)
    found.run(2)
    return found.run


def peer(name: str, python: Path, workload: str) -> Run:
    """A process that runs a number of rounds for every line on its input, and prints the time."""
    command = [str(python), str(HERE / "peers" / f"{name}.py"), workload]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE)
    assert process.stdin is not None
    assert process.stdout is not None

    def run(rounds: int) -> float:
        process.stdin.write(f"{rounds}\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise RuntimeError(f"{name} ended: {process.wait()}")

    run(2)
    return run


def contestants(workload: str) -> dict[str, Callable[[], Run]]:
    w = WORKLOADS[workload]
    table: dict[str, Callable[[], Run]] = {
        "Numba reference, FedPDM": lambda: reference(w, w.rho),
        "Numba reference, FedAvg": lambda: reference(w, 0.0),
    }
    for name in ALGORITHMS.built_in:
        table[f"fedpdm: {name}"] = lambda name=name: ours(w, f"algorithm.name={name}")
    table["fedpdm: fedpdm, noise, clip, top-k 10 %"] = lambda: ours(w, *THIN)
    table["fedpdm: fedpdm, XLA alone"] = lambda: ours(w, native=False)
    for path in sorted((HERE / "peers").glob("[!_]*.py")):
        python = PEERS / path.stem / "bin" / "python"
        if python.exists():
            table[f"peer: {path.stem}"] = lambda path=path, python=python: peer(path.stem, python, workload)
    return table


@njit(nogil=True)
def _spin(count: int) -> float:
    total = 0.0
    for i in range(count):
        total += 1.0 / (i + 1.0)
    return total


def busy() -> float:
    """The share of the machine's cores that a computation on all of them gets just now."""
    from concurrent.futures import ThreadPoolExecutor

    cores = len(os.sched_getaffinity(0))
    _spin(10)
    with ThreadPoolExecutor(cores) as pool:
        wall, processor = time.perf_counter(), time.process_time()
        list(pool.map(_spin, [100_000_000] * cores))
        return (time.process_time() - processor) / (time.perf_counter() - wall) / cores


def peaks() -> dict[str, float]:
    """Measure the limits of this machine: multiply-adds of a large matrix product, and bytes read from memory by all cores."""
    from concurrent.futures import ThreadPoolExecutor

    matrix = np.random.default_rng(0).standard_normal((2048, 2048), np.float32)
    cores = len(os.sched_getaffinity(0))
    parts = np.array_split(np.ones(2**27, np.float32), cores)

    def best(work: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    with ThreadPoolExecutor(cores) as pool:
        reading = best(lambda: list(pool.map(np.sum, parts)))
    return {"gflops": 2e-9 * 2048**3 / best(lambda: matrix @ matrix), "gbytes_per_second": 1e-9 * 2**29 / reading}


def needs(w: Workload) -> dict[str, float]:
    """Count what a round needs at least: operations, and bytes that no cache holds."""
    examples, coordinates = PARTICIPANTS * STEPS * BATCH, w.classes * w.features
    operations = examples * 4 * w.features + PARTICIPANTS * STEPS * coordinates * 12  # dot and update; drift with its division
    return {"mflop": 1e-6 * operations, "mbytes": 1e-6 * 4 * (examples * w.features + 4 * PARTICIPANTS * coordinates)}


def whole_batches(workload: str) -> dict[str, Run]:
    """Steps on all examples (the default of the sound mechanism), and their matrix products."""
    w = WORKLOADS[workload]._replace(rounds=WHOLE_ROUNDS)
    settings = "local.batch_size=0", f"local.steps={WHOLE_STEPS}", "problem.loss=softmax"
    return {"fedpdm_ms": ours(w, *settings), "products_ms": products(w)}


def measure_whole_batches(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    """Time both in turn."""
    times = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            began = time.perf_counter()
            run(WHOLE_ROUNDS)
            times[name].append(1e3 * (time.perf_counter() - began) / WHOLE_ROUNDS)
    found = {name: statistics.median(measured) for name, measured in times.items()}
    return found | {"ratio": found["fedpdm_ms"] / found["products_ms"]}


def measure(workload: str, runs: dict[str, Run], repeats: int) -> dict[str, dict[str, Any]]:
    """Time everybody in turn, repeat by repeat."""
    w = WORKLOADS[workload]
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name, run in runs.items():
            rounds = w.rounds if "peer" not in name else max(10, w.rounds // 10)
            began = time.perf_counter()
            told = run(rounds)
            seconds = told if "peer" in name else time.perf_counter() - began
            times[name].append(1e3 * seconds / rounds)
            print(f"  {workload} {repeat + 1}/{repeats}  {times[name][-1]:9.3f} ms  {name}", file=sys.stderr)
    limit = statistics.median(times.get("Numba reference, FedPDM", [float("nan")]))
    return {
        name: {"ms_per_round": statistics.median(found), "all": found, "ratio": statistics.median(found) / limit}
        for name, found in times.items()
    }


def draw(results: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(11, 4.5), layout="constrained")
    for axis, (workload, found) in zip(np.atleast_1d(axes), results.items(), strict=True):
        names = sorted(found, key=lambda name: -found[name]["ms_per_round"])
        values = [found[name]["ms_per_round"] for name in names]
        colours = ["0.6" if "peer" in name else "tab:blue" if "fedpdm:" in name else "tab:orange" for name in names]
        axis.barh(names, values, color=colours)
        axis.set(xscale="log", title=workload, xlabel="ms a round", xlim=(min(values) / 2, max(values) * 4))
        for place, value in enumerate(values):
            axis.text(value, place, f" {value:.3g}", va="center", fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of contestants")
    parser.add_argument("--workload", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--anyway", action="store_true", help="report on a busy machine too")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.repeats < 3:
        parser.error(f"--repeats {options.repeats}: a median needs at least 3.")

    def look(when: str) -> float:
        share = busy()
        if share < LEAST_SHARE and not options.anyway:
            sys.exit(
                f"The machine is busy {when}: a computation got {share:.0%} of it, not {LEAST_SHARE:.0%}. Nothing is reported."
            )
        return share

    only = options.only
    runs = {
        workload: {name: make() for name, make in contestants(workload).items() if not only or any(o in name for o in only)}
        for workload in options.workload
    }
    whole_runs = {workload: whole_batches(workload) for workload in options.workload}
    shares = [look("before")]
    results, whole = {}, {}
    for workload in options.workload:
        results[workload] = measure(workload, runs[workload], options.repeats)
        whole[workload] = measure_whole_batches(whole_runs[workload], options.repeats)
        shares.append(look("after"))
    options.out.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "share_of_the_machine": shares,
        "peaks": peaks(),
        "needs": {workload: needs(WORKLOADS[workload]) for workload in options.workload},
        "results": results,
        "whole_batches": whole,
    }
    (options.out / "speed.json").write_text(json.dumps(document, indent=1) + "\n")
    draw(results, options.out / "speed.png")
    for workload, found in results.items():
        print(f"\n{workload}: ms a round, and ratio to the Numba reference of FedPDM")
        for name, row in sorted(found.items(), key=lambda item: item[1]["ms_per_round"]):
            print(f"  {row['ms_per_round']:9.3f}  {row['ratio']:6.2f}  {name}")
        both = whole[workload]
        print(f"  whole batches: {both['fedpdm_ms']:.1f} ms a round, their matrix products {both['products_ms']:.1f}")
    print(f"\nWritten: {options.out / 'speed.json'}, {options.out / 'speed.png'}")


if __name__ == "__main__":
    main()
