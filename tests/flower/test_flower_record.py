"""The record of a deployed run: its model can be named, applied, exported and reported, and its spending shown."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flower_kit import PERMISSIVE, configure, coordinator, give, job_of, make_nodes, one_round

from fedpdm.cli.main import app
from fedpdm.data.schema import read_schema
from fedpdm.data.tables import read_table
from fedpdm.engines.flower.client.client import Node
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.job import make_job
from fedpdm.engines.simulation.measures import TestSet
from fedpdm.errors import UserError
from fedpdm.runs.finished import read_run
from fedpdm.runs.saved import load_model
from fedpdm.runs.spent import read_accounts

SCHEMA = Path(__file__).parents[2] / "examples" / "hospital" / "hospital.schema.toml"


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hospitals with a table each, a server that has the schema and some test rows; one round of real answers."""
    folder = tmp_path_factory.mktemp("deployed")
    subprocess.run([sys.executable, str(SCHEMA.parent / "make_table.py"), str(folder / "all.csv")], check=True, timeout=900)
    header, *rows = (folder / "all.csv").read_text().splitlines()
    for name, part in (("0", rows[:40]), ("1", rows[40:80]), ("new", rows[80:100])):
        (folder / f"{name}.csv").write_text("\n".join([header, *part]) + "\n")
    (folder / "policy.toml").write_text(PERMISSIVE)
    nodes = [
        Node(NodeSource(i, folder / f"{i}.csv", SCHEMA, None), folder / f"client-{i}", folder / "policy.toml") for i in range(2)
    ]
    schema = read_schema(SCHEMA)
    config = configure("data.name=own", "data.clients=2", "rounds.participants=0", "data.scaling=bounded", "rounds.total=2")
    job = make_job(config, 50, schema.classes, schema.feature_names, table=schema.model_dump())
    for node in nodes:
        give(node, job)
    test = TestSet(np.eye(job.width, dtype=np.float32)[:4], np.array([0, 1, 1, 1], np.int32))
    server = coordinator(folder / "run", job, test)
    while not server.done:
        assert not one_round(server, nodes)[1]
    server.finish()
    return folder


def command(*arguments: object) -> None:
    app([str(argument) for argument in arguments], standalone_mode=False)


def test_new_rows_are_predicted_by_the_deployed_model(deployed: Path) -> None:
    command("predict", deployed / "run", deployed / "new.csv", "--out", deployed / "predicted.csv")
    lines = (deployed / "predicted.csv").read_text().splitlines()
    classes = read_schema(SCHEMA).classes
    assert len(lines) == 21
    assert lines[0] == ",".join(["predicted", *(f"probability {name}" for name in classes)])
    model = load_model(deployed / "run")
    features, _ = model.features(read_table(deployed / "new.csv"))
    expected = [classes[place] for place in (features @ read_run(deployed / "run").model.T).argmax(axis=1)]
    assert [line.split(",")[0] for line in lines[1:]] == expected


def test_the_deployed_model_is_exported_with_its_names(deployed: Path) -> None:
    run = deployed / "run"
    command("export", run, "--out", deployed / "weights.csv")
    lines = (deployed / "weights.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["feature", *read_schema(SCHEMA).feature_names]
    command("export", run, "--format", "onnx", "--out", deployed / "model.onnx")
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(deployed / "model.onnx"))
    table = read_table(deployed / "new.csv")
    model = load_model(run)
    shares = model.probabilities(model.features(table)[0])
    feeds = {}
    for wanted in session.get_inputs():
        column = table.column(wanted.name).to_list()
        words = wanted.type == "tensor(string)"
        values = ["" if v is None else str(v) for v in column] if words else [np.nan if v is None else v for v in column]
        feeds[wanted.name] = np.array(values, object if words else np.float32)[:, None]
    np.testing.assert_allclose(session.run(["probabilities"], feeds)[0], shares, atol=1e-5)


def test_the_report_names_columns_and_shows_accuracy(deployed: Path) -> None:
    command("report", deployed / "run", "--out", deployed / "report.html")
    page = (deployed / "report.html").read_text()
    summary = read_run(deployed / "run").summary
    assert f"{summary['test_accuracy']:.4f}" in page
    assert "x1" not in [word.strip("<>") for word in page.split()]
    assert any(name in page for name in read_schema(SCHEMA).feature_names)
    assert "Differential privacy, proven" in page


def test_what_was_spent_is_told_by_how_often_clients_were_asked(deployed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = read_run(deployed / "run")
    source, accounts = read_accounts(deployed / "run")
    assert source == "asked"
    assert [account["releases"] for account in accounts] == [2, 2]
    assert accounts[0]["epsilon_spent"] == pytest.approx(run.summary["epsilon"], rel=1e-9)
    command("privacy", "spent", deployed / "run")
    assert "client-1" in capsys.readouterr().out
    command("privacy", "spent", deployed / "run", "--json")
    assert json.loads(capsys.readouterr().out)["worst"]["epsilon"] == pytest.approx(run.config.privacy.epsilon, rel=1e-4)


def test_the_record_has_what_a_simulated_run_has(deployed: Path) -> None:
    run = read_run(deployed / "run")
    assert run.curves["test_accuracy"][0].tolist() == [1, 2]
    assert run.summary["uplink_bytes"] == run.rows[-1]["uplink_bytes"] > 0
    assert run.summary["uplink_bits_paper"] == 32 * run.model.size * 2 * 2
    assert run.guarantee.startswith("Differential privacy")
    np.testing.assert_array_equal(run.averaged_model, run.model)  # the tail is the last of two rounds


def test_a_model_of_arrays_is_kept_with_the_jobs_names_but_takes_no_table(tmp_path: Path) -> None:
    """Arrays at the nodes: the job names their columns, but nothing says how a table becomes such arrays."""
    job = job_of("rounds.total=1")
    server = coordinator(tmp_path / "run", job)
    one_round(server, make_nodes(tmp_path, job=job))
    server.finish()
    model = load_model(tmp_path / "run")
    assert model.coefficients_csv().splitlines()[0] == "feature,class 0,class 1,class 2"
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="public schema"):
        model.predictions_csv(read_table(tmp_path / "rows.csv"))
    command("report", tmp_path / "run")
