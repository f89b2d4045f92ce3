"""Which features a private sparse regression selects: true and false selections against epsilon, where the support is known.

`nice -n 15 python benchmarks/support.py --out docs/results/benchmarks` takes a minute. Two ways to select are compared: an L1
penalty in training (the last model's non-zero coefficients), and p-values of `metrics.intervals`, with Bonferroni's limit. The
public table is scikit-learn's diabetes; shuffled copies of its columns are features that cannot matter.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from intervals import given

from fedpdm.privacy.accounting import noise_multiplier_for
from fedpdm.privacy.interval_release import release_sums
from fedpdm.problem import squared
from fedpdm.problem.inference import exact_intervals

CLIENTS, ROWS, COLUMNS, TRUE = 20, 1000, 20, 5
CLIP, DELTA, SHARE, STEP, LEVEL = 0.25, 1e-5, 0.5, 2.0, 0.05
ROUNDS, INTERVAL_ROUNDS = 25, 100  # after 25 rounds one Newton step does not lead to the optimum: a run refuses intervals
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
    features: np.ndarray,
    labels: np.ndarray,
    gamma: float,
    epsilon: float | None,
    share: float,
    rng: np.random.Generator,
    rounds: int = ROUNDS,
) -> np.ndarray:
    """The last model of linearised rounds with an L1 penalty at the server; `share` of the budget is for training."""
    clients, rows, p = features.shape
    rho, a, y = 1 / STEP, features.reshape(-1, p), labels.ravel()
    sigma = 0.0
    if epsilon is not None:
        z = noise_multiplier_for(epsilon, DELTA, rounds, "add-remove") / share**0.5
        sigma = z * 0.5 * CLIP / (rho * rows) / clients**0.5
    x0, dual = np.zeros(p), np.zeros(p)
    for _ in range(rounds if epsilon is not None else 20 * ROUNDS):
        gradient = np.clip(a @ x0 - y, -CLIP, CLIP) @ a / len(y)
        mean = x0 - 0.5 / rho * (gradient - dual) + sigma * rng.standard_normal(p)
        dual = dual + rho * (x0 - mean)
        point = mean - dual / rho
        x0 = np.sign(point) * np.maximum(np.abs(point) - gamma / rho, 0)
    return x0


def by_p_values(features: np.ndarray, labels: np.ndarray, epsilon: float | None, seed: int) -> np.ndarray:
    """Which features have a p-value below 5 % over their number."""
    clients, rows, p = features.shape
    model = train(features, labels, 0.0, epsilon, 1 - SHARE, np.random.default_rng(seed), INTERVAL_ROUNDS)
    if epsilon is None:
        flat = features.reshape(-1, p), labels.ravel(), np.full(labels.size, 1 / labels.size)
        found = exact_intervals(squared(), model[None], *flat)
    else:
        z, even = noise_multiplier_for(epsilon, DELTA, 1, "add-remove") / SHARE**0.5, np.ones(clients)
        each = list(zip(features, labels, strict=True))
        sums = release_sums(squared(CLIP), model[None], each, rows * even, even, 1.0, z, seed)
        found = given(squared(CLIP), model[None], sums, rows)
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


def draw_figure(results: list[dict], path: Path) -> None:
    """True (filled) and false (hollow) selections against epsilon, a panel per table."""
    import matplotlib.pyplot as plt

    tables = list(dict.fromkeys(row["table"] for row in results))
    figure, panels = plt.subplots(1, len(tables), figsize=(9, 3.4), layout="constrained")
    for panel, table in zip(panels, tables, strict=True):
        for place, way in enumerate(dict.fromkeys(row["way"] for row in results)):
            rows = [row for row in results if row["table"] == table and row["way"] == way]
            for kind, style, face in (("true", "-", f"C{place}"), ("false", ":", "white")):
                label = way if kind == "true" else None
                counts = [row[kind] for row in rows]
                panel.plot(range(len(rows)), counts, style, color=f"C{place}", marker="o", markerfacecolor=face, label=label)
        panel.set_xticks(range(len(EPSILONS)), ["none" if e is None else f"{e:g}" for e in EPSILONS])
        panel.set(title=table, xlabel="epsilon", ylabel="features: true (filled), false (hollow)", ylim=(-0.3, 10.3))
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = study(arguments.seeds)
    (arguments.out / "support.json").write_text(json.dumps(results, indent=1) + "\n")
    draw_figure(results, arguments.out / "support.png")


if __name__ == "__main__":
    main()
