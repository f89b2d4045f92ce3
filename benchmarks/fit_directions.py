"""How the rule for the number of directions (docs/features.md) was fitted on made-up images, and how it does on others.

    python benchmarks/fit_directions.py fit                   # made-up images; writes directions.json, some two minutes
    python benchmarks/fit_directions.py check [--only mnist]  # images that the fit has not seen; writes directions.jsonl

A run of the fit is FedPDM in the mode "linearised" with kappa = 1/2 and all clients in every round, written out in NumPy:
noised gradient steps. Its noise depends on A alone (`fedpdm.setup.directions`). The check trains with the preset
`private-mapped`, and measures on training rows that are held out.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import map_coordinates
from workloads import RESULTS

import fedpdm
from fedpdm.data import shapes, strokes
from fedpdm.data.basis import MOST, spectrum
from fedpdm.data.feature_map import rows_at_norm_one
from fedpdm.data.features import FeatureOptions, basis_of, make_map
from fedpdm.setup import directions

STRENGTHS, SIZES, TRAVELS = (30, 100, 300, 1000, 3000), (5, 10, 20, 40, 80, 160, 300, 400), (0.3, 1, 3)
TRAVELLED = (20, 160)  # directions at which other travels than A are tried
FACTORS, POWERS = (0.2, 0.3, 0.5, 0.7, 1.0, 1.4), (1.0, 1.25, 1.5, 1.75, 2.0)
SETS, HELD_OUT = 10, 2  # sets of made-up images for the fit, and to check it
ROUNDS, CLIP, SEEDS, IMAGES = 20, 0.5, 3, 3000
CHECKED: dict[str, list[str]] = {
    "digits": ["data.name=digits", "data.scattering_scale=1", "data.clients=10", "data.validation=300"],
    "digits, 3 clients": ["data.name=digits", "data.scattering_scale=1", "data.clients=3", "data.validation=300"],
    "mnist": ["data.name=mnist", "data.clients=100", "data.validation=10000"],
    "mnist, 1000 clients": ["data.name=mnist", "data.clients=1000", "data.validation=10000"],
    "fashion-mnist": ["data.name=fashion-mnist", "data.clients=100", "data.validation=10000"],
    "fashion-mnist, 1000 clients": ["data.name=fashion-mnist", "data.clients=1000", "data.validation=10000"],
}


class Mapped(NamedTuple):
    """Made-up images behind their basis: the rows at `MOST` directions, labels, and the spectrum."""

    rows: np.ndarray
    labels: np.ndarray
    spectrum: np.ndarray


def made_up(seed: int) -> Mapped:
    """2 to 20 classes of strokes or shapes of 8 to 28 pixels: each a figure whose numbers vary, turned, moved and blurred."""
    rng = np.random.default_rng(seed)
    side, classes = int(rng.choice([8, 16, 28])), int(rng.choice([2, 3, 5, 10, 20]))
    kind, spread = ("strokes", "shapes")[seed % 2], rng.uniform(0.08, 0.25)
    width = len(strokes.PRIMES if kind == "strokes" else shapes.PRIMES)
    figures, labels = rng.random((classes, 2, width)), rng.integers(0, classes, IMAGES)
    double = rng.random(classes) < 0.5
    images = np.empty((IMAGES, side, side), np.float32)
    for place, label in enumerate(labels):
        parts = [_figure(kind, figure, spread, side, rng) for figure in figures[label][: 1 + double[label]]]
        images[place] = np.clip(_turned(np.maximum.reduce(parts), rng) + 0.03 * rng.normal(size=(side, side)), 0, 1)
    names = tuple(f"pixel {row},{column}" for row in range(side) for column in range(side))
    options = FeatureOptions(basis=kind, basis_size=MOST, scattering_scale=1 if side == 8 else 2)
    rows = make_map("scattering", names, options).rows(images.reshape(IMAGES, -1), names)
    return Mapped(rows, labels, spectrum(basis_of("scattering", names, options)))


def _figure(kind: str, numbers: np.ndarray, spread: float, side: int, rng: np.random.Generator) -> np.ndarray:
    own = np.clip(numbers + spread * rng.normal(size=len(numbers)), 0, 0.999)
    own[0] = numbers[0]
    line = (np.arange(side) + 0.5) / side
    if kind == "shapes":
        return shapes._shape(line[:, None] - 0.5, line[None] - 0.5, own, side)
    points = strokes.POINTS[0] + int(own[0] * (strokes.POINTS[1] - strokes.POINTS[0] + 1))
    path = strokes._bend(np.stack([own[1 : 1 + points], 0.7 * own[7 : 7 + points]], axis=1))
    low, high = path.min(axis=0), path.max(axis=0)
    path = 0.5 + strokes.BOX * (path - (low + high) / 2) / (high - low).max()
    away = np.sqrt(((line[:, None, None] - path[:, 0]) ** 2 + (line[:, None] - path[:, 1]) ** 2).min(axis=2))
    return np.clip(0.5 + side * (strokes.PEN - away), 0, 1)


def _turned(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    side = len(image)
    turn, lean, zoom = 0.12 * rng.normal(), 0.1 * rng.normal(), 1 + 0.1 * rng.normal(size=2)
    linear = np.array([[np.cos(turn), lean - np.sin(turn)], [np.sin(turn), np.cos(turn)]]) / zoom[:, None]
    middle = (side - 1) / 2
    places = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij")).reshape(2, -1) - middle
    return map_coordinates(image, linear @ places + middle + 0.03 * side * rng.normal(size=(2, 1)), order=1).reshape(side, side)


def private(found: Mapped, strength: float, size: int, travel: float, seed: int) -> float:
    """Accuracy of the last model on a third of the images, trained on the others."""
    rng, classes = np.random.default_rng(seed), int(found.labels.max()) + 1
    rows = rows_at_norm_one(found.rows[:, : min(size, found.rows.shape[1] - 1)], bias=True)
    third = len(rows) // 3
    train, labels = rows[third:], found.labels[third:]
    one_hot, place = np.eye(classes, dtype=np.float32)[labels], np.arange(len(labels))
    noise = 2**0.5 * CLIP * np.linalg.norm(train[0]) * ROUNDS**0.5 / strength
    x = np.zeros((classes, rows.shape[1]), np.float32)
    for _ in range(ROUNDS):
        scores = train @ x.T
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        cut = np.minimum(1, CLIP / np.maximum(1 - shares[place, labels], 1e-9))
        slope = ((shares - one_hot) * cut[:, None]).T @ train / len(train)
        x -= np.float32(travel / ROUNDS) * (slope + np.float32(noise) * rng.standard_normal(x.shape, np.float32))
    return float(np.mean((rows[:third] @ x.T).argmax(axis=1) == found.labels[:third]))


def _mean(found: Mapped, strength: float, size: int, travel: float) -> float:
    return round(float(np.mean([private(found, strength, size, travel, seed) for seed in range(SEEDS)])), 4)


def fit() -> None:
    """Train on all made-up sets with all numbers of directions; then print the regret of every rule."""
    sets = {}
    for seed in [*range(SETS), *range(1000, 1000 + HELD_OUT)]:
        found = made_up(seed)
        most = found.rows.shape[1] - 1
        sizes = [size for size in SIZES if size < most] + [most]
        one = {"classes": int(found.labels.max()) + 1, "spectrum": [float(f"{value:.4g}") for value in found.spectrum]}
        one["curves"] = {a: {size: _mean(found, a, size, a) for size in sizes} for a in STRENGTHS}
        one["travels"] = {
            a: {size: [_mean(found, a, size, share * a) for share in TRAVELS] for size in TRAVELLED if size <= most}
            for a in STRENGTHS
        }
        sets[seed] = one
        print(seed, one["classes"], one["curves"], flush=True)
    (RESULTS / "directions.json").write_text(json.dumps(sets) + "\n")
    summary()


def summary() -> None:
    """Print the mean loss against the best number of directions, and accuracy by travel."""
    sets = {int(seed): one for seed, one in json.loads((RESULTS / "directions.json").read_text()).items()}
    for name, seeds in (("fit", range(SETS)), ("held out", range(1000, 1000 + HELD_OUT))):
        own = [sets[seed] for seed in seeds]
        for size in (20, 50, 100, 200, 400):
            print(f"{name}: {size} directions lose {_regret(own, lambda *_, size=size: size):.4f}")
        for power in POWERS:
            losses = [_regret(own, _rule(factor, power)) for factor in FACTORS]
            print(f"{name}: power {power}:", *(f"{factor}: {loss:.4f}" for factor, loss in zip(FACTORS, losses, strict=True)))
        print(f"{name}: the rule loses {_regret(own, _rule(directions.FACTOR, directions.POWER)):.4f}")
        for strength in STRENGTHS:
            means = np.mean([row for one in own for row in one["travels"][str(strength)].values()], axis=0)
            print(f"{name}: A = {strength}, travel / A = {TRAVELS}:", means.round(4))


def _rule(factor: float, power: float) -> Any:
    def size(strength: float, classes: int, variances: np.ndarray) -> int:
        shares = variances / np.cumsum(variances)
        pays = np.flatnonzero(shares >= factor * (classes / strength) ** power)
        return max(int(pays[-1]) + 1 if len(pays) else 0, directions.FEWEST)

    return size


def _regret(sets: Iterable[dict[str, Any]], rule: Any) -> float:
    """The mean loss against the best of `SIZES`; between these, accuracy is interpolated in the logarithm."""
    losses = []
    for one in sets:
        for strength, curve in one["curves"].items():
            sizes, values = np.array([int(size) for size in curve]), np.array(list(curve.values()))
            chosen = min(rule(float(strength), one["classes"], np.array(one["spectrum"])), sizes[-1])
            losses.append(values.max() - np.interp(np.log(chosen), np.log(sizes), values))
    return float(np.mean(losses))


def check(only: list[str], sizes: list[str], epsilons: list[float], seeds: int) -> None:
    """Train on images that the fit has not seen, with given numbers of directions and with the rule."""
    path = RESULTS / "directions.jsonl"
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for name, settings in CHECKED.items():
        for epsilon in epsilons if not only or name in only else []:
            for size in sizes:
                for seed in range(seeds):
                    cell = {"data": name, "epsilon": epsilon, "size": size, "seed": seed}
                    if any({key: line[key] for key in cell} == cell for line in known):
                        continue
                    more = ["data.features=scattering", "data.basis=auto", f"data.basis_size={size}", f"seed={seed}"]
                    more += [f"privacy.epsilon={epsilon}", "metrics.diagnose_every=0", "metrics.evaluate_every=1000"]
                    config = fedpdm.load_config("private-mapped", [*settings, *more])
                    with tempfile.TemporaryDirectory() as folder:
                        run = fedpdm.train(config, Path(folder) / "run", progress=False, report=False)
                    done = {"directions": run.config.data.basis_size, "rounds": run.config.rounds.total}
                    line = cell | done | {"accuracy": round(run.summary["test_accuracy_averaged"], 4)}
                    with path.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("fit", "summary", "check"))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--sizes", nargs="+", default=["auto", "20", "50", "100", "200", "400"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.2, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if given.part == "check":
        check(given.only, given.sizes, given.epsilons, given.seeds)
    else:
        {"fit": fit, "summary": summary}[given.part]()


if __name__ == "__main__":
    main()
