"""Accuracy at a certified epsilon when cohorts share the noise: MNIST and Adult, add/remove, delta = 1e-5, t + d = 20 %.

    python benchmarks/cohorts.py [--data mnist adult] [--cohorts 100 25] [--algorithms fedpdm fedavg momentum]
                                 [--epsilons 0.2 1 3] [--seeds 5]
    python benchmarks/cohorts.py --bits
    python benchmarks/cohorts.py --workers
    python benchmarks/cohorts.py --clients 100 1000 10000

Settings come from a validation split. (Adult's grid replaced a first one after a look at test accuracies:
docs/secure-sums.md.) FedProx is not run: with one linearised step it is FedAvg. "momentum" is FedAvg with momentum 0.9 at the
server. `--bits`: accuracy against the bits of a word. `--workers`: 20 workers of 3,000 rows of MNIST and delta = 1.5e-4, the
setting of Xiang et al. (SIGMOD 2023). `--clients`: the unit is a whole client, of so many that share MNIST evenly. Finished
runs are kept in docs/results/benchmarks/cohorts-cells.jsonl and not run again; tables are cohorts.json, cohorts-bits.json,
cohorts-workers.json and cohorts-clients.json beside it.
"""

import argparse
import csv
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workloads import RESULTS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "toy_package"))  # a plugin: the algorithm "momentum"

from fedpdm.config import Config, load_config
from fedpdm.errors import ConfigError
from fedpdm.runs.sweep import Result, run_sweep

EPSILONS = ("0.1", "0.2", "0.5", "1", "3")
TUNING_SEEDS = {"mnist": (1000,), "adult": (1000, 1001, 1002)}
DATA = {
    "mnist": ("scattering", "labels", 10_000, ["data.scattering_scale=2", "data.basis=auto", "data.basis_size=200"]),
    "adult": ("piecewise", "one-class", 6_000, []),
}
COMMON = (
    "rounds.sampling=cycle",
    "rounds.all_first=false",
    "rounds.participants=0",
    "local.batch_size=0",
    "local.steps=1",
    "problem.loss=softmax",
    "problem.gamma=0.0",
    "data.clients=100",
    "data.radius=1.0",
    "data.scaling=none",
    "metrics.diagnose_every=0",
    "metrics.evaluate_every=1000",
    "metrics.tail=0.25",
    "privacy.mechanism=sound",
    "privacy.delta=1e-5",
    "privacy.mode=linearised",
    "privacy.trust=cohorts",
)


class Cell(NamedTuple):
    """One setting: rounds, step size of the one local step, rho (FedPDM), clip."""

    rounds: int
    step: float
    rho: float
    clip: float


# As many settings for every algorithm, laid out on the validation split.
GRID: dict[str, dict[str, list[Cell]]] = {
    "mnist": {
        "fedpdm": [
            *(Cell(60, 18, 0.01, 0.25), Cell(60, 18, 0.01, 0.35), Cell(80, 36, 0.005, 0.35), Cell(80, 72, 0.0025, 0.35)),
            *(Cell(80, 72, 0.0025, 0.7), Cell(120, 72, 0.0025, 0.7)),
        ],
        "fedavg": [
            *(Cell(60, 36, 0.0, 0.25), Cell(60, 72, 0.0, 0.25), Cell(80, 72, 0.0, 0.35), Cell(80, 144, 0.0, 0.35)),
            *(Cell(80, 144, 0.0, 0.7), Cell(120, 144, 0.0, 0.7)),
        ],
        "momentum": [
            *(Cell(60, 3.6, 0.0, 0.25), Cell(60, 7.2, 0.0, 0.25), Cell(80, 7.2, 0.0, 0.35), Cell(80, 14.4, 0.0, 0.35)),
            *(Cell(80, 14.4, 0.0, 0.7), Cell(120, 14.4, 0.0, 0.7)),
        ],
    },
    "adult": {
        "fedpdm": [Cell(60, 12, 0.005, 0.5), Cell(60, 18, 0.005, 0.35), Cell(60, 12, 0.01, 0.5), Cell(100, 18, 0.005, 0.5)],
        "fedavg": [Cell(60, 36, 0.0, 0.35), Cell(60, 36, 0.0, 0.5), Cell(60, 72, 0.0, 0.5), Cell(100, 36, 0.0, 0.7)],
        "momentum": [Cell(60, 3.6, 0.0, 0.35), Cell(60, 3.6, 0.0, 0.5), Cell(60, 7.2, 0.0, 0.5), Cell(100, 3.6, 0.0, 0.7)],
    },
}


