"""How often 95 % intervals hold the true coefficients, over simulated federations with and without noise.

`nice -n 15 python benchmarks/intervals.py --out docs/results/benchmarks` takes minutes. The rounds are those of linearised
FedPDM with everybody in every round: the server then needs means over clients only, which NumPy computes fast
(tests/privacy/test_interval_release.py checks them against the simulator). Releases and intervals are the package's own.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.privacy.accounting import noise_multiplier_for
from fedpdm.privacy.interval_release import bounds_of, release_sums
from fedpdm.problem import Loss, squared
from fedpdm.problem.inference import CurvatureSums, Intervals, from_sums
from fedpdm.runs.intervals import Public, noised_intervals

CLIENTS, ROWS, COLUMNS = 20, 1000, 4
TRUE = np.array([0.12, -0.08, 0.04, 0.0, 0.5])  # of features in [-1, 1] and the bias; labels are in [0, 1]
ERROR, CLIP, DELTA, SHARE, ROUNDS, STEP = 0.08, 0.25, 1e-5, 0.3, 25, 2.0
KINDS = ("alike", "different", "own coefficients")
EPSILONS = (None, 1.0, 3.0)
SCALE = (COLUMNS + 1) ** 0.5  # features over it have norm 1 at most


class Federation(NamedTuple):
    """Rows of 20 clients: [clients, rows, features] of norm at most 1, and [clients, rows] labels."""

    features: np.ndarray
    labels: np.ndarray


def draw(kind: str, rng: np.random.Generator) -> Federation:
    """Clients that are alike; or that differ in their features, in the spread of errors; or in their coefficients as well."""
    shape = (CLIENTS, 1, COLUMNS)
    if kind == "alike":
        features = rng.uniform(-1, 1, (CLIENTS, ROWS, COLUMNS))
        spread = np.full((CLIENTS, 1), ERROR)
    else:
        features = 2 * rng.beta(rng.uniform(0.7, 3, shape), rng.uniform(0.7, 3, shape), (CLIENTS, ROWS, COLUMNS)) - 1
        spread = ERROR * rng.uniform(0.4, 1.6, (CLIENTS, 1))
    rows = np.concatenate([features, np.ones((CLIENTS, ROWS, 1))], axis=2)
    own = TRUE + (rng.normal(0, 0.02, (CLIENTS, 1, COLUMNS + 1)) if kind == "own coefficients" else 0.0)
    labels = (rows * own).sum(axis=2) + spread * rng.standard_normal((CLIENTS, ROWS))
    return Federation(rows / SCALE, np.clip(labels, 0, 1))


def train(data: Federation, epsilon: float | None, rng: np.random.Generator) -> np.ndarray:
    """The mean of the second half of x0 over linearised rounds: step 1/rho, kappa = 1/2, everybody in every round."""
    rho, features, labels = 1 / STEP, data.features.reshape(-1, COLUMNS + 1), data.labels.ravel()
    sigma = 0.0
    if epsilon is not None:
        z = noise_multiplier_for(epsilon, DELTA, ROUNDS, "add-remove") / (1 - SHARE) ** 0.5
        sigma = z * 0.5 * CLIP / (rho * ROWS) / CLIENTS**0.5  # of the mean over clients
    x0, dual, tail = np.zeros(COLUMNS + 1), np.zeros(COLUMNS + 1), []
    for _ in range(ROUNDS):
        gradient = np.clip(features @ x0 - labels, -CLIP, CLIP) @ features / len(labels)
        mean = x0 - 0.5 / rho * (gradient - dual) + sigma * rng.standard_normal(len(x0))
        dual = dual + rho * (x0 - mean)
        x0 = mean - dual / rho
        tail.append(x0)
    return np.mean(tail[ROUNDS // 2 :], axis=0)


def exact(data: Federation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least squares with errors of heteroscedasticity: estimate, low and high."""
    a, y = data.features.reshape(-1, COLUMNS + 1), data.labels.ravel()
    best = np.linalg.lstsq(a, y, rcond=None)[0]
    each = a * (a @ best - y)[:, None] / len(y)
    room = len(y) - len(best)
    sums = CurvatureSums(each.sum(axis=0), a.T @ a / len(y), each.T @ each * len(y) / room, float(room), 1e-9)
    found = from_sums(best, sums)
    return found.estimate, *found.ends(0.95)


