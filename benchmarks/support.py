"""Which features a private sparse regression selects: true and false selections against epsilon, where the support is known.

`nice -n 15 python benchmarks/support.py --out docs/results/benchmarks` takes a minute. Two ways to select are compared: an L1
penalty in training (the last model's non-zero coefficients), and p-values of `metrics.intervals`, with Bonferroni's limit. The
public table is scikit-learn's diabetes; shuffled copies of its columns are features that cannot matter.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from fedpdm.privacy.accounting import noise_multiplier_for
from fedpdm.privacy.interval_release import release_sums
from fedpdm.problem import squared
from fedpdm.problem.inference import exact_intervals, from_sums
from fedpdm.runs.intervals import NOISED_MIXED

CLIENTS, ROWS, COLUMNS, TRUE = 20, 1000, 20, 5
CLIP, DELTA, SHARE, ROUNDS, STEP, LEVEL = 0.25, 1e-5, 0.5, 25, 2.0, 0.05
EPSILONS = (1.0, 3.0, 10.0, None)
GAMMAS = (0.001, 0.003, 0.01)


def made_up(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clients' features [clients, rows, columns + bias] of norm at most 1, labels, and which features matter."""
    features = rng.uniform(-1, 1, (CLIENTS, ROWS, COLUMNS))
    coefficients = np.zeros(COLUMNS)
    coefficients[:TRUE] = [0.12, -0.1, 0.08, -0.06, 0.04]
    labels = np.clip(0.5 + features @ coefficients + 0.08 * rng.standard_normal((CLIENTS, ROWS)), 0, 1)
    return _with_bias(features), labels, coefficients != 0


def diabetes(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """442 patients at four clients; ten columns, and ten shuffled ones that cannot matter."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x = np.clip(x / 0.2, -1, 1)
    order = rng.permutation(len(y))[:440]
    shuffled = np.column_stack([rng.permutation(column) for column in x.T])
    features = np.column_stack([x, shuffled])[order].reshape(4, 110, 20)
    return _with_bias(features), (y[order] / 350).reshape(4, 110), np.arange(20) < 10


def _with_bias(features: np.ndarray) -> np.ndarray:
    ones = np.ones((*features.shape[:2], 1))
    return np.concatenate([features, ones], axis=2) / (features.shape[2] + 1) ** 0.5


def train(
    features: np.ndarray, labels: np.ndarray, gamma: float, epsilon: float | None, share: float, rng: np.random.Generator
) -> np.ndarray:
    """The last model of linearised rounds with an L1 penalty at the server; `share` of the budget is for training."""
    clients, rows, p = features.shape
    rho, a, y = 1 / STEP, features.reshape(-1, p), labels.ravel()
    sigma, rounds = 0.0, ROUNDS if epsilon is not None else 20 * ROUNDS
    if epsilon is not None:
        z = noise_multiplier_for(epsilon, DELTA, ROUNDS, "add-remove") / share**0.5
        sigma = z * 0.5 * CLIP / (rho * rows) / clients**0.5
    x0, dual = np.zeros(p), np.zeros(p)
    for _ in range(rounds):
        gradient = np.clip(a @ x0 - y, -CLIP, CLIP) @ a / len(y)
        mean = x0 - 0.5 / rho * (gradient - dual) + sigma * rng.standard_normal(p)
        dual = dual + rho * (x0 - mean)
        point = mean - dual / rho
        x0 = np.sign(point) * np.maximum(np.abs(point) - gamma / rho, 0)
    return x0


def by_p_values(features: np.ndarray, labels: np.ndarray, epsilon: float | None, seed: int) -> np.ndarray:
    """Which features have a p-value below 5 % over their number."""
    clients, rows, p = features.shape
    model = train(features, labels, 0.0, epsilon, 1 - SHARE, np.random.default_rng(seed))
    if epsilon is None:
        flat = features.reshape(-1, p), labels.ravel(), np.full(labels.size, 1 / labels.size)
        found = exact_intervals(squared(), model[None], *flat)
    else:
        z, even = noise_multiplier_for(epsilon, DELTA, 1, "add-remove") / SHARE**0.5, np.ones(clients)
        each = list(zip(features, labels, strict=True))
        sums = release_sums(squared(CLIP), model[None], each, rows * even, even, 1.0, z, seed)
        found = from_sums(model, sums, NOISED_MIXED)
    return np.nan_to_num(found.p_values()[:-1], nan=1.0) < LEVEL / (p - 1)


def study(seeds: int) -> list[dict]:
    """Mean numbers of true and false selections."""
    results = []
    for table, make in (("made up", made_up), ("diabetes", diabetes)):
        for epsilon in EPSILONS:
            ways: dict[str, list[tuple[int, int]]] = {}
            for seed in range(seeds):
                features, labels, matters = make(np.random.default_rng([7, seed]))
                picked = {"p-values": by_p_values(features, labels, epsilon, seed)}
                for gamma in GAMMAS:
                    model = train(features, labels, gamma, epsilon, 1.0, np.random.default_rng([8, seed]))
                    picked[f"L1, gamma {gamma:g}"] = model[:-1] != 0
                for name, chosen in picked.items():
                    ways.setdefault(name, []).append((int((chosen & matters).sum()), int((chosen & ~matters).sum())))
            for name, counts in ways.items():
                true, false = np.mean(counts, axis=0)
                row = {"table": table, "epsilon": epsilon, "way": name, "true": round(float(true), 2)}
                results.append(row | {"false": round(float(false), 2), "seeds": seeds})
                print(json.dumps(results[-1]), flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "support.json").write_text(json.dumps(study(arguments.seeds), indent=1) + "\n")


if __name__ == "__main__":
    main()
