"""How the rule for the number of directions (docs/features.md) was fitted on made-up images, and how it does on others.

    python benchmarks/fit_directions.py fit        # made-up images; writes directions.json
    python benchmarks/fit_directions.py check      # images that the fit has not seen; writes directions-checked.json

A run is FedPDM in the mode "linearised" with kappa = 1/2 and all clients in every round, written out in NumPy: noised
gradient steps. Its noise depends on A alone (`fedpdm.setup.directions`). Accuracy is that on a third of the training images,
which the model does not see. The check needs encoders.py and its wheel of photographs.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from encoders import write_photographs
from scipy.ndimage import map_coordinates
from workloads import RESULTS

from fedpdm.data import shapes, strokes
from fedpdm.data.basis import MOST, spectrum
from fedpdm.data.datasets import load_dataset
from fedpdm.data.feature_map import rows_at_norm_one
from fedpdm.data.features import WRITTEN, FeatureOptions, basis_of, make_map
from fedpdm.setup import directions

STRENGTHS, SIZES, TRAVELS = (30, 100, 300, 1000, 3000), (5, 10, 20, 40, 80, 160, 300, 400), (0.3, 1, 3)
TRAVELLED = (20, 160)  # directions at which other travels than A are tried
FACTORS, POWERS = (0.2, 0.3, 0.5, 0.7, 1.0, 1.4), (1.0, 1.25, 1.5, 1.75, 2.0)
SETS, HELD_OUT = 10, 2  # sets of made-up images for the fit, and to check it
ROUNDS, CLIP, SEEDS, IMAGES = 20, 0.5, 3, 3000
REAL, GIVEN, MOST_REAL = ("digits", "mnist", "fashion-mnist", "photographs"), (20, 50, 100, 200, 400), 6000


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


def real(name: str) -> Mapped:
    """Training images of a data set that the fit has not seen; patches of photographs are those of encoders.py."""
    if name == "photographs":
        with tempfile.TemporaryDirectory() as folder:
            write_photographs(Path(folder) / "rows.npz")
            with np.load(Path(folder) / "rows.npz") as arrays:
                images, labels = arrays["image"] / np.float32(255), np.unique(arrays["photograph"], return_inverse=True)[1]
        names = tuple(f"pixel {row},{column},{depth}" for row, column, depth in np.ndindex(images.shape[1:]))
        rows = images.reshape(len(images), -1)
    else:
        dataset = load_dataset(name)
        rows, labels, names = dataset.features[:, :-1], dataset.labels, dataset.feature_names[:-1]
    order = np.random.default_rng(0).permutation(len(rows))[:MOST_REAL]
    kind = "strokes" if name in WRITTEN else "shapes"
    options = FeatureOptions(basis=kind, basis_size=MOST, scattering_scale=1 if name == "digits" else 2)
    mapped = make_map("scattering", names, options).rows(rows[order], names)
    return Mapped(mapped, labels[order], spectrum(basis_of("scattering", names, options)))


def check() -> None:
    """Train on images that the fit has not seen, with given numbers of directions and with that of the rule."""
    results = {}
    for name in REAL:
        found = real(name)
        most = found.rows.shape[1] - 1
        for strength in STRENGTHS:
            size = directions.directions(strength, int(found.labels.max()) + 1, found.spectrum)
            sizes = sorted({size, *(given for given in GIVEN if given <= most)})
            accuracies = {each: _mean(found, strength, each, strength) for each in sizes}
            results[f"{name}, A = {strength}"] = {"rule": size, "accuracy": accuracies}
            print(name, strength, size, accuracies, flush=True)
    (RESULTS / "directions-checked.json").write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("fit", "summary", "check"))
    {"fit": fit, "summary": summary, "check": check}[parser.parse_args().part]()


if __name__ == "__main__":
    main()
