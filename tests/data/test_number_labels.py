"""A label that is a number, from a file to predictions in its own units: schema, run, report, predict, export."""

import csv
import io
import json
import sys

import numpy as np
import pytest

from fedpdm.cli.main import main
from fedpdm.config import load_config
from fedpdm.data.encoding import encode
from fedpdm.data.prepare import build_federation
from fedpdm.data.schema import Number, Schema, Target, parse_schema, to_toml
from fedpdm.data.schema_inference import infer_schema
from fedpdm.data.tables import read_table, table_from_columns
from fedpdm.errors import ConfigError, DataError
from fedpdm.export.onnx.model import export_onnx
from fedpdm.runs.saved import load_model


def stays(rows=600, seed=0):
    """Lengths of stay in whole days, by age and ward, at three hospitals."""
    rng = np.random.default_rng(seed)
    age, ward = rng.uniform(20, 90, rows), rng.choice(["a", "b"], rows)
    days = rng.poisson(np.exp(0.8 + 0.025 * (age - 20) + 0.5 * (ward == "b")))
    return {"age": age.round(1), "ward": ward, "hospital": rng.choice(["n", "s", "w"], rows), "days": days}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("stays") / "stays.csv"
    columns = stays()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["fedpdm", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert not end.value.code, said.err
    return said


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    """The words of `fedpdm run`, and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "stays"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedpdm", "run", "--data", str(table), "--label", "days", "--client-column", "hospital"])
        sys.argv += ["--out", str(folder), "--quiet", "--set", "problem.gamma=0.0"]
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    return folder


def test_a_label_with_many_numbers_is_a_number_and_a_line_says_how_to_have_classes(table):
    found = infer_schema(read_table(str(table)), "days", "hospital")
    assert found.schema.target == Target(low=0, high=float(max(stays()["days"])))
    assert not found.schema.classes
    assert "days: 2" in found.notes[0]
    assert found.notes[0].endswith("different numbers, so a number is predicted; problem.loss=softmax takes them for classes")
    assert infer_schema(read_table(str(table)), "days", target="classes").schema.target is None
    assert infer_schema(read_table(str(table)), "ward").schema.classes == ["a", "b"]


@pytest.mark.parametrize(
    ("values", "number"),
    [
        (range(20), False),
        (range(21), True),
        (np.arange(12) / 4, True),
        (np.arange(8) / 4, False),
        ([f"{k:03}" for k in range(30)], True),
        ([*"abcdefghijklmnopqrstuvwxyz"], False),
    ],
)
def test_what_is_taken_for_a_number(values, number):
    values = list(values)
    table = table_from_columns({"x": np.arange(len(values)) / 7, "y": values})
    assert (infer_schema(table, "y").schema.target is not None) == number


def test_the_loss_of_the_settings_decides_where_one_is_named(table):
    def kind(*settings):
        config = load_config("table", [f"data.name={json.dumps(str(table))}", "data.label=days", *settings])
        return build_federation(config, progress=False).numeric

    assert kind()
    assert kind("problem.loss=poisson")
    assert not kind("problem.loss=softmax")
    with pytest.raises(DataError, match=r"label column 'ward': row 1 is '[ab]', which is not a number"):
        kind("problem.loss=squared", "data.label=ward")
    with pytest.raises(ConfigError, match="deals by classes, but the label is a number"):
        kind("data.partition=dirichlet")


def test_a_schema_has_classes_or_a_target_and_comes_back_from_toml():
    schema = Schema(label="y", target=Target(low=-5, high=5), columns={"x": Number(low=0, high=1)})
    assert parse_schema(to_toml(schema)) == schema
    rows = encode(schema, table_from_columns({"x": [0, 1, 1], "y": [0.0, 9.0, None]}))
    assert rows.labels.tolist() == [0.5, 1.0]
    assert rows.notes == ("y: 1 label outside [-5, 5] is cut to it", "y: 1 row without a label is left out")
    for wrong in ('label = "y"\n', 'label = "y"\nclasses = ["a", "b"]\ntarget = {low = 0, high = 1}\n'):
        with pytest.raises(DataError, match=r"either classes, at least 2, or a \[target\]"):
            parse_schema(wrong + '[columns.x]\nkind = "number"\nlow = 0\nhigh = 1\n')
    with pytest.raises(DataError, match="low=2 must be below high=1"):
        parse_schema('label = "y"\ntarget = {low = 2, high = 1}\n[columns.x]\nkind = "number"\nlow = 0\nhigh = 1\n')


def test_the_run_reaches_least_squares_and_measures_it_in_days(run, table):
    summary = json.loads((run / "summary.json").read_text())
    found = summary["metrics"]
    assert summary["converged"]
    assert summary["test_accuracy"] is None
    assert 0.2 < found["r2"]["value"] < 1
    assert 1 < found["mae"]["value"] < found["rmse"]["value"] < 6
    assert found["mae"]["interval"][0] < found["mae"]["value"] < found["mae"]["interval"][1]
    config = load_model(run).config
    assert config.problem.loss == "squared"
    federation = build_federation(config, progress=False)
    real = np.concatenate([federation.features[i, :size] for i, size in enumerate(federation.sizes)]).astype(float)
    labels = np.concatenate([federation.labels[i, :size] for i, size in enumerate(federation.sizes)]).astype(float)
    best = real @ np.linalg.lstsq(real, labels, rcond=None)[0]
    np.testing.assert_allclose(real @ load_model(run).weights[0], best, atol=1e-3)


def test_predictions_exports_and_report_are_in_the_labels_units(run, table, monkeypatch, capsys):
    said = command(monkeypatch, capsys, "predict", run, table, "--keep", "days")
    lines = list(csv.DictReader(io.StringIO(said.out)))
    assert list(lines[0]) == ["days", "predicted"]
    days, predicted = (np.array([float(line[key]) for line in lines]) for key in ("days", "predicted"))
    assert abs(predicted.mean() - days.mean()) < 0.5
    assert np.corrcoef(days, predicted)[0, 1] > 0.5

    model = load_model(run)
    features, _ = model.features(read_table(str(table)))
    np.testing.assert_allclose(features @ model.coefficients()[0], predicted, rtol=1e-4, atol=1e-4)

    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(export_onnx(model), providers=["CPUExecutionProvider"])
    columns = stays()
    inputs = {"age": columns["age"][:, None].astype(np.float32), "ward": columns["ward"][:, None].astype(object)}
    (by_onnx,) = session.run(["predicted"], inputs)
    np.testing.assert_allclose(by_onnx[:, 0], predicted, rtol=1e-3, atol=1e-3)

    page = (run / "report.html").read_text()
    for words in ("Mean absolute error", "Residuals: true minus predicted", "Predicted against true", "Prediction of days"):
        assert words in page
    assert "Test accuracy" not in page


def test_counts_with_a_log_link_predict_counts(table, tmp_path, monkeypatch, capsys):
    flags = ["--label", "days", "--set", "problem.loss=poisson", "--set", "data.clients=3", "--set", "problem.gamma=0.0"]
    said = command(monkeypatch, capsys, "run", "--data", table, *flags, "--out", tmp_path / "counts", "--quiet")
    assert "Mean absolute error" in said.out
    assert "Mean deviance" in said.out
    model = load_model(tmp_path / "counts")
    features, _ = model.features(read_table(str(table)))
    predicted = model.numbers(features)
    assert predicted.min() > 0
    np.testing.assert_allclose(np.exp(features @ model.coefficients()[0]), predicted, rtol=1e-4)
    names = dict(zip(model.feature_names, model.coefficients()[0], strict=True))
    assert names["ward=b"] - names["ward=a"] == pytest.approx(0.5, abs=0.15)
