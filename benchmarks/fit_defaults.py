"""How the rule of docs/defaults.md was fitted and checked: made-up tables, the gap in AUC to training without noise.

    python benchmarks/fit_defaults.py                # the fit: many settings; writes defaults.json, about two minutes
    python benchmarks/fit_defaults.py --validate     # the rule alone, on other tables; writes defaults-validated.json

A run is FedPDM in the mode "linearised" with kappa = 1/2 and all clients in every round, written out in NumPy: then x0 takes
noised gradient steps of length 1/rho. Nothing here is anybody's data.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from fedpdm.privacy.accounting import gdp_mu
from fedpdm.privacy.first_release import combined, simulated_mean
from fedpdm.privacy.standard_release import BIAS, means_release, standard_from
from fedpdm.setup.defaults import ENOUGH, TOO_LITTLE, Sizes, rule, signal, weighed
from fedpdm.setup.shares import precisions

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "benchmarks"
FIRST_SEED, FIRST_HELD_OUT = 100, 1000  # of the tables for the fit, and of those to check it on
DELTA, SHARE, STEP = 1e-5, 0.1, 4.0
TRAVELS, CLIPS, EPSILONS = (30, 100, 300, 1000, 3000), (0.7,), (0.3, 1.0, 3.0)


class MadeUp(NamedTuple):
    """Rows in [0, 1] with a bias, labels, whose rows they are, and which are for tests."""

    features: np.ndarray
    labels: np.ndarray
    clients: np.ndarray
    test: np.ndarray
    names: tuple[str, ...]


def made_up(seed: int) -> MadeUp:
    """2,000 to 40,000 rows of 4 to 50 clients: numbers (some skewed, some yes or no), words, a model with gaps, a shift."""
    rng = np.random.default_rng(seed)
    rows, clients = int(10 ** rng.uniform(3.3, 4.6)), int(rng.choice([4, 10, 20, 50]))
    numbers, words = int(rng.integers(2, 15)), int(rng.integers(1, 7))
    count = numbers + words
    hidden = rng.normal(size=(rows, count)) @ (np.eye(count) + 0.4 * rng.normal(size=(count, count)) / count**0.5)
    columns, names = [], []
    for j in range(numbers):
        kinds = (
            lambda a: 1 / (1 + np.exp(-a * rng.uniform(0.3, 1.5) + rng.normal())),
            lambda a: np.clip(np.exp(a) * 10 ** rng.uniform(-2.5, -0.7), 0, 1),
            lambda a: (a > rng.normal()).astype(float),
        )
        columns.append(kinds[rng.integers(3)](hidden[:, j]))
        names.append(f"n{j}")
    for j in range(numbers, count):
        levels = int(rng.integers(2, 9))
        level = np.searchsorted(np.sort(rng.normal(size=levels - 1)), hidden[:, j] + 0.3 * rng.normal(size=rows))
        columns += [(level == k).astype(float) for k in range(levels)]
        names += [f"w{j}={k}" for k in range(levels)]
    features = np.stack(columns, axis=1)
    standard = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 1e-3)
    scores = standard @ (rng.normal(size=len(names)) * (rng.random(len(names)) < 0.5))
    scores *= rng.uniform(0.7, 2.2) / max(float(scores.std()), 1e-6)
    shares = rng.lognormal(0, 1, clients)
    owner = rng.choice(clients, rows, p=shares / shares.sum())
    scores += 0.3 * rng.normal(size=clients)[owner] + rng.uniform(-2.5, 0.5)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-scores))).astype(int)
    features = np.column_stack([features, np.ones(rows)]).astype(np.float32)
    return MadeUp(features, labels, owner, rng.random(rows) < 0.2, (*names, "bias"))


def without_noise(table: MadeUp) -> tuple[float, float]:
    """AUC and accuracy of logistic regression on all training rows."""
    rows = (table.features - table.features.mean(axis=0)) / np.maximum(table.features.std(axis=0), 1e-3)
    model = LogisticRegression(C=10, max_iter=500).fit(rows[~table.test], table.labels[~table.test])
    truth, scores = table.labels[table.test], model.decision_function(rows[table.test])
    return float(roc_auc_score(truth, scores)), float(np.mean((scores > 0) == truth))


def private(
    table: MadeUp,
    epsilon: float,
    travel: float,
    clip: float,
    seed: int,
    shrink: float = 1.0,
    weigh: Callable[[np.ndarray, int, float], np.ndarray] = precisions,
) -> dict[str, float]:
    """AUC of the last and of the averaged model, and the latter's accuracy and log loss; `travel` is the sum of all steps."""
    rng, mu = np.random.default_rng([seed, int(100 * epsilon)]), gdp_mu(epsilon, DELTA)
    known = np.unique(table.clients[table.clients >= 0])  # rows of -1 belong to nobody
    found = {int(client): np.flatnonzero(~table.test & (table.clients == client)) for client in known}
    found = {client: rows for client, rows in found.items() if len(rows)}
    owners, width = list(found.values()), len(table.names)
    sizes, release = np.array([len(rows) for rows in owners], float), means_release(table.names)
    sigmas = release.bound / (mu * SHARE**0.5 * sizes)
    means = [release.mean(table.features[rows], float(len(rows)), None) for rows in owners]
    # a client's noise depends on its own number, so that it stays the same if another client is left out
    noised = [simulated_mean(*each, seed, client) for each, client in zip(zip(means, sigmas, strict=True), found, strict=True)]
    moments = combined(release, noised, sizes, sigmas)
    mapped = standard_from(moments, table.names).apply(table.features)
    norms = np.linalg.norm(mapped[:, :-1], axis=1, keepdims=True)
    train = mapped.copy()
    train[:, :-1] *= np.minimum(1, (1 - BIAS**2) ** 0.5 / np.maximum(norms, 1e-9))
    left = mu * (1 - SHARE) ** 0.5
    weights = weigh(sizes, 2 * width, left)
    weights /= weights.sum()
    order, rounds = np.concatenate(owners), int(np.clip(np.ceil(travel / STEP), 25, 250))
    rows, labels, each = train[order], table.labels[order], np.repeat(weights / sizes, sizes.astype(int)).astype(np.float32)
    noise = 2**0.5 * clip * (rounds**0.5 / left) * np.sqrt(np.sum((weights / sizes) ** 2))
    x, total = np.zeros((2, width)), np.zeros((2, width))
    for t in range(rounds):
        p = 1 / (1 + np.exp(-(rows @ (x[1] - x[0]).astype(np.float32))))
        gap = np.where(labels == 1, 1 - p, p)
        slope = rows.T @ (each * (p - labels) * np.minimum(1, clip / np.maximum(gap, 1e-9)))
        x = x - travel / rounds * (np.stack([-slope, slope]) + noise * rng.normal(size=x.shape))
        total += x if t >= rounds // 2 else 0
    truth = table.labels[table.test]
    scores = {name: mapped[table.test] @ (m[1] - m[0]) for name, m in (("last", x), ("averaged", total))}
    aucs = {name: float(roc_auc_score(truth, found)) for name, found in scores.items()}
    mean = (total[1] - total[0]) / (rounds - rounds // 2)
    inputs, bias = mapped[table.test, :-1] @ mean[:-1], mapped[table.test, -1] * mean[-1]
    losses = {}
    for name, used in (("log_loss", shrink), ("log_loss_before", 1.0)):
        score = used * inputs + bias
        losses[name] = float(np.mean(np.logaddexp(0, score) - truth * score))
    return aucs | losses | {"accuracy": float(np.mean((shrink * inputs + bias > 0) == truth))}


def sizes_of(table: MadeUp) -> Sizes:
    """What is public about a table."""
    rows = np.bincount(table.clients[~table.test]).astype(float)
    return Sizes(rows[rows > 0], len(table.names))


def validate(tables: int) -> None:
    """The rule on tables that it was not fitted to: AUC and accuracy by the signal that the warning looks at."""
    cells: list[dict[str, Any]] = []
    for seed in range(FIRST_HELD_OUT, FIRST_HELD_OUT + tables):
        table = made_up(seed)
        best, accuracy = without_noise(table)
        if best < 0.6:
            continue
        rarest, truth = float(np.bincount(table.labels, minlength=2).min() / len(table.labels)), table.labels[table.test]
        majority = float(max(truth.mean(), 1 - truth.mean()))
        for epsilon in EPSILONS:
            found = signal(sizes_of(table), epsilon, DELTA)
            chosen = rule(found)
            travel = chosen["rounds"]["total"] / chosen["algorithm"]["rho"]
            got = private(table, epsilon, travel, CLIPS[0], seed, chosen["data"]["standard_shrink"])
            about = {"table": seed, "epsilon": epsilon, "signal": round(found, 2), "rarest": round(rarest, 4)}
            gains = {"gain": round(got["accuracy"] - majority, 4), "gain_without_noise": round(accuracy - majority, 4)}
            gains |= {name: round(got[name], 5) for name in ("log_loss", "log_loss_before")}
            cells.append(about | {"gap": round(best - got["averaged"], 4)} | gains)
    (RESULTS / "defaults-validated.json").write_text(json.dumps(cells))
    shrunken = [c for c in cells if c["log_loss"] != c["log_loss_before"]]
    gains = [c["log_loss_before"] - c["log_loss"] for c in shrunken]
    lower = np.mean(np.array(gains) > 0)
    print(
        f"weights are shrunken in {len(gains)} cells: log loss falls by {np.mean(gains):.4f} on average, in {lower:.0%} of them"
    )
    for low, high in (
        (0, TOO_LITTLE),
        (TOO_LITTLE, ENOUGH),
        (ENOUGH, 2 * ENOUGH),
        (2 * ENOUGH, 10 * ENOUGH),
        (10 * ENOUGH, 1e9),
    ):
        some = [c for c in cells if low <= weighed(c["signal"], c["rarest"]) < high]
        able = [c for c in some if c["gain_without_noise"] > 0.005]  # where accuracy can beat the majority class at all
        beats = np.mean([c["gain"] > 0 for c in able]) if able else np.nan
        gap = np.mean([c["gap"] for c in some]) if some else np.nan
        print(
            f"weighed signal {low:>5.3g} to {high:<6.3g} {len(some):>3} tables: mean gap in AUC {gap:.3f}; accuracy beats the "
            f"majority in {beats:.0%} of the {len(able)} where it does without noise",
            flush=True,
        )


def fit(tables: int) -> None:
    """All settings on all tables: the mean gap by signal, travel, clip and model."""
    cells: list[dict[str, Any]] = []
    for seed in range(FIRST_SEED, FIRST_SEED + tables):
        table = made_up(seed)
        best, _ = without_noise(table)
        if best < 0.6:  # nothing to learn
            continue
        for epsilon in EPSILONS:
            found = signal(sizes_of(table), epsilon, DELTA)
            for travel in TRAVELS:
                for clip in CLIPS:
                    aucs = private(table, epsilon, travel, clip, seed)
                    gaps = {name: round(best - aucs[name], 4) for name in ("last", "averaged")}
                    cells.append(
                        {"table": seed, "epsilon": epsilon, "signal": round(found, 2), "travel": travel, "clip": clip} | gaps
                    )
    (RESULTS / "defaults.json").write_text(json.dumps(cells))
    for low, high in ((0, 3), (3, 10), (10, 30), (30, 100), (100, 1e9)):
        for clip in CLIPS:
            line = []
            for travel in TRAVELS:
                some = [c for c in cells if low <= c["signal"] < high and c["travel"] == travel and c["clip"] == clip]
                means = [np.mean([c[name] for c in some]) if some else np.nan for name in ("last", "averaged")]
                line.append(f"{means[0]:.3f}/{means[1]:.3f}")
            print(f"signal {low:>3g} to {high:<6g} clip {clip:<4g} " + "  ".join(line), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=10, help="how many made-up tables")
    parser.add_argument("--validate", action="store_true", help="check the rule on other tables than those of the fit")
    given = parser.parse_args()
    (validate if given.validate else fit)(given.tables)