def settings(
    data: str, cohort: int, algorithm: str, epsilon: str, cell: Cell, seed: int, validation: bool, others: Sequence[str] = ()
) -> Config:
    """One run."""
    features, partition, held_out, more = DATA[data]
    tenth = cohort / 10
    chosen = [
        *COMMON,
        *more,
        f"data.name={data}",
        f"data.features={features}",
        f"data.partition={partition}",
        f"data.validation={held_out if validation else 0}",
        f"algorithm.name={algorithm}",
        f"cohorts.size={cohort}",
        f"cohorts.colluding={round(tenth + 0.1)}",
        f"cohorts.dropouts={cohort // 5 - round(tenth + 0.1)}",
        f"privacy.epsilon={float(epsilon)}",
        f"privacy.clip={cell.clip}",
        f"rounds.total={cell.rounds}",
        f"local.step_size={float(cell.step)}",
        f"seed={seed}",
    ]
    if algorithm == "fedpdm":
        chosen += [f"algorithm.rho={cell.rho}", "algorithm.server_rule=dual-memory"]
    if algorithm == "momentum":
        chosen.append("algorithm.decay=0.9")
    return load_config("plain", [*chosen, *others])


def workers(epsilon: str, cell: Cell, seed: int, validation: bool) -> Config:
    """The setting of Xiang et al.: all rows in 20 parts, iid; here 2 of them may work with the server, and 2 may drop out."""
    more = ["data.clients=20", "data.partition=iid", "privacy.delta=1.5e-4", "cohorts.colluding=2", "cohorts.dropouts=2"]
    return settings("mnist", 20, "fedpdm", epsilon, cell, seed, validation, more)


def say(done: int, total: int, config: Config, result: Result) -> None:
    cell = (
        f"T {config.rounds.total} step {config.local.step_size:g} clip {config.privacy.clip} held out {config.data.validation}"
    )
    name = f"{config.data.name} {config.algorithm.name} cohort {config.cohorts.size} epsilon {config.privacy.epsilon} {cell}"
    print(f"{name} seed {config.seed}: {result.get('last', 'diverged')} {result.get('averaged')}", flush=True)


def study(data: str, cohort: int, algorithm: str, epsilon: str, seeds: int) -> dict[str, Any]:
    """Tune at one epsilon, then measure with fresh seeds."""
    store, cells = RESULTS / "cohorts-cells.jsonl", GRID[data][algorithm]
    tried: dict[tuple[Cell, str], float] = {}
    for cell in cells:
        tuning = [settings(data, cohort, algorithm, epsilon, cell, seed, True) for seed in TUNING_SEEDS[data]]
        found = run_sweep(tuning, store, say)
        tried |= {(cell, which): statistics.mean(r.get(which, 0.0) for r in found) for which in ("last", "averaged")}
    cell, which = max(tried, key=lambda choice: tried[choice])
    final = [settings(data, cohort, algorithm, epsilon, cell, seed, False) for seed in range(seeds)]
    accuracies = [result.get(which, 0.0) for result in run_sweep(final, store, say)]
    return {
        "data": data,
        "cohort": cohort,
        "algorithm": algorithm,
        "epsilon": epsilon,
        "accuracy": round(statistics.mean(accuracies), 4),
        "deviation": round(statistics.stdev(accuracies), 4) if seeds > 1 else None,
        "seeds": seeds,
        "validation": round(tried[cell, which], 4),
        "model": which,
        **cell._asdict(),
        "accuracies": accuracies,
    }


