"""A deployment that learns a number: nodes read labels by public bounds; the run is reported, applied and exported."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flower_kit import PERMISSIVE, configure, coordinator, give, one_round

from fedpdm.cli.main import app
from fedpdm.data.schema import read_schema
from fedpdm.engines.flower.client.approve import explain
from fedpdm.engines.flower.client.client import Node
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.client.rows import read_rows
from fedpdm.engines.flower.job import Evaluation, make_job
from fedpdm.engines.simulation.measures import TestSet
from fedpdm.errors import ConfigError
from fedpdm.privacy.rounding import Shape, sensitivity_margin
from fedpdm.runs.finished import read_run

SCHEMA = Path(__file__).parents[2] / "examples" / "stays" / "stays.schema.toml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stays")
    subprocess.run([sys.executable, str(SCHEMA.parent / "make_table.py"), str(made / "all.csv")], check=True, timeout=60)
    header, *rows = (made / "all.csv").read_text().splitlines()
    for name, part in (("0", rows[:300]), ("1", rows[300:600]), ("new", rows[600:700])):
        (made / f"{name}.csv").write_text("\n".join([header, *part]) + "\n")
    (made / "policy.toml").write_text(PERMISSIVE)
    return made


def job(**others):
    schema = read_schema(SCHEMA)
    settings = ["data.clients=2", "rounds.participants=0", "data.scaling=bounded", "rounds.total=4", "problem.loss=squared"]
    config = configure(*settings, "privacy.epsilon=40.0", "problem.gamma=0.0", "local.steps=30", "algorithm.rho=0.02")
    return make_job(config, 320, schema.outputs, schema.feature_names, table=schema.model_dump(), **others)


def command(*arguments: object) -> None:
    app([str(argument) for argument in arguments], standalone_mode=False)


def test_a_deployment_learns_a_number_and_its_model_is_applied(folder: Path) -> None:
    made = job()
    assert "Learns a model of the number days from" in "\n".join(explain(made))
    nodes = [Node(NodeSource(i, folder / f"{i}.csv", SCHEMA, None), folder / f"c{i}", folder / "policy.toml") for i in range(2)]
    for node in nodes:
        give(node, made)
    rows = read_rows(folder / "new.csv", read_schema(SCHEMA))
    scaled = rows.features / np.float32(len(read_schema(SCHEMA).columns) + 1) ** 0.5
    server = coordinator(folder / "run", made, TestSet(scaled, rows.labels))
    while not server.done:
        assert not one_round(server, nodes)[1]
    server.finish()
    run = read_run(folder / "run")
    assert run.model.shape == (1, made.width)
    assert run.curves["test_loss"][1][-1] < run.curves["test_loss"][1][0]
    assert run.summary["metrics"]["mae"]["value"] < 6
    command("predict", folder / "run", folder / "new.csv", "--out", folder / "predicted.csv")
    header, *lines = (folder / "predicted.csv").read_text().splitlines()
    assert header == "predicted"
    assert len(lines) == 100
    command("export", folder / "run", "--out", folder / "weights.csv")
    assert (folder / "weights.csv").read_text().startswith("feature,days\n")
    command("report", folder / "run", "--out", folder / "report.html")
    assert "Mean absolute error" in (folder / "report.html").read_text()


def test_a_label_is_read_by_its_bounds_alone_and_a_bad_one_spoils_its_own_row(tmp_path: Path) -> None:
    lines = [
        "hospital,age,ward,urgent,days",
        "a,50,surgery,yes,15",
        "a,50,surgery,yes,95",
        "a,50,surgery,yes,soon",
        "a,50,surgery,yes,",
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    rows = read_rows(tmp_path / "rows.csv", read_schema(SCHEMA))
    assert rows.labels.tolist() == [0.5, 1.0, 0.0, 0.0]
    assert rows.good.tolist() == [True, True, False, False]


def test_jobs_that_do_not_fit_a_number_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[evaluation\] counts right and wrong classes"):
        job(evaluation=Evaluation(epsilon=1.0).model_dump())
    schema = read_schema(SCHEMA)
    with pytest.raises(ConfigError, match="softmax does not go with a label that is a number"):
        make_job(configure(), 320, schema.outputs, schema.feature_names, table=schema.model_dump())
    with pytest.raises(ConfigError, match="poisson does not go with a label that is one of several classes"):
        make_job(configure("problem.loss=poisson"), 320, ["a", "b"], ["x"])
    with pytest.raises(ConfigError, match="one class stands for a number"):
        make_job(configure(), 320, ["days"], schema.feature_names)


def test_rounding_grows_with_the_curvature_of_the_loss() -> None:
    shape = Shape(1000, 6, 1, 1.0, 0.02, 0.0, 1.0, 30, 1.0, 1.0)
    steep = sensitivity_margin(shape._replace(curvature=50.0))
    assert sensitivity_margin(shape._replace(curvature=0.5)) == sensitivity_margin(shape) < steep < 1e-6
