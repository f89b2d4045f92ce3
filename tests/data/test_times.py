"""Times to an event: bands of a subject, the model of statsmodels, predictions and concordance, and what one subject can do."""

import csv
import json

import numpy as np
import pytest
import statsmodels.api as sm

from fedpdm.config import load_config
from fedpdm.data.prepare import build_federation
from fedpdm.data.schema import Number, Schema, Target, parse_schema, to_toml
from fedpdm.data.survival import expand, gathered
from fedpdm.data.tables import read_table
from fedpdm.errors import ConfigError, DataError
from fedpdm.export.onnx.model import export_onnx
from fedpdm.metrics import Predictions
from fedpdm.metrics.times import concordance
from fedpdm.problem.survival import piecewise_exponential, restricted_mean
from fedpdm.runs.saved import load_model
from fedpdm.runs.train import train


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Times of 900 subjects at three sites, censored at random, with a hazard that rises with age."""
    rng = np.random.default_rng(0)
    age, dose = rng.uniform(0, 1, 900), rng.choice(["low", "high"], 900)
    time = rng.exponential(200 / np.exp(1.2 * age - 0.7 * (dose == "high")))
    end = rng.uniform(50, 600, 900)
    path = tmp_path_factory.mktemp("times") / "times.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "age", "dose", "days", "died"])
        shown = np.minimum(time, end).round(2)
        writer.writerows(zip(rng.choice(["a", "b", "c"], 900), age.round(3), dose, shown, (time <= end) + 0, strict=True))
    (path.parent / "times.schema.toml").write_text(
        'label = "days"\nclient = "site"\ntarget = { low = 0, high = 365, event = "died", bands = 4 }\n'
        '[columns.age]\nkind = "number"\nlow = 0\nhigh = 1\n'
        '[columns.dose]\nkind = "category"\nlevels = ["high"]\nbaseline = "low"\n'
    )
    return path


def config_for(table, *settings):
    files = [f"data.name={json.dumps(str(table))}", f"data.schema_file={json.dumps(str(table.parent / 'times.schema.toml'))}"]
    return load_config("table", [*files, "data.partition=column", "problem.penalty=none", *settings])


def test_a_subject_is_a_row_of_every_band_that_it_enters_and_can_be_put_together_again():
    labels = np.array([1.0, -0.1, 0.5, -1.0, 0.26], np.float32)
    rows = expand(np.zeros((5, 5)), labels, [1, 2, 3])
    assert np.bincount(rows.subjects).tolist() == [4, 1, 2, 4, 2]
    assert (rows.features[:, 1:4].sum(axis=1) <= 1).all()
    times, seen = gathered(rows.labels, rows.features.sum(axis=1) == 0)
    np.testing.assert_allclose(times / 4, np.abs(labels), atol=1e-6)
    assert seen.tolist() == [True, False, True, False, True]


def test_the_model_is_that_of_statsmodels_and_predicts_times(table, tmp_path):
    run = train(config_for(table, "rounds.tolerance=1e-9"), tmp_path / "run")
    assert run.config.problem.loss == "piecewise-exponential"
    assert run.summary["converged"]
    federation = build_federation(run.config, progress=False)
    parts = [(federation.features[i, :size], federation.labels[i, :size]) for i, size in enumerate(federation.sizes)]
    x, y = (np.concatenate(part).astype(float) for part in zip(*parts, strict=True))
    best = sm.GLM((y > 0) + 0.0, x, family=sm.families.Poisson(), offset=np.log(np.abs(y))).fit(tol=1e-12)
    np.testing.assert_allclose(run.model[0], best.params, rtol=1e-3, atol=1e-3)

    model = load_model(run.folder)
    names = dict(zip(model.feature_names, model.coefficients()[0], strict=True))
    assert names["age"] == pytest.approx(1.2, abs=0.4)
    assert names["dose=high"] == pytest.approx(-0.7, abs=0.25)
    assert np.exp(names["bias"]) == pytest.approx(1 / 200, rel=0.5)  # the hazard per day of a subject of age 0
    errors = model.intervals_in_units().errors
    few = np.sqrt(len(y) / (len(y) - len(best.params)))
    robust = sm.GLM((y > 0) + 0.0, x, family=sm.families.Poisson(), offset=np.log(np.abs(y))).fit(cov_type="HC0")
    np.testing.assert_allclose(errors, robust.bse * few, rtol=0.01)

    features, _ = model.features(read_table(str(table)))
    times = model.numbers(features)
    assert 0 < times.min() < times.max() < 365
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(export_onnx(model), providers=["CPUExecutionProvider"])
    columns = read_table(str(table))
    inputs = {"age": columns.column("age").to_numpy()[:, None].astype(np.float32)}
    (by_onnx,) = session.run(["predicted"], inputs | {"dose": columns.column("dose").to_numpy()[:, None].astype(object)})
    np.testing.assert_allclose(by_onnx[:, 0], times, rtol=1e-4)

    found = run.summary["metrics"]["concordance"]
    assert 0.55 < found["value"] < 0.75
    assert found["interval"][0] < found["value"] < found["interval"][1]


def test_expected_times_are_integrals_of_the_survival_function():
    hazards = np.array([[0.3, 1.2, 0.05]])
    steps = np.linspace(0, 3, 300_001)
    survival = np.exp(-np.interp(steps, [0, 1, 2, 3], [0, 0.3, 1.5, 1.55]))
    assert restricted_mean(hazards)[0] == pytest.approx(np.trapezoid(survival, steps), rel=1e-6)


def test_concordance_counts_comparable_pairs():
    """By hand: an event at 1, censored at 2, an event at 3, an event at 3."""
    rows = Predictions(np.array([5.0, 1.0, 5.0, 9.0]), np.array([1.0, -2.0, 3.0, 3.0]))
    assert concordance(rows).value == pytest.approx((0 + 0.5 + 1) / 3, abs=1e-8)
    assert concordance(Predictions(np.ones(2), np.array([-1.0, -2.0]))).value is None


def test_all_rows_of_a_subject_together_stay_within_the_bound_of_one_example(table):
    """Every row counts one over the bands, so a subject's rows add up to at most one example, whatever its time."""
    federation = build_federation(config_for(table), progress=False)
    assert federation.weights is not None
    assert federation.weights.max() <= 1 / 4
    assert federation.slots.sum() < federation.sizes.sum()
    loss, rng, whole = piecewise_exponential(clip=0.5), np.random.default_rng(1), 0.0
    for _ in range(50):
        rows = expand(np.zeros((1, 6)), rng.choice([-1, 1]) * rng.random(1), [1, 2, 3])
        rows.features[:, [0, 4, 5]] = rng.normal(size=3)
        unit = rows.features / np.linalg.norm(rows.features, axis=1, keepdims=True)
        model, weights = rng.normal(size=(1, 6)) * 10 ** rng.uniform(-1, 2), np.full(len(unit), 0.25)
        one = np.asarray(loss.gradient(model, unit, rows.labels, weights))
        assert np.linalg.norm(one) <= loss.gradient_bound(1.0) * (1 + 1e-6)
        whole = max(whole, float(np.linalg.norm(loss.gradient(model, unit, rows.labels, np.ones(len(unit))))))
    assert whole > 1.5 * loss.gradient_bound(1.0), "rows that count 1 each exceed the bound"