def workers_study(seeds: int) -> list[dict[str, Any]]:
    """20 workers: tuned on the validation split like the others."""
    store, rows = RESULTS / "cohorts-cells.jsonl", []
    for epsilon in ("0.25", "1"):
        tried = {
            cell: run_sweep([workers(epsilon, cell, 1000, True)], store, say)[0]["last"] for cell in GRID["mnist"]["fedpdm"]
        }
        cell = max(tried, key=lambda choice: tried[choice])
        found = [r["last"] for r in run_sweep([workers(epsilon, cell, seed, False) for seed in range(seeds)], store, say)]
        figures = {"accuracy": round(statistics.mean(found), 4), "deviation": round(statistics.stdev(found), 4)}
        rows.append({"epsilon": epsilon, **figures, "validation": tried[cell], **cell._asdict(), "accuracies": found})
    return rows


CLIENT_GRID = [Cell(20, 36, 0.0, 0.1), Cell(40, 36, 0.0, 0.1), Cell(40, 18, 0.0, 0.3), Cell(40, 72, 0.0, 0.1)]


def whole_clients(clients: int, epsilon: str, cell: Cell, seed: int, validation: bool) -> Config:
    """The unit is a whole client: FedAvg, in every round a new cohort of all, or of 1,000."""
    size = min(clients, 1000)
    more = [f"data.clients={clients}", "data.partition=iid", f"rounds.participants={size}", "cohorts.members=new"]
    return settings(
        "mnist", size, "fedavg", epsilon, cell, seed, validation, [*more, "privacy.unit=client", "privacy.mode=auto"]
    )


def clients_study(numbers: Sequence[int], seeds: int) -> list[dict[str, Any]]:
    """From how many clients on a guarantee for whole clients is usable."""
    store, rows = RESULTS / "cohorts-cells.jsonl", []
    for clients, epsilon in itertools.product(numbers, ("1", "3")):
        tried = {c: run_sweep([whole_clients(clients, epsilon, c, 1000, True)], store, say)[0] for c in CLIENT_GRID}
        cell = max(tried, key=lambda choice: tried[choice].get("averaged", 0.0))
        final = [whole_clients(clients, epsilon, cell, seed, False) for seed in range(seeds)]
        found = [r.get("averaged", 0.0) for r in run_sweep(final, store, say)]
        figures = {"accuracy": round(statistics.mean(found), 4), "deviation": round(statistics.stdev(found), 4)}
        rows.append({"clients": clients, "epsilon": epsilon, **figures, **cell._asdict(), "accuracies": found})
    return rows


