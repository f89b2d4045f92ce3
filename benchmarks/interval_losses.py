"""How often 95 % intervals hold the true coefficients, for every loss: as benchmarks/intervals.py does for the linear model.

`nice -n 15 python benchmarks/interval_losses.py --out docs/results/benchmarks` takes ten minutes. Releases and intervals of
private runs are the package's own; the rounds of training, and the intervals without noise (Newton steps and HC1, as
`fedpdm.problem.inference` has them), are computed by NumPy, which is faster for such small tables. Labels are drawn so that the
cut of a slope is reached by few rows or none: intervals are for slopes as they are cut.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from intervals import CLIENTS, COLUMNS, DELTA, EPSILONS, SHARE, draw_figure, given

from fedpdm.data.survival import expand
from fedpdm.privacy.accounting import noise_multiplier_for
from fedpdm.privacy.interval_release import release_sums
from fedpdm.problem import Loss, huber, poisson, quantile, softmax
from fedpdm.problem.inference import CurvatureSums, Intervals, from_sums
from fedpdm.problem.survival import piecewise_exponential

KINDS = ("alike", "different")
BANDS, ROUNDS = 3, 100  # the rule of the preset would take 250 rounds for tables of this size
Terms = tuple[np.ndarray, np.ndarray]  # slopes and curvatures of rows in their scores


class Data(NamedTuple):
    """Rows of all clients, one client after the other: features of norm at most 1, labels, and where a client ends."""

    features: np.ndarray
    labels: np.ndarray
    ends: np.ndarray


class Case(NamedTuple):
    """A loss, the true coefficients of features in [-1, 1] and the bias (the last one), and the labels of given scores.

    Labels are `(scores, spread, rng) -> labels`, terms `(scores, labels) -> slopes and curvatures` without a cut.
    """

    loss: Loss
    true: np.ndarray
    labels: Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
    terms: Callable[[np.ndarray, np.ndarray], Terms]
    step: float
    rows: int = 1000  # of a client
    federations: int = 500


def _huber_terms(s: np.ndarray, y: np.ndarray) -> Terms:
    return np.clip(s - y, -0.1, 0.1), (np.abs(s - y) < 0.1) + 0.0


def _median_terms(s: np.ndarray, y: np.ndarray) -> Terms:
    return np.clip((s - y) / 0.1, -0.5, 0.5), (np.abs(s - y) < 0.05) / 0.1


def _exponential_terms(s: np.ndarray, y: np.ndarray) -> Terms:
    return np.exp(s) - y, np.exp(s)


def _band_terms(s: np.ndarray, y: np.ndarray) -> Terms:
    rate = np.abs(y) * np.exp(s)
    return rate - (y > 0), rate


def _class_terms(s: np.ndarray, y: np.ndarray) -> Terms:
    p = 1 / (1 + np.exp(-s))
    return p - y, p * (1 - p)


LINEAR = np.array([0.12, -0.08, 0.04, 0.0, 0.5])
CASES = {
    "huber": Case(
        huber(0.1, 0.7), LINEAR, lambda s, w, rng: np.clip(s + 0.05 * w * rng.standard_t(4, s.shape), 0, 1), _huber_terms, 2.0
    ),
    "median": Case(
        quantile(0.5, 0.05, 0.7), LINEAR, lambda s, w, rng: np.clip(s + 0.08 * w * rng.normal(size=s.shape), 0, 1),
        _median_terms, 0.4
    ),
    "poisson": Case(
        poisson(0.25), np.array([0.3, -0.2, 0.1, 0.0, np.log(10 / 40)]),
        lambda s, w, rng: np.minimum(rng.poisson(40 * np.exp(s)) / 40, 1), _exponential_terms, 2.0, 2000
    ),
    "two classes": Case(
        softmax(0.7), np.array([0.35, -0.25, 0.1, 0.0, 0.1]),
        lambda s, w, rng: (rng.random(s.shape) < 1 / (1 + np.exp(-s))).astype(int), _class_terms, 4.0
    ),
    "time": Case(
        piecewise_exponential(1.0), np.array([0.5, -0.4, 0.2, 0.0, 0.3, -0.2, np.log(0.4)]),
        lambda s, w, rng: rng.exponential(np.exp(-s)), _band_terms, 2.0, 1000, 100
    ),
}  # fmt: skip


def draw(case: Case, kind: str, rng: np.random.Generator) -> Data:
    """Clients that are alike, or that differ in their features and in the spread of errors; a bias of 1 is the last feature."""
    if kind == "alike":
        features, spread = rng.uniform(-1, 1, (CLIENTS, case.rows, COLUMNS)), np.ones((CLIENTS, 1))
    else:
        shape = (CLIENTS, 1, COLUMNS)
        features = 2 * rng.beta(rng.uniform(0.7, 3, shape), rng.uniform(0.7, 3, shape), (CLIENTS, case.rows, COLUMNS)) - 1
        spread = rng.uniform(0.4, 1.6, (CLIENTS, 1))
    x = features.reshape(-1, COLUMNS)
    rows = np.column_stack([x, np.ones(len(x))])
    ends = np.arange(case.rows, len(x) + 1, case.rows)
    if case.loss.target == "time":
        return _times(case, x, ends, rng)
    labels = case.labels((rows @ case.true).reshape(CLIENTS, case.rows), spread, rng).ravel()
    return Data(rows / scale_of(case), labels, ends)


def _times(case: Case, x: np.ndarray, ends: np.ndarray, rng: np.random.Generator) -> Data:
    """Subjects with a constant hazard in each band, censored at random, as rows of bands."""
    base, effects = x @ case.true[:COLUMNS] + case.true[-1], np.concatenate([[0.0], case.true[COLUMNS:-1]])
    left, event = rng.exponential(size=len(x)), np.full(len(x), np.inf)
    for band, effect in enumerate(effects):
        hazard = np.exp(base + effect)
        event = np.where(np.isinf(event) & (left < hazard), band + left / hazard, event)
        left = left - hazard
    end = np.minimum(rng.uniform(0.5, 4, len(x)), BANDS)
    shares = np.maximum(np.minimum(event, end), 1e-6) / BANDS
    wide = np.column_stack([x, np.zeros((len(x), BANDS - 1)), np.ones(len(x))])
    rows = expand(wide, np.where(event <= end, shares, -shares), range(COLUMNS, COLUMNS + BANDS - 1))
    return Data(rows.features / scale_of(case), rows.labels.astype(float), np.searchsorted(rows.subjects, ends - 1, "right"))


def scale_of(case: Case) -> float:
    """Features over it have norm 1 at most: of a time, one band indicator at most is 1."""
    return (COLUMNS + 1 + (case.loss.target == "time")) ** 0.5


def _share(case: Case) -> float:
    return 1 / BANDS if case.loss.target == "time" else 1.0


def train(case: Case, data: Data, epsilon: float, rng: np.random.Generator, rounds: int = ROUNDS) -> np.ndarray:
    """The mean of the second half of x0 over linearised rounds: step 1/rho, kappa = 1/2, everybody in every round."""
    rho, clip = 1 / case.step, case.loss.gradient_bound(1.0) / (2**0.5 if case.loss.target == "classes" else 1.0)
    z = noise_multiplier_for(epsilon, DELTA, rounds, "add-remove") / (1 - SHARE) ** 0.5
    sigma, p = z * 0.5 * clip / (rho * case.rows) / CLIENTS**0.5, data.features.shape[1]
    x0, dual, tail, features = np.zeros(p), np.zeros(p), [], data.features.astype(np.float32)
    labels = data.labels.astype(np.float32)
    for _ in range(rounds):
        slopes = np.clip(case.terms(features @ x0.astype(np.float32), labels)[0], -clip, clip)
        gradient = _share(case) * (slopes @ features).astype(float) / (CLIENTS * case.rows)
        mean = x0 - 0.5 / rho * (gradient - dual) + sigma * rng.standard_normal(p)
        dual = dual + rho * (x0 - mean)
        x0 = mean - dual / rho
        tail.append(x0)
    return np.mean(tail[rounds // 2 :], axis=0)


def exact(case: Case, data: Data) -> Intervals:
    """Newton steps from the truth to the optimum of these rows, and errors over rows (HC1)."""
    a, y, x = data.features, data.labels, case.true * scale_of(case)
    for _ in range(40):
        slopes, curves = case.terms(a @ x, y)
        gradient, curvature = slopes @ a / len(y), (a * curves[:, None]).T @ a / len(y)
        step = np.linalg.solve(curvature, gradient)
        x = x - step * (0.5 if case.loss.name == "quantile" else 1.0)  # its steps overshoot between kinks
        if np.abs(step).max() < 1e-6:
            break
    each, room = a * slopes[:, None] / len(y), len(y) - len(x)
    return from_sums(x, CurvatureSums(gradient, curvature, each.T @ each * len(y) / room, float(room), 1e-9))


def noised(case: Case, data: Data, epsilon: float, seed: int, rng: np.random.Generator) -> Intervals:
    """The intervals of a private run at this budget."""
    model = train(case, data, epsilon, rng)
    z, even = noise_multiplier_for(epsilon, DELTA, 1, "add-remove") / SHARE**0.5, np.ones(CLIENTS)
    parts = (np.split(part, data.ends[:-1]) for part in (data.features, data.labels))
    clients = list(zip(*parts, strict=True))
    weights = [np.full(len(labels), _share(case)) for _, labels in clients]
    classes = case.loss.target == "classes"
    full = np.stack([np.zeros_like(model), model]) if classes else model[None]
    sums = release_sums(case.loss, full, clients, case.rows * even, even, 1.0, z, seed, weights)
    return given(case.loss, full, sums, case.rows)


def study(most: int, names: list[str], path: Path) -> list[dict]:
    """Coverage, widths and share of intervals that are given, over all coefficients; kept after every loss and kind."""
    results: list[dict] = []
    for name, kind in ((name, kind) for name in names for kind in KINDS):
        case = CASES[name]
        found: dict[float | None, list[np.ndarray]] = {epsilon: [] for epsilon in EPSILONS}
        for number in range(min(most, case.federations)):
            rng = np.random.default_rng([1, list(CASES).index(name), KINDS.index(kind), number])
            data = draw(case, kind, rng)
            for epsilon in EPSILONS:
                one = exact(case, data) if epsilon is None else noised(case, data, epsilon, number, rng)
                found[epsilon].append(np.stack([one.estimate, *one.ends(0.95)]) / scale_of(case))
        for epsilon, all_found in found.items():
            results.append({"loss": name, "clients": kind, "epsilon": epsilon} | _summary(case, np.stack(all_found, axis=1)))
            print(json.dumps(results[-1]), flush=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
    return results


def subjects(sizes: list[int], federations: int, first: int, path: Path) -> None:
    """How many subjects per client give intervals of a time: of the features, and of bands and bias; kept after every size."""
    results: list[dict] = []
    for size in sizes:
        case = CASES["time"]._replace(rows=size)
        for epsilon in (1.0, 3.0):
            found = []
            for number in range(first, first + federations):
                rng = np.random.default_rng([2, size, number])
                one = noised(case, draw(case, "alike", rng), epsilon, number, rng)
                found.append(np.stack([one.estimate, *one.ends(0.95)]) / scale_of(case))
            every = np.stack(found, axis=1)
            for name, part in (("features", slice(0, COLUMNS)), ("bands and bias", slice(COLUMNS, None))):
                row = {"subjects": size, "epsilon": epsilon, "coefficients": name, "first": first}
                results.append(row | _summary(case._replace(true=case.true[part]), every[:, :, part]))
                print(json.dumps(results[-1]), flush=True)
            path.write_text(json.dumps(results, indent=1) + "\n")


def _summary(case: Case, found: np.ndarray) -> dict:
    estimate, low, high = found
    given = ~np.isnan(low)
    covered = (low <= case.true) & (high >= case.true)
    if not given.any():
        return {"federations": len(low), "coverage": None, "given": 0.0}
    share = float(covered[given].mean())
    return {
        "federations": len(low),
        "coverage": round(share, 4),
        "standard_error": round((share * (1 - share) / len(low)) ** 0.5, 4),
        "given": round(float(given.mean()), 4),
        "mean_width": round(float((high - low)[given].mean()), 6),
        "bias": round(float((estimate - case.true)[given].mean()), 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federations", type=int, default=500, help="at most so many")
    parser.add_argument("--losses", nargs="*", default=list(CASES))
    parser.add_argument("--subjects", nargs="*", type=int, help="of a time: only how many per client give intervals")
    parser.add_argument("--first", type=int, default=0, help="with --subjects: number of the first federation")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.subjects:
        name = f"interval_subjects{f'_from_{arguments.first}' if arguments.first else ''}.json"
        subjects(arguments.subjects, arguments.federations, arguments.first, arguments.out / name)
        return
    results = study(arguments.federations, arguments.losses, arguments.out / "interval_losses.json")
    shown = [row | {"clients": f"{row['loss']},\n{row['clients']}"} for row in results if row["loss"] != "time"]
    draw_figure(shown, arguments.out / "interval_losses.png", 0.85)


if __name__ == "__main__":
    main()
