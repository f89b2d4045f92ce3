"""A package of another author (tests/toy_package): one file and one row per choice, and every part of fedpdm takes them."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpdm.choices import ALGORITHMS, AlgorithmChoice, Choice, LossChoice, Option, PenaltyChoice, register
from fedpdm.cli.completion import complete_setting
from fedpdm.cli.main import app, main
from fedpdm.config import digest, load_config, to_toml
from fedpdm.data.tables import table_from_columns
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.job import job_toml, make_job, parse_job
from fedpdm.errors import ConfigError, UserError
from fedpdm.export.onnx.model import export_onnx
from fedpdm.problem import softmax
from fedpdm.problem.prediction import softmax_shares
from fedpdm.runs.saved import SavedModel, load_model
from fedpdm.setup.build import loss_factory

TESTS = Path(__file__).parents[1]
TOYS = TESTS / "toy_package"
SMALL = ["data.name=digits", "data.clients=6", "data.partition=iid", "rounds.participants=3", "rounds.total=3", "local.steps=2"]
CHOSEN = ["algorithm.name=momentum", "problem.loss=tempered", "problem.penalty=floor", "data.features=squares"]
OPTIONS = ["algorithm.decay=0.4", "problem.temperature=3.0"]


@pytest.fixture
def toys(registered, monkeypatch: pytest.MonkeyPatch) -> list[Choice]:
    monkeypatch.syspath_prepend(TOYS)
    from toys.rows import ROWS

    for row in ROWS:
        registered(row)
    return ROWS


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["fedpdm", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code


def settings(*values: str) -> list[str]:
    return [part for value in values for part in ("--set", value)]


def test_settings_and_completion_know_the_rows_and_check_their_options(toys, tmp_path):
    config = load_config("plain", [*SMALL, *CHOSEN, *OPTIONS])
    text = to_toml(config)
    assert "decay = 0.4 # momentum: share of the last step that is kept" in text
    (tmp_path / "mine.toml").write_text(text)
    assert digest(load_config(str(tmp_path / "mine.toml"))) == digest(config)
    with pytest.raises(ConfigError, match=r"algorithm\.decay=1\.5: expected less than 1"):
        load_config("plain", ["algorithm.decay=1.5"])
    assert ("algorithm.name=momentum", "") in complete_setting("algorithm.name=")
    assert complete_setting("problem.temp")[0][0] == "problem.temperature="


def test_rows_that_are_taken_out_are_unknown_again():
    with pytest.raises(ConfigError, match=r"algorithm\.name='momentum': expected 'fedpdm'"):
        load_config("plain", ["algorithm.name=momentum"])
    with pytest.raises(ConfigError, match=r"Unknown key 'algorithm\.decay'"):
        load_config("plain", ["algorithm.decay=0.4"])


def test_a_policy_allows_and_names_registered_algorithms(toys, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("[budget]\nepsilon = 1.0\ndelta = 1e-5\n")
    assert load_policy(policy).allow.algorithms == tuple(ALGORITHMS)
    policy.write_text('[budget]\nepsilon = 1.0\ndelta = 1e-5\n[allow]\nalgorithms = ["momentum"]\n')
    assert load_policy(policy).allow.algorithms == ("momentum",)


def test_run_report_prediction_and_export(toys, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    command(monkeypatch, "run", "plain", "--quiet", "--out", out, *settings(*SMALL, *CHOSEN, *OPTIONS))
    page = (out / "report.html").read_text(encoding="utf-8")
    for words in ("FedAvgM trained it", "tempered loss", "weights above a floor", "The features and their squares."):
        assert words in page
    figure = json.loads((out / "summary.json").read_text())["metrics"]["kappa"]["value"]
    assert f"Cohen's kappa {figure:.4f}." in capsys.readouterr().out
    assert "agreement beyond chance" in page

    model = load_model(out)
    assert model.weights.min() >= np.float32(-0.01), "the penalty's default"
    assert np.isclose(model.weights.min(), -0.01), "and it is at work"
    pixels = np.random.default_rng(0).integers(0, 17, size=(4, 64)).astype(np.float32)
    features, _ = model.features(table_from_columns({f"p{column}": pixels[:, column] for column in range(64)}))
    np.testing.assert_allclose(model.probabilities(features), softmax_shares.apply(features @ model.weights.T / 3), rtol=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(export_onnx(model), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"pixels": pixels})[1], model.probabilities(features), atol=1e-5)


def test_a_flower_job_under_the_sound_mechanism(toys, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(TESTS / "flower")
    strategy = pytest.importorskip("test_flower_strategy")
    monkeypatch.setattr(strategy.strategy, "POLL_SECONDS", 0.01)
    identity = strategy.TaskIdentity
    identity.run_id, identity.node_id, identity.task_id = 1, 0, 1  # Flower's process sets them
    chosen = ("algorithm.name=momentum", "problem.loss=tempered", "problem.penalty=floor", "rounds.total=2")
    grid = strategy.OneProcess(tmp_path, {11: 0, 12: 1, 13: 2}, *chosen)
    summary = strategy.train(grid, strategy.run_config(grid))
    assert summary["messages_used"] == 6


def test_the_documentation_lists_registered_rows(toys):
    rows = "\n".join(ALGORITHMS.markdown("algorithm"))
    assert "| `momentum` | FedAvgM | FedAvg with momentum at the server. | `algorithm.decay` = 0.5 |" in rows


def test_an_installed_package_is_found_by_its_entry_point_and_compare_runs_it(tmp_path):
    """A process of its own, with nothing but the package on its path."""
    chosen = settings(*SMALL, "data.features=squares", "problem.loss=tempered")
    names = ["--algorithms", "fedavg,momentum", "--seeds", "1", "--out", tmp_path, "--quiet"]
    done = plugged(TOYS, "compare", "plain", *map(str, names), *chosen)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == ["fedavg", "momentum"]
    assert all(-1 <= float(row["kappa"]) <= 1 for row in rows)


def test_the_command_of_another_package_is_one_of_ours(toys):
    assert "hello      Greet somebody." in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["hello", "--name", "Ada"]).output == "Hello Ada.\n"


def test_a_command_that_is_taken_out_is_unknown_again():
    assert CliRunner().invoke(app, ["hello"]).exit_code == 2


def test_a_broken_package_is_named_in_one_line(tmp_path):
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text("[fedpdm.plugins]\nmine = nowhere:ROWS\n")
    done = plugged(tmp_path, "presets")
    assert done.returncode == 2
    assert done.stderr.startswith("fedpdm: The plugin 'mine' of broken cannot be used: No module named 'nowhere'")
    assert len(done.stderr.splitlines()) == 1


def plugged(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "fedpdm.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (AlgorithmChoice("fedavg", "mine", "toys.momentum:momentum"), "another algorithm named 'fedavg'"),
        (AlgorithmChoice("Fed Avg", "mine", "toys.momentum:momentum"), "small letters"),
        (
            AlgorithmChoice("mine", "mine", "nowhere:mine", (Option("rho", 3.0, ""),)),
            "the option 'rho' of 'mine' differently",
        ),
        (PenaltyChoice("mine", "mine", "nowhere:mine", (Option("beta", 3.0, ""),)), "'beta' has the name of another setting"),
        ("mine", "to be one of FeatureMapChoice, .*AlgorithmChoice"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_leave_nothing_behind(row, words):
    with pytest.raises(ConfigError, match=words):
        register(row)
    assert "mine" not in ALGORITHMS
    load_config("plain")


def test_a_row_must_name_what_can_be_imported_and_say_what_its_loss_says(registered):
    registered(AlgorithmChoice("lost", "lost", "nowhere:mine"))
    with pytest.raises(ConfigError, match="'lost' names 'nowhere:mine', which cannot be imported"):
        ALGORITHMS["lost"].build()
    registered(LossChoice("odd", "odd", "fedpdm.problem.losses:softmax", target="number"))
    with pytest.raises(ConfigError, match="says target='number', its Loss 'classes'"):
        loss_factory(load_config("plain", ["problem.loss=odd"]))


def test_options_of_a_package_that_settings_do_not_use_are_not_written(registered):
    """Else a run could not be read without the package, and a client that has it would not know its jobs."""
    before = make_job(load_config("plain", ["data.name=digits"]), 10, ["a", "b"], ["x", "bias"])
    text, known = job_toml(before), load_config("plain").model_dump()
    registered(PenaltyChoice("mine", "mine", "nowhere:mine", (Option("penalty_mine", 3.0, ""),)))
    registered(AlgorithmChoice("mine", "mine", "nowhere:mine", (Option("own_step", 0.5, ""),)))
    assert load_config("plain").model_dump() == known
    assert parse_job(text).digest == before.digest
    used = load_config("plain", ["problem.penalty=mine", "problem.penalty_mine=2.0"]).model_dump()
    assert used["problem"]["penalty_mine"] == 2.0
    assert "own_step" not in used["algorithm"]


def test_the_page_of_all_choices_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(TESTS.parent / "scripts")
    from choices_page import PAGE, with_tables

    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "run `python scripts/choices_page.py`"


def test_a_loss_without_a_link_is_refused_by_name_where_probabilities_are_needed(registered):
    registered(LossChoice("bare", "bare", lambda clip=1.0: softmax(clip)._replace(name="bare", link=None)))
    config = load_config("plain", ["data.name=digits", "problem.loss=bare"])
    model = SavedModel(np.zeros((10, 65), np.float32), tuple("0123456789"), (), config, None)
    with pytest.raises(UserError, match="The loss 'bare' has no link"):
        model.probabilities(np.zeros((1, 65), np.float32))


BROKEN = """
from fedpdm.choices import MetricChoice, LossChoice, ScalingChoice, AlgorithmChoice, CommandChoice