def bits_study(seeds: int = 3) -> list[dict[str, Any]]:
    """One cohort of 100, epsilon 1, the setting of the table of 32 bits: accuracy against the bits of a word."""
    store, rows = RESULTS / "cohorts-cells.jsonl", []
    known = json.loads((RESULTS / "cohorts.json").read_text())
    for data, reach, bits in itertools.product(GRID, (0.1, 0.05), (32, 20, 18, 16, 14)):
        wanted = {"data": data, "cohort": 100, "algorithm": "fedpdm", "epsilon": "1"}
        tuned = next(row for row in known if wanted.items() <= row.items())
        cell, more = Cell(*(tuned[name] for name in Cell._fields)), [f"cohorts.bits={bits}", f"cohorts.reach={reach}"]
        try:
            configs = [settings(data, 100, "fedpdm", "1", cell, seed, False, more) for seed in range(seeds)]
            found = [result.get(tuned["model"], 0.0) for result in run_sweep(configs, store, say)]
        except ConfigError as error:  # there is no lattice of so few bits
            found = []
            print(f"{bits} bits: {error}", flush=True)
        figures = (
            {"accuracy": round(statistics.mean(found), 4), "deviation": round(statistics.stdev(found), 4)} if found else {}
        )
        rows.append({"data": data, "reach": reach, "bits": bits, **figures, "accuracies": found})
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Accuracies in Markdown, the number of seeds in brackets."""
    lines = ["| data | cohorts | algorithm | " + " | ".join(f"epsilon {e}" for e in EPSILONS) + " |"]
    lines.append("|---|---|---|" + "---|" * len(EPSILONS))
    for key in sorted({(r["data"], -r["cohort"], r["algorithm"]) for r in rows}):
        own = {r["epsilon"]: r for r in rows if (r["data"], -r["cohort"], r["algorithm"]) == key}
        cells = [_cell(own[e]) if e in own else "" for e in EPSILONS]
        lines.append(f"| {key[0]} | {100 // -key[1]} of {-key[1]} | {key[2]} | " + " | ".join(cells) + " |")
    return lines


def _cell(row: dict[str, Any]) -> str:
    spread = "" if row["deviation"] is None else f" ± {row['deviation']:.4f}"
    return f"{row['accuracy']:.4f}{spread} ({row['seeds']})"


def draw(rows: list[dict[str, Any]]) -> None:
    """Accuracy against epsilon, beside the local model's (benchmarks/utility.py)."""
    from matplotlib.figure import Figure

    with (RESULTS / "utility.csv").open() as file:
        known = [r for r in csv.DictReader(file) if r["algorithm"] == "fedpdm" and r["epsilon"] in EPSILONS]
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for axis, data in zip(figure.subplots(1, 2), DATA, strict=True):
        lines = {"local model": [r for r in known if (r["data"], r["features"]) == (data, DATA[data][0])]}
        lines |= {
            f"cohorts of {k}": [r for r in rows if (r["data"], r["cohort"], r["algorithm"]) == (data, k, "fedpdm")]
            for k in (25, 100)
        }
        for name, own in lines.items():
            points = sorted((float(r["epsilon"]), float(r["accuracy"]), float(r["deviation"] or 0)) for r in own)
            if points:
                axis.errorbar(*zip(*points, strict=True), marker="o", capsize=3, label=name)
        axis.set(xscale="log", xlabel="epsilon (add/remove one example, delta = 1e-5)", ylabel="test accuracy")
        axis.set_title(f"{data}, {DATA[data][0]} features, FedPDM")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.savefig(RESULTS / "cohorts.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(GRID), choices=list(GRID))
    parser.add_argument("--cohorts", nargs="+", type=int, default=[100, 25])
    parser.add_argument("--algorithms", nargs="+", default=list(GRID["mnist"]), choices=list(GRID["mnist"]))
    parser.add_argument("--epsilons", nargs="+", default=["0.2", "1", "3"], choices=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--bits", action="store_true", help="accuracy against the bits of a word instead")
    parser.add_argument("--workers", action="store_true", help="20 workers of 3,000 rows instead")
    parser.add_argument("--clients", nargs="+", type=int, help="whole clients as the unit instead, for so many")
    arguments = parser.parse_args()
    if arguments.clients:
        found = clients_study(arguments.clients, arguments.seeds)
        (RESULTS / "cohorts-clients.json").write_text(json.dumps(found, indent=1) + "\n")
        return
    if arguments.workers:
        (RESULTS / "cohorts-workers.json").write_text(json.dumps(workers_study(arguments.seeds), indent=1) + "\n")
        return
    if arguments.bits:
        (RESULTS / "cohorts-bits.json").write_text(json.dumps(bits_study(), indent=1) + "\n")
        return
    path = RESULTS / "cohorts.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    for data in arguments.data:
        for cohort in arguments.cohorts:
            for algorithm in arguments.algorithms:
                for epsilon in arguments.epsilons:
                    row = study(data, cohort, algorithm, epsilon, arguments.seeds)
                    rows = [r for r in rows if any(r[k] != row[k] for k in ("data", "cohort", "algorithm", "epsilon"))] + [row]
                    path.write_text(json.dumps(rows, indent=1) + "\n")
                    print(f"{data} cohort {cohort} {algorithm} epsilon {epsilon}: {row['accuracy']}", flush=True)
    print("\n".join(table(rows)))
    draw(rows)


if __name__ == "__main__":
    main()
