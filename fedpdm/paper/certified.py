"""The five algorithms at a certified epsilon: each tuned alike on a validation split, then compared on test data.

Every setting of a grid is trained, at each epsilon, on training data without a validation split; the best one, with its last
or its tail-averaged model, is then trained on all training data with fresh seeds, and its test accuracy is reported. Test data
choose nothing. (Tuning on private data costs privacy that is not counted here: see docs/privacy.md.) Every algorithm has a grid
of the same size.
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedpdm.config import Config, load_config
from fedpdm.paper.statistics import t_interval, verdict
from fedpdm.sweep import OnResult, run_sweep

__all__ = ["EPSILONS", "GRID", "Cell", "configs_of", "study", "verdicts", "best_others"]

EPSILONS = ("0.1", "0.2", "0.5", "1", "3", "10", "none")
DELTA = 1e-5
VALIDATION = {"mnist": 10_000, "adult": 6_000}
TUNING_SEEDS = {"mnist": (1000,), "adult": (1000, 1001, 1002)}  # a run on Adult takes a second, and varies more
STEP = {"mnist": 0.99, "adult": 0.85}  # share of the largest step size that contracts
COMMON = (
    "rounds.sampling=cycle",
    "rounds.all_first=false",
    "rounds.participants=30",
    "local.batch_size=0",
    "problem.loss=softmax",
    "problem.gamma=0.0",
    "data.radius=1.0",
    "metrics.diagnose_every=1000",
    "metrics.evaluate_every=1000",
    "metrics.tail=0.25",
    "algorithm.server_rule=dual-memory",
)
PARTITION = {"mnist": "labels", "adult": "one-class"}


class Cell(NamedTuple):
    """One setting of a grid; the step size is just below its limit."""

    features: str
    scaling: str
    weight: float  # rho, mu or alpha; without a meaning for FedAvg and SCAFFOLD
    steps: int
    rounds: int
    clip: float


GRID = {
    ("mnist", "raw"): [
        Cell("raw", "blurred", 0.01, 10, 30, 0.25),
        Cell("raw", "blurred", 0.01, 10, 20, 0.35),
        Cell("raw", "blurred", 0.005, 20, 30, 0.5),
        Cell("raw", "centred-root", 0.005, 20, 30, 0.5),
        Cell("raw", "centred-root", 0.005, 20, 60, 0.7),
    ],
    ("mnist", "scattering"): [
        Cell("scattering", "none", 0.01, 10, 20, 0.35),
        Cell("scattering", "none", 0.005, 10, 30, 0.5),
        Cell("scattering", "none", 0.005, 20, 60, 1.0),
    ],
    ("adult", "raw"): [
        Cell("raw", "none", 0.02, 10, 14, 0.35),
        Cell("raw", "none", 0.03, 10, 30, 0.5),
        Cell("raw", "none", 0.03, 10, 60, 0.5),
        Cell("raw", "none", 0.03, 10, 100, 0.35),
        Cell("raw", "none", 0.03, 20, 100, 0.7),
    ],
}
GRID["adult", "piecewise"] = [cell._replace(features="piecewise") for cell in GRID["adult", "raw"]]
WEIGHT = {"fedpdm": "rho", "fedprox": "mu", "feddyn": "alpha"}


def settings(data: str, algorithm: str, epsilon: str, cell: Cell, seed: int, validation: bool) -> Config:
    """One run of the study."""
    weight = cell.weight if algorithm in WEIGHT else 0.0
    chosen = [
        *COMMON,
        f"data.partition={PARTITION[data]}",
        f"data.name={data}",
        f"data.features={cell.features}",
        f"data.scaling={cell.scaling}",
        f"data.validation={VALIDATION[data] if validation else 0}",
        f"algorithm.name={algorithm}",
        f"local.steps={cell.steps}",
        f"local.step_size={round(STEP[data] * 2 / (weight + 0.5), 3)}",
        f"rounds.total={cell.rounds}",
        f"seed={seed}",
    ]
    if algorithm in WEIGHT:
        chosen.append(f"algorithm.{WEIGHT[algorithm]}={weight}")
    if epsilon != "none":
        chosen += ["privacy.mechanism=sound", f"privacy.delta={DELTA}", f"privacy.epsilon={float(epsilon)}"]
        chosen.append(f"privacy.clip={cell.clip}")
    return load_config("plain", chosen)


def configs_of(data: str, features: str, algorithm: str, epsilon: str) -> dict[Cell, list[Config]]:
    """The tuning runs of one point of the study."""
    return {
        cell: [settings(data, algorithm, epsilon, cell, seed, True) for seed in TUNING_SEEDS[data]]
        for cell in GRID[data, features]
    }


def study(
    data: str, features: str, algorithm: str, epsilon: str, seeds: int, store: Path, say: OnResult | None = None
) -> dict[str, Any]:
    """Tune one algorithm at one epsilon, then measure it with `seeds` fresh seeds."""
    tuning = configs_of(data, features, algorithm, epsilon)
    results = iter(run_sweep([config for own in tuning.values() for config in own], store, say))
    tried: dict[tuple[Cell, str], float] = {}
    for cell, configs in tuning.items():
        own = [next(results) for _ in configs]
        tried |= {(cell, which): statistics.mean(r.get(which, 0.0) for r in own) for which in ("last", "averaged")}
    cell, which = max(tried, key=lambda choice: tried[choice])
    final = [settings(data, algorithm, epsilon, cell, seed, False) for seed in range(seeds)]
    accuracies = [result.get(which, 0.0) for result in run_sweep(final, store, say)]
    return {
        "data": data,
        "algorithm": algorithm,
        "epsilon": epsilon,
        "accuracy": round(statistics.mean(accuracies), 4),
        "deviation": round(statistics.stdev(accuracies), 4) if seeds > 1 else 0.0,
        "validation": round(tried[cell, which], 4),
        "model": which,
        **cell._asdict(),
        "accuracies": accuracies,
    }


def best_others(rows: Sequence[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """FedPDM's row and the best of the others, by mean accuracy."""
    own = next(row for row in rows if name(row) == "fedpdm")
    return own, max((row for row in rows if name(row) != "fedpdm"), key=lambda row: row["accuracy"])


def verdicts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every data set, feature map and epsilon: is FedPDM first, or within the interval of the first?"""
    points: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        points.setdefault((row["data"], row["features"], str(row["epsilon"])), []).append(row)
    result = []
    for (data, features, epsilon), own in points.items():
        if len(own) < 2 or not any(row["algorithm"] == "fedpdm" for row in own):
            continue
        ours, best = best_others(own, lambda row: row["algorithm"])
        gaps = [a - b for a, b in zip(ours["accuracies"], best["accuracies"], strict=True)]
        interval = t_interval(gaps)
        found = verdict(interval)
        result.append(
            {
                "id": f"certified-{data}-{features}-{epsilon}",
                "claim": f"{data}, {features}, epsilon {epsilon}: FedPDM is first, or within the interval of the first",
                "check": f"test accuracy of FedPDM minus that of {best['algorithm']}, the best of the others; not below 0",
                "effect": float(f"{interval.mean:.4g}"),
                "interval": [float(f"{interval.low:.4g}"), float(f"{interval.high:.4g}")] if len(gaps) > 1 else None,
                "verdict": "does not hold" if found == "does not hold" else "holds",
                "seeds": len(gaps),
            }
        )
    return result