def metric(rows):
    raise ZeroDivisionError("no rows\\nof this kind")

def broken_loss(*arguments, **named):
    return {}["nothing"]

def broken_algorithm(*arguments, **named):
    return {}["nothing"]

def broken_scaling(*arguments, **named):
    return {}["nothing"]

ROWS = [MetricChoice("odd", "odd", "odd.rows:metric"), LossChoice("bent", "bent", "odd.rows:broken_loss")]
ROWS += [AlgorithmChoice("lame", "lame", "odd.rows:broken_algorithm")]
ROWS += [ScalingChoice("crooked", "crooked", "odd.rows:broken_scaling")]
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """An installed package whose metric, loss, algorithm and scaling raise."""
    place = tmp_path_factory.mktemp("odd")
    for folder in ("odd", "odd-1.0.dist-info"):
        (place / folder).mkdir()
    (place / "odd" / "__init__.py").touch()
    (place / "odd" / "rows.py").write_text(BROKEN)
    (place / "odd-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (place / "odd-1.0.dist-info" / "entry_points.txt").write_text("[fedpdm.plugins]\nmine = odd.rows:ROWS\n")
    return place


def test_a_metric_that_raises_is_named_in_one_line_and_the_model_is_kept(odd, tmp_path):
    done = plugged(odd, "run", "plain", "--out", str(tmp_path / "run"), *settings(*SMALL))
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "metric" in line]
    assert said == ["fedpdm: the metric 'odd' is left out, because it failed: ZeroDivisionError: no rows of this kind"]
    assert "Traceback" not in done.stderr
    assert "odd" not in json.loads((tmp_path / "run" / "summary.json").read_bytes())["metrics"]
    assert load_model(tmp_path / "run").weights.shape == (10, 65)
    compared = ["compare", "plain", "--algorithms", "fedavg", "--seeds", "1", "--out", str(tmp_path / "compared"), "--quiet"]
    assert plugged(odd, *compared, *settings(*SMALL)).returncode == 0


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("problem.loss=bent", "The loss 'bent'"),
        ("algorithm.name=lame", "The algorithm 'lame'"),
        ("data.scaling=crooked", "The scaling 'crooked'"),
    ],
)
def test_other_rows_that_raise_are_named_in_one_line(odd, tmp_path, setting, what):
    done = plugged(odd, "run", "plain", "--quiet", "--out", str(tmp_path / "run"), *settings(*SMALL, setting))
    assert done.returncode == 2
    assert done.stderr.startswith(f"fedpdm: {what} failed in odd.rows, line "), done.stderr
    assert "KeyError: 'nothing'. A run keeps its last checkpoint" in done.stderr
    assert len(done.stderr.splitlines()) == 1
