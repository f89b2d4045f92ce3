"""Coefficients on public tables beside those of statsmodels and lifelines: every kind of label, all rows, no penalty, no noise.

`python benchmarks/public_tables.py --out docs/results/benchmarks` takes a minute. A table is written as a CSV file with a
schema whose bounds are its smallest and largest values, and trained on by the preset "table" at several clients.
The tables come with statsmodels and scikit-learn; those of lifelines are left out if it is not installed.
"""

import argparse
import csv
import importlib.util
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import statsmodels.api as sm

from fedpdm.config import load_config
from fedpdm.data.schema import Number, Schema, Target, to_toml
from fedpdm.data.survival import expand
from fedpdm.runs.saved import load_model
from fedpdm.runs.train import train

EXACT = ["problem.penalty=none", "rounds.tolerance=1e-10", "metrics.diagnose_every=1"]


class Case(NamedTuple):
    """A table, the loss, and the coefficients of the other package: of the features in their units, the intercept last."""

    source: str
    columns: dict[str, np.ndarray]
    label: np.ndarray
    settings: list[str]
    other: str
    best: np.ndarray
    event: np.ndarray | None = None
    bands: int = 5
    high: float = 0.0


def _plain(columns: dict[str, np.ndarray]) -> np.ndarray:
    return np.column_stack([*columns.values(), np.ones(len(next(iter(columns.values()))))]).astype(float)


def linear() -> Case:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    columns = {f"x{place}": column for place, column in enumerate(x.T)}
    best = sm.OLS(y, _plain(columns)).fit().params
    return Case("scikit-learn's diabetes", columns, y, ["problem.loss=squared"], "statsmodels OLS", best)


def huber() -> Case:
    data = sm.datasets.stackloss.load_pandas().data
    columns = {name: data[name].to_numpy() for name in data.columns[1:]}
    y = data.iloc[:, 0].to_numpy(float)
    found = sm.RLM(y, _plain(columns), M=sm.robust.norms.HuberT(1.345)).fit(update_scale=False, tol=1e-12)
    settings = ["problem.loss=huber", f"problem.huber_threshold={1.345 * found.scale / np.ptp(y)}"]
    return Case("statsmodels' stackloss", columns, y, settings, "statsmodels RLM, HuberT", found.params)


def median() -> Case:
    data = sm.datasets.engel.load_pandas().data
    columns = {"income": data["income"].to_numpy()}
    y = data["foodexp"].to_numpy()
    best = sm.QuantReg(y, _plain(columns)).fit(q=0.5, p_tol=1e-10, max_iter=10_000).params
    settings = ["problem.loss=quantile", "problem.quantile=0.5", "problem.quantile_smoothing=5e-5", "algorithm.rho=1.0"]
    return Case("statsmodels' engel", columns, y, settings, "statsmodels QuantReg, q = 0.5", best)


def counts() -> Case:
    data = sm.datasets.randhie.load_pandas().data
    columns = {name: data[name].to_numpy(float) for name in data.columns if name != "mdvis"}
    y = data["mdvis"].to_numpy(float)
    best = sm.GLM(y, _plain(columns), family=sm.families.Poisson()).fit(tol=1e-12).params
    return Case("statsmodels' randhie", columns, y, ["problem.loss=poisson"], "statsmodels GLM, Poisson", best)


def two_classes() -> Case:
    data = sm.datasets.fair.load_pandas().data
    columns = {name: data[name].to_numpy(float) for name in data.columns if name != "affairs"}
    y = (data["affairs"] > 0).to_numpy()
    best = sm.Logit(y.astype(float), _plain(columns)).fit(disp=0, tol=1e-12).params
    return Case("statsmodels' fair", columns, y, ["problem.loss=softmax"], "statsmodels Logit", best)


def _poisson_of_bands(
    columns: dict[str, np.ndarray], times: np.ndarray, seen: np.ndarray, high: float, bands: int
) -> np.ndarray:
    """Log hazard ratios, the bands' effects, and the log hazard per unit of time in the first band."""
    wide = np.column_stack([*columns.values(), np.zeros((len(times), bands - 1)), np.ones(len(times))]).astype(float)
    rows = expand(wide, np.where(seen, times, -times) / high, range(len(columns), len(columns) + bands - 1))
    family, shown = sm.families.Poisson(), np.abs(rows.labels.astype(float)) * high / bands
    return sm.GLM((rows.labels > 0) + 0.0, rows.features, family=family, offset=np.log(shown)).fit(tol=1e-12).params


