"""The test figures of a run are those of scikit-learn on the saved model, in summary, terminal and report."""

import csv
import io
import json

import numpy as np
import pytest
from sklearn import metrics as reference
from typer.testing import CliRunner

from fedpdm.cli.main import app
from fedpdm.config import load_config
from fedpdm.data.prepare import build_federation
from fedpdm.data.tables import read_table
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.steadiness import steadiness
from fedpdm.errors import ConfigError
from fedpdm.runs.folder import STEADINESS, read_models
from fedpdm.runs.saved import load_model

QUICK = [
    "data.clients=3",
    "local.solver=steps",
    "local.tolerance=0.0",
    "local.steps=10",
    "rounds.total=6",
    "rounds.tolerance=0.0",
]
QUICK += ["algorithm.adaptive=false", "algorithm.metric=plain", "local.step_size=0.5"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """300 rows, one in seven ill."""
    rng = np.random.default_rng(0)
    age, dose = rng.integers(20, 90, 300), rng.normal(5, 2, 300).round(2)
    ill = rng.random(300) < 1 / (1 + np.exp(-(0.08 * (age - 75) + 0.3 * (dose - 5) - 1)))
    path = tmp_path_factory.mktemp("rare") / "t.csv"
    lines = [f"{a},{d},{'yes' if y else 'no'}" for a, d, y in zip(age, dose, ill, strict=True)]
    path.write_text("\n".join(["age,dose,ill", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def run(table):
    """One run with balanced classes and a threshold: its folder, its summary, and what the terminal said."""
    out = table.parent / "run"
    settings = [*QUICK, "problem.class_weights=balanced", "metrics.threshold=balanced-accuracy"]
    words = ["run", "--data", str(table), "--label", "ill", "--out", str(out), "--quiet"]
    done = CliRunner().invoke(app, [*words, *(part for setting in settings for part in ("--set", setting))])
    assert done.exit_code == 0, done.output
    return out, json.loads((out / "summary.json").read_text()), done.output


def test_the_summary_has_scikit_learn_s_figures_of_the_saved_model(run, table):
    out, summary, _ = run
    config = load_config("table", [f"data.name={table}", "data.label=ill", *QUICK, "metrics.threshold=balanced-accuracy"])
    federation = build_federation(config, progress=False)
    second = load_model(out).probabilities(federation.test_features)[:, 1]
    truth, found = federation.test_labels, summary["metrics"]
    assert found["auc"]["value"] == pytest.approx(reference.roc_auc_score(truth, second), abs=1e-6)
    assert found["log_loss"]["value"] == pytest.approx(reference.log_loss(truth, second), abs=1e-5)
    called = second >= found["threshold"]
    assert found["balanced_accuracy"]["value"] == pytest.approx(reference.balanced_accuracy_score(truth, called), abs=1e-6)
    assert found["rows"] == len(truth) == 60
    assert len(federation.validation[1]) == 24
    assert federation.sizes.sum() == 300 - 60 - 24


def test_predictions_use_the_threshold(run, table):
    out, summary, _ = run
    model = load_model(out)
    assert model.threshold == summary["metrics"]["threshold"]
    assert load_model(out, averaged=True).threshold == summary["metrics_averaged"]["threshold"]
    text, _ = model.predictions_csv(read_table(table))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert all((row["predicted"] == "yes") == (float(row["probability yes"]) >= model.threshold - 1e-5) for row in rows)


def test_terminal_and_report_show_them(run):
    out, summary, said = run
    assert f"AUC {summary['metrics']['auc']['value']:.4f} (" in said
    assert "Class yes is predicted from a probability of" in said
    page = (out / "report.html").read_text()
    for words in ("Balanced accuracy", "Brier score", "DeLong", "Calibration of yes:", "sign held in rounds"):
        assert words in page


def test_coefficients_come_with_how_often_they_held(run):
    models = read_models(run[0])
    held = models[STEADINESS + "sign_rounds"]
    assert held.shape == (1, models["model"].shape[1])
    assert ((held >= 0) & (held <= 1)).all()
    assert not models[STEADINESS + "noise"].any()  # there was none


def test_noise_explains_what_is_small_or_changes_its_sign():
    model = np.array([[0.0, 0, 0, 0], [5.0, 0.1, -4.0, 0.0]])
    signs = np.array([[[10, 6, 5, 0]], [[0, 4, 5, 0]]])
    clients = np.stack([model, -model])
    found = steadiness(model, clients, signs, 10, 1.0)
    assert found["sign_rounds"].tolist() == [[1, pytest.approx(0.6), 0.5, 1]]
    assert found["selected_rounds"].tolist() == [[1, 1, 1, 0]]
    assert found["sign_clients"].tolist() == [[0.5, 0.5, 0.5, 1]]
    assert found["noise"].tolist() == [[0, 1, 1, 0]]
    assert not steadiness(model, clients, signs, 10, 0.0)["noise"].any()


def test_what_would_be_read_off_private_rows_is_refused():
    private = ["privacy.mechanism=sound", "privacy.epsilon=1.0"]
    for setting, words in (
        ("problem.class_weights=balanced", "counts the classes of private rows"),
        ("metrics.threshold=balanced-accuracy", "is chosen on private rows"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_config("private-table", [*private, setting])


def test_given_class_weights_scale_the_bound_of_a_private_run(table, tmp_path):
    schema = tmp_path / "s.toml"
    schema.write_text(
        'label = "ill"\nclasses = ["no", "yes"]\n[columns.age]\nkind = "number"\nlow = 0\nhigh = 100\n'
        '[columns.dose]\nkind = "number"\nlow = 0\nhigh = 10\n'
    )
    settings = [f"data.name={table}", f"data.schema_file={schema}", "privacy.mechanism=sound", "privacy.epsilon=1.0"]
    settings += ["data.clients=3", "local.step_size=0.3", "rounds.total=2", "privacy.clip=100.0"]

    def plan(*more):
        config = load_config("private-table", [*settings, *more])
        return build_simulation(config, build_federation(config, progress=False)).plan

    plain, light, heavy = plan(), plan("problem.class_weights=[0.2, 1.0]"), plan("problem.class_weights=[1.0, 3.0]")
    assert light.clip == pytest.approx(plain.clip)
    assert heavy.clip == pytest.approx(3 * plain.clip)
    assert heavy.noise_multiplier == plain.noise_multiplier
    with pytest.raises(ConfigError, match="3 weights, but there are 2 classes"):
        plan("problem.class_weights=[1.0, 3.0, 1.0]")
