"""Why FedPDM is behind with few clients a round: the weight rho decides how fast a dual learns its client's gradient.

    python benchmarks/few_clients.py [--seeds 3]

MNIST with two labels per client, 5 of 100 clients a round, 50 rounds: the point of `fedpdm reproduce heterogeneity` at which
SCAFFOLD is ahead. Nothing is chosen: every weight is shown, with the step size and the number of steps of that study. Finished
runs are kept in docs/results/benchmarks/few_clients.jsonl and not run again.
"""

import argparse
import json
from typing import Any

import numpy as np
from workloads import RESULTS

from fedpdm.cache import remember_compilations
from fedpdm.config import Config, load_config
from fedpdm.runs.sweep import Result, run_sweep
from fedpdm.studies.drawing import band, save
from fedpdm.studies.paper.heterogeneity import COMMON

WEIGHTS = (0.03, 0.1, 0.3, 0.5, 1.0, 3.0)
CLIENTS, PARTICIPANTS, ROUNDS, STEPS, STEP_SIZE = 100, 5, 50, 20, 0.1
CURVES = {
    "FedPDM, dual-memory": ["algorithm.name=fedpdm", "algorithm.server_rule=dual-memory"],
    "A-FedPD": ["algorithm.name=afedpd"],
    "FedDR": ["algorithm.name=feddr"],
}


def known_share(weight: float) -> float:
    """The share of its client's gradient that a dual holds after the visits that a client has on average."""
    visits = ROUNDS * PARTICIPANTS / CLIENTS
    return 1 - (1 - weight * STEP_SIZE) ** (STEPS * visits)


def configs(settings: list[str], seeds: int) -> list[Config]:
    own = ["data.labels_per_client=2", f"rounds.participants={PARTICIPANTS}", f"local.step_size={STEP_SIZE}", *settings]
    return [load_config("plain", [*COMMON, *own, f"seed={seed}"]) for seed in range(seeds)]


def measure(settings: list[str], seeds: int) -> list[float]:
    def say(done: int, total: int, config: Config, result: Result) -> None:
        print(f"{config.algorithm.name} rho {config.algorithm.rho} seed {config.seed}: {result.get('last')}", flush=True)

    return [result.get("last", 0.0) for result in run_sweep(configs(settings, seeds), RESULTS / "few_clients.jsonl", say)]


def draw(rows: list[dict[str, Any]], scaffold: list[float]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for i, curve in enumerate(CURVES):
        own = [row for row in rows if row["curve"] == curve]
        band(axis, [row["rho"] for row in own], np.array([row["accuracies"] for row in own]).T.tolist(), curve, f"C{i}", "o")
    axis.axhline(float(np.mean(scaffold)), color="k", linestyle="--", label="SCAFFOLD")
    axis.set(xscale="log", xlabel="weight rho", ylabel="test accuracy", ylim=(0.6, 0.92))
    share = axis.twinx()
    share.plot(WEIGHTS, [known_share(w) for w in WEIGHTS], color="gray", linestyle=":")
    share.set(ylabel="share of the gradient in FedPDM's dual (dotted)", ylim=(0, 1.05))
    axis.legend(fontsize="small", loc="lower right")
    save(figure, RESULTS / "few_clients")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    scaffold = measure(["algorithm.name=scaffold"], seeds)
    rows = [
        {"curve": curve, "rho": weight, "accuracies": measure([*settings, f"algorithm.rho={weight}"], seeds)}
        for curve, settings in CURVES.items()
        for weight in WEIGHTS
    ]
    rows = [row | {"accuracy": round(float(np.mean(row["accuracies"])), 4)} for row in rows]
    found = {
        "seeds": seeds,
        "scaffold": scaffold,
        "known_share": {str(w): round(known_share(w), 3) for w in WEIGHTS},
        "rows": rows,
    }
    (RESULTS / "few_clients.json").write_text(json.dumps(found, indent=2) + "\n")
    draw(rows, scaffold)


if __name__ == "__main__":
    remember_compilations()
    main()