def times() -> Case:
    data = sm.datasets.heart.load_pandas().data
    columns, seen = {"age": data["age"].to_numpy()}, data["censors"].to_numpy() > 0
    y = np.maximum(data["survival"].to_numpy(float), 0.5)  # a time of 0 is that of the first half day
    best = _poisson_of_bands(columns, y, seen, float(y.max()), 4)
    settings = ["problem.loss=piecewise-exponential"]
    other = "statsmodels GLM, Poisson with offset"
    return Case("statsmodels' heart", columns, y, settings, other, best, seen, 4, float(y.max()))


def recidivism() -> Case:
    """Lifelines' proportional hazards with a piecewise constant baseline: the same model. A band holds its end."""
    from lifelines import CoxPHFitter
    from lifelines.datasets import load_rossi

    data, bands, high = load_rossi(), 4, 52.0
    fitter = CoxPHFitter(baseline_estimation_method="piecewise", breakpoints=[week + 1e-9 for week in (13, 26, 39)])
    fitter.fit(data, duration_col="week", event_col="arrest", fit_options={"tol": 1e-12})
    names = [name for name in data.columns if name not in ("week", "arrest")]
    found, bias = fitter.params_, "Intercept"
    later = [found[(f"log_lambda{band}_", bias)] for band in range(2, bands + 1)]
    best = np.array([*(found[("beta_", name)] for name in names), *later, found[("beta_", bias)]])
    columns = {name: data[name].to_numpy(float) for name in names}
    seen, y = data["arrest"].to_numpy() > 0, data["week"].to_numpy(float)
    settings, other = ["problem.loss=piecewise-exponential"], "lifelines CoxPHFitter, piecewise baseline"
    return Case("lifelines' rossi", columns, y, settings, other, best, seen, bands, high)


CASES: dict[str, Callable[[], Case]] = {
    "linear": linear,
    "Huber": huber,
    "median": median,
    "counts": counts,
    "two classes": two_classes,
    "times": times,
    "times, lifelines": recidivism,
}


def difference(case: Case, folder: Path, clients: int = 4) -> dict:
    """Train as a user does; the largest relative difference of a trained coefficient, and of an estimate with an interval."""
    columns = {name: Number(low=float(column.min()), high=float(column.max())) for name, column in case.columns.items()}
    classes = case.label.dtype == bool
    target = None
    if case.event is not None:
        target = Target(low=0, high=case.high, event="seen", bands=case.bands)
    elif not classes:
        low = 0.0 if case.label.min() >= 0 else float(case.label.min())
        target = Target(low=low if "poisson" in case.settings[0] else float(case.label.min()), high=float(case.label.max()))
    schema = Schema(label="y", classes=["no", "yes"] if classes else [], target=target, columns=columns)
    (folder / "table.schema.toml").write_text(to_toml(schema))
    words = np.where(case.label, "yes", "no") if classes else [repr(float(value)) for value in case.label]
    cells = {"y": words, **{name: [repr(float(value)) for value in column] for name, column in case.columns.items()}}
    if case.event is not None:
        cells["seen"] = case.event.astype(int)
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))
    path, described = (json.dumps(str(folder / name)) for name in ("table.csv", "table.schema.toml"))
    files = [f"data.name={path}", f"data.test_file={path}", f"data.schema_file={described}", f"data.clients={clients}"]
    run = train(load_config("table", [*files, *EXACT, *case.settings]), folder / "run")
    model = load_model(folder / "run")
    trained, refined = (in_units(each, schema) for each in (model.coefficients(), model.intervals_in_units().estimate[None]))
    return {
        "table": case.source,
        "rows": len(case.label),
        "coefficients": len(case.best),
        "clients": clients,
        "rounds": run.summary["rounds"],
        "other": case.other,
        "trained": float(f"{np.abs(trained / case.best - 1).max():.2g}"),
        "estimate": float(f"{np.abs(refined / case.best - 1).max():.2g}"),
    }


def in_units(coefficients: np.ndarray, schema: Schema) -> np.ndarray:
    """Coefficients of the columns as they are in the file, where the model's are in [0, 1]."""
    found = coefficients[-1] - coefficients[0] if len(coefficients) == 2 else coefficients[0].copy()
    for place, column in enumerate(schema.columns.values()):
        assert isinstance(column, Number)
        found[place] /= column.high - column.low
        found[-1] -= found[place] * column.low
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results = {}
    for name, make in CASES.items():
        if name.endswith("lifelines") and importlib.util.find_spec("lifelines") is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            results[name] = difference(make(), Path(folder))
        print(name, json.dumps(results[name]), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "public_tables.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
