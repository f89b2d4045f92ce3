"""Where to cut residuals: the error of a private linear model by clip and signal, on made-up labels of five shapes.

`nice -n 15 python benchmarks/number_clip.py --out docs/results/benchmarks` takes half a minute. The rounds are those of the
rule of `private-table` (linearised, everybody in every round, the averaged model), computed by NumPy.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

from fedpdm.privacy.accounting import noise_multiplier_for
from fedpdm.setup.defaults import STEP, Sizes, number_clip, rule, signal

CLIENTS, FEATURES, TEST, EPSILON, DELTA, SEEDS = 10, 6, 4000, 1.0, 1e-5, 5
ROWS = (14, 42, 140, 420, 1400)
CLIPS = (0.06, 0.12, 0.25, 0.5, 1.0)
TRUE = np.array([0.6, -0.5, 0.3, 0.0, 0.0])
SHAPES = {
    "normal": lambda s, rng: 0.5 + 0.25 * s + 0.1 * rng.normal(size=len(s)),
    "narrow": lambda s, rng: 0.5 + 0.1 * s + 0.03 * rng.normal(size=len(s)),
    "skewed": lambda s, rng: rng.exponential(0.12 * np.exp(0.8 * s)),
    "skewed, long": lambda s, rng: rng.exponential(0.3 * np.exp(0.8 * s)),
    "uniform": lambda s, rng: 0.7 * rng.random(len(s)) + 0.3 * (s > 0),
}


def one(shape: str, rows: int, clip: float, seed: int) -> tuple[float, float]:
    """Root mean squared error over the labels' deviation on test rows: of the private model, and of least squares."""
    rng = np.random.default_rng([1, seed])
    x = rng.uniform(-1, 1, (CLIENTS * rows + TEST, FEATURES - 1))
    y = np.clip(SHAPES[shape](x @ TRUE, rng), 0, 1)
    a = np.column_stack([x, np.ones(len(x))]) / FEATURES**0.5
    train, test, labels, truth = a[:-TEST], a[-TEST:], y[:-TEST], y[-TEST:]
    rounds = rule(strength(rows))["rounds"]["total"]
    rho = 2 / min(max(10 * strength(rows), 100.0) / rounds, STEP)
    z = noise_multiplier_for(EPSILON, DELTA, rounds, "add-remove")
    sigma = z * 0.5 * clip / (rho * rows) / CLIENTS**0.5
    x0, dual, tail = np.zeros(FEATURES), np.zeros(FEATURES), []
    for _ in range(rounds):
        gradient = np.clip(train @ x0 - labels, -clip, clip) @ train / len(labels)
        mean = x0 - 0.5 / rho * (gradient - dual) + sigma * rng.standard_normal(FEATURES)
        dual = dual + rho * (x0 - mean)
        x0 = mean - dual / rho
        tail.append(x0)
    models = np.mean(tail[rounds // 2 :], axis=0), np.linalg.lstsq(train, labels, rcond=None)[0]
    return tuple(math.sqrt(np.mean((test @ model - truth) ** 2)) / truth.std() for model in models)  # type: ignore[return-value]


def strength(rows: int) -> float:
    """The signal of a federation with so many rows per client."""
    return signal(Sizes(np.full(CLIENTS, float(rows)), FEATURES, 1), EPSILON, DELTA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results = []
    for shape in SHAPES:
        for rows in ROWS:
            found = strength(rows)
            by_clip = {clip: np.mean([one(shape, rows, clip, seed) for seed in range(SEEDS)], axis=0) for clip in CLIPS}
            ruled = np.mean([one(shape, rows, number_clip(found), seed)[0] for seed in range(SEEDS)])
            row = {"labels": shape, "signal": round(found, 1), "least_squares": round(float(by_clip[1.0][1]), 3)}
            row |= {f"clip {clip:g}": round(float(each[0]), 3) for clip, each in by_clip.items()}
            results.append(row | {"rule": round(float(ruled), 3), "rule_clip": round(number_clip(found), 3)})
            print(json.dumps(results[-1]), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "number_clip.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