def noised(data: Federation, epsilon: float, seed: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The intervals of a private run at this budget."""
    model = train(data, epsilon, rng)
    z = noise_multiplier_for(epsilon, DELTA, 1, "add-remove") / SHARE**0.5
    clients = list(zip(data.features, data.labels, strict=True))
    even = np.ones(CLIENTS)
    sums = release_sums(squared(CLIP), model[None], clients, ROWS * even, even, 1.0, z, seed)
    found = given(squared(CLIP), model[None], sums, ROWS)
    return found.estimate, *found.ends(0.95)


def given(loss: Loss, model: np.ndarray, sums: CurvatureSums, rows: int) -> Intervals:
    """What a private run gives for these sums, NaN where it gives no interval: one Newton step, where it is near enough."""
    found = noised_intervals(model, sums, Public(bounds_of(loss, 1.0), "clients", rows, loss.target), None)
    nothing = np.full(model.shape[1], np.nan)
    estimate, error = (found.arrays.get(name, nothing) for name in ("estimate", "error"))
    return Intervals(estimate, np.diag(error**2), sums.freedom)


def study(federations: int, seed: int = 0) -> list[dict]:
    """Coverage, mean width and share of intervals that are given, per kind of clients and budget, over all coefficients."""
    results = []
    for kind in KINDS:
        ends: dict[float | None, list[np.ndarray]] = {epsilon: [] for epsilon in EPSILONS}
        for number in range(federations):
            rng = np.random.default_rng([seed, KINDS.index(kind), number])
            data = draw(kind, rng)
            ends[None].append(np.stack(exact(data)))
            for epsilon in EPSILONS[1:]:
                assert epsilon is not None
                ends[epsilon].append(np.stack(noised(data, epsilon, number, rng)))
        for epsilon, found in ends.items():
            estimate, low, high = np.stack(found, axis=1) / SCALE
            given = ~np.isnan(low)
            covered = (low <= TRUE) & (high >= TRUE)
            share = covered[given].mean()
            results.append(
                {
                    "clients": kind,
                    "epsilon": epsilon,
                    "federations": federations,
                    "coverage": round(float(share), 4),
                    "coverage_by_coefficient": [round(float(covered[given[:, k], k].mean()), 4) for k in range(len(TRUE))],
                    "standard_error": round(float((share * (1 - share) / federations) ** 0.5), 4),
                    "given": round(float(given.mean()), 4),
                    "mean_width": round(float((high - low)[given].mean()), 6),
                    "bias": round(float(np.nanmean(estimate - TRUE)), 6),
                }
            )
            print(json.dumps(results[-1]), flush=True)
    return results


def draw_figure(results: list[dict], path: Path, lowest: float = 0.2) -> None:
    """Coverage and widths, side by side."""
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(row["clients"] for row in results))
    figure, (left, right) = plt.subplots(1, 2, figsize=(max(9, 1.8 * len(kinds)), 3.4), layout="constrained")
    names = {None: "no noise", 1.0: "epsilon 1", 3.0: "epsilon 3"}
    for offset, epsilon in zip((-0.25, 0.0, 0.25), (None, 3.0, 1.0), strict=True):
        rows = [row for row in results if row["epsilon"] == epsilon]
        places = np.arange(len(rows)) + offset
        shares, errors = [row["coverage"] for row in rows], [1.96 * row["standard_error"] for row in rows]
        left.errorbar(places, shares, errors, fmt="o", capsize=3, label=names[epsilon])
        right.bar(places, [row["mean_width"] for row in rows], 0.23, label=names[epsilon])
    left.axhspan(0.93, 0.97, alpha=0.15, color="gray")
    left.set(ylabel="coverage of 95 % intervals", ylim=(lowest, 1.0))
    right.set(ylabel="mean width", yscale="log")
    for axis in (left, right):
        axis.set_xticks(range(len(kinds)), kinds, fontsize=8)
    right.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federations", type=int, default=500)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = study(arguments.federations)
    about = {"clients": CLIENTS, "rows": ROWS, "true": TRUE.tolist(), "clip": CLIP, "delta": DELTA, "interval_share": SHARE}
    text = json.dumps({"about": about | {"rounds": ROUNDS, "relation": "add-remove"}, "results": results}, indent=1)
    (arguments.out / "intervals.json").write_text(text + "\n")
    draw_figure(results, arguments.out / "intervals.png")


if __name__ == "__main__":
    main()