def test_what_cannot_be_is_refused(table):
    schema = Schema(label="days", target=Target(low=0, high=9, event="died"), columns={"x": Number(low=0, high=1)})
    assert parse_schema(to_toml(schema)) == schema
    assert schema.feature_names == ("x", "days band=2", "days band=3", "days band=4", "days band=5", "bias")
    plain = ["data.name=" + json.dumps(str(table)), "data.label=days", "data.clients=3"]
    with pytest.raises(
        ConfigError, match=r"problem.loss.*partial likelihood of Cox is not offered: .* use 'piecewise-exponential'"
    ):
        load_config("table", [*plain, "problem.loss=cox"])
    with pytest.raises(ConfigError, match=r"needs the column that says whether the event was seen: --event"):
        build_federation(load_config("table", [*plain, "problem.loss=piecewise-exponential"]), progress=False)
    with pytest.raises(DataError, match=r"event column 'dose': row 1 is '(low|high)'; write 1, yes"):
        build_federation(load_config("table", [*plain, "data.event_column=dose"]), progress=False)
    with pytest.raises(ConfigError, match=r"problem.loss=squared does not go with a label that is a time"):
        train(config_for(table, "problem.loss=squared"), table.parent / "no")
    with pytest.raises(DataError, match="low=1 must be 0 for a time"):
        parse_schema(
            'label = "y"\ntarget = {low = 1, high = 2, event = "e"}\n[columns.x]\nkind = "number"\nlow = 0\nhigh = 1\n'
        )
