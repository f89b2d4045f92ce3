"""How the rules behind a public basis (docs/features.md) were fitted: the number of directions, the clip and the travel.

    python benchmarks/fit_directions.py fit        # made-up images and training images of four sets; writes directions.json
    python benchmarks/fit_directions.py summary    # the tables of docs/features.md from it

A run is FedPDM in the mode "linearised" with kappa = 1/2 and all clients in every round, written out in NumPy: noised
gradient steps. Its noise depends on A alone (`fedpdm.setup.directions`). Accuracy is that on a third of the images, which the
model does not see; test images have no part in it. The patches of photographs need encoders.py and its wheel.
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
from fedpdm.setup import defaults, directions

STRENGTHS, SIZES = (30, 100, 300, 1000, 3000), (10, 20, 28, 40, 57, 80, 113, 160, 226, 320, 400)
CLIPS, TRAVELS = (0.1, 0.2, 0.35, 0.5, 0.7), (1, 2, 4, 8)  # of the loss's own bound; of A
FACTORS, POWERS, LEAST = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0), (0.9, 1.0, 1.25, 1.5), (10, 20, 30)
SETS, OTHERS = 10, 2  # sets of made-up images for the fit, and to check it
SEEDS, IMAGES = 2, 3000
REAL, MOST_REAL = ("digits", "mnist", "fashion-mnist", "photographs"), 6000


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


def private(found: Mapped, strength: float, size: int, clip: float, travel: float, seed: int) -> float:
    """Accuracy of the last model on a third of the images, trained on the others; the travel is in units of A."""
    rng, classes = np.random.default_rng(seed), int(found.labels.max()) + 1
    rows = rows_at_norm_one(found.rows[:, : min(size, found.rows.shape[1] - 1)], bias=True)
    third = len(rows) // 3
    train, labels = rows[third:], found.labels[third:]
    one_hot, place = np.eye(classes, dtype=np.float32)[labels], np.arange(len(labels))
    rounds = max(defaults.LEAST_BASED_ROUNDS, int(travel * strength / defaults.BASED_STEP))
    noise = 2**0.5 * clip * np.linalg.norm(train[0]) * rounds**0.5 / strength
    x = np.zeros((classes, rows.shape[1]), np.float32)
    for _ in range(rounds):
        scores = train @ x.T
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        cut = np.minimum(1, clip / np.maximum(1 - shares[place, labels], 1e-9))
        slope = ((shares - one_hot) * cut[:, None]).T @ train / len(train)
        x -= np.float32(travel * strength / rounds) * (slope + np.float32(noise) * rng.standard_normal(x.shape, np.float32))
    return float(np.mean((rows[:third] @ x.T).argmax(axis=1) == found.labels[:third]))


def _mean(found: Mapped, strength: float, size: int, clip: float, travel: float) -> float:
    return round(float(np.mean([private(found, strength, size, clip, travel, seed) for seed in range(SEEDS)])), 4)


def fit() -> None:
    """Train on all sets with all numbers of directions; at the rule's number with all clips and travels."""
    sets, path = {}, RESULTS / "directions.json"
    for name in [*range(SETS), *range(1000, 1000 + OTHERS), *REAL]:
        found = made_up(name) if isinstance(name, int) else real(name)
        classes, most = int(found.labels.max()) + 1, found.rows.shape[1] - 1
        sizes = [size for size in SIZES if size < most] + [most]
        one: dict[str, Any] = {"classes": classes, "spectrum": [float(f"{value:.4g}") for value in found.spectrum]}
        clip, travel = defaults.BASED_CLIP, defaults.BASED_NOISE / defaults.BASED_CLIP
        one["curves"] = {a: {size: _mean(found, a, size, clip, travel) for size in sizes} for a in STRENGTHS}
        one["steps"] = {
            a: [[_mean(found, a, directions.directions(a, classes, found.spectrum), c, t) for t in TRAVELS] for c in CLIPS]
            for a in STRENGTHS
        }
        sets[str(name)] = one
        print(name, classes, one["curves"], flush=True)
    path.write_text(json.dumps(sets) + "\n")
    summary()


def summary() -> None:
    """Print the mean loss of accuracy against the best: by number of directions, by rule, by clip and travel."""
    sets = json.loads((RESULTS / "directions.json").read_text())
    groups = {"made-up": [sets[str(seed)] for seed in range(SETS)], "real": [sets[name] for name in REAL]}
    others = {"other made-up": [sets[str(seed)] for seed in range(1000, 1000 + OTHERS)]} | {name: [sets[name]] for name in REAL}
    fitted = _rule(directions.FACTOR, 1.0, directions.FEWEST)
    for name, own in (groups | others).items():
        sizes = (20, 40, 80, 160, 320)
        print(f"{name}:", *(f"{size}: {_regret(own, lambda *_, size=size: size).mean():.4f}" for size in sizes), end=" ")
        print(f"the rule: {_regret(own, fitted).mean():.4f}, by A: {_regret(own, fitted).mean(axis=0).round(3)}")
        chosen = [fitted(a, own[0]["classes"], np.array(own[0]["spectrum"])) for a in STRENGTHS]
        print("  its numbers:", *chosen if name in REAL else "")
    tried = [(power, factor, least) for power in POWERS for factor in FACTORS for least in LEAST]
    losses = {one: [_regret(own, _rule(one[1], one[0], one[2])).mean() for own in groups.values()] for one in tried}
    for one in sorted(tried, key=lambda one: sum(losses[one]))[:10]:
        print("power, factor, least:", *one, "lose", *(f"{loss:.4f}" for loss in losses[one]))
    for name, own in groups.items():
        for strength in STRENGTHS:
            grids = [np.array(one["steps"][str(strength)]) for one in own]
            print(f"{name}, A = {strength}: loss by clip {CLIPS} and travel {TRAVELS}")
            print(np.mean([grid.max() - grid for grid in grids], axis=0).round(3))


def _rule(factor: float, power: float, least: int) -> Any:
    def size(strength: float, classes: int, variances: np.ndarray) -> int:
        shares = variances / np.cumsum(variances)
        pays = np.flatnonzero(shares >= factor * (classes**0.5 / strength) ** power)
        return min(max(int(pays[-1]) + 1 if len(pays) else 0, least), len(variances))

    return size


def _regret(sets: Iterable[dict[str, Any]], rule: Any) -> np.ndarray:
    """Return the loss against the best number, [sets, strengths]; accuracy is smoothed over neighbouring numbers."""
    losses = []
    for one in sets:
        own = []
        for strength, curve in one["curves"].items():
            sizes = np.array([int(size) for size in curve])
            values = np.convolve(np.pad(np.array(list(curve.values())), 1, mode="edge"), (0.25, 0.5, 0.25), "valid")
            chosen = min(rule(float(strength), one["classes"], np.array(one["spectrum"])), sizes[-1])
            own.append(values.max() - np.interp(np.log(chosen), np.log(sizes), values))
        losses.append(own)
    return np.array(losses)


def real(name: str) -> Mapped:
    """Training images of a data set; patches of photographs are those of encoders.py."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("fit", "summary"))
    {"fit": fit, "summary": summary}[parser.parse_args().part]()


if __name__ == "__main__":
    main()
