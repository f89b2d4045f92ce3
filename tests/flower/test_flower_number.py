"""A deployment that learns a number: nodes read labels by public bounds; the run is reported, applied and exported."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flower_kit import PERMISSIVE, configure, coordinator, give, one_round, refused, spends

from fedpdm.cli.main import app
from fedpdm.compression.wire import decode, encode
from fedpdm.data.schema import read_schema
from fedpdm.engines.flower.client.approve import explain
from fedpdm.engines.flower.client.client import Node, answer
from fedpdm.engines.flower.client.node_data import NodeSource, load_examples, read_file_rows
from fedpdm.engines.flower.client.rows import read_rows
from fedpdm.engines.flower.job import Evaluation, make_job
from fedpdm.engines.flower.protocol import Reply
from fedpdm.engines.flower.server.curvature import Curvatures
from fedpdm.engines.simulation.measures import TestSet
from fedpdm.errors import ConfigError
from fedpdm.privacy.curvature_release import curvature_size
from fedpdm.privacy.rounding import Shape, sensitivity_margin
from fedpdm.problem import huber
from fedpdm.problem.inference import exact_intervals
from fedpdm.runs.finished import read_run
from fedpdm.runs.saved import load_model

SCHEMA = Path(__file__).parents[2] / "examples" / "stays" / "stays.schema.toml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stays")
    subprocess.run([sys.executable, str(SCHEMA.parent / "make_table.py"), str(made / "all.csv")], check=True, timeout=900)
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
    page = (folder / "report.html").read_text()
    assert "Mean absolute error" in page
    assert "On rows that no client holds" in page, "the server has test rows of its own"
    assert "fedpdm flower init" in page, "a job is made again, not run again"


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


def test_clients_evaluate_a_number_on_rows_that_they_hold_out(folder: Path, tmp_path: Path) -> None:
    """Noised sums, on the ledger like any release; the figures are near those of the held-out rows themselves."""
    made = job(evaluation=Evaluation(share=0.4, epsilon=30.0, largest_error=0.5).model_dump())
    assert "40% of the rows, which are not trained on; sums with noise" in "\n".join(explain(made))
    for i in range(2):
        shutil.copy(folder / f"{i}.csv", tmp_path)  # a file belongs to one state folder
    nodes = [
        Node(NodeSource(i, tmp_path / f"{i}.csv", SCHEMA, None), tmp_path / f"c{i}", tmp_path / "wide.toml") for i in range(2)
    ]
    (tmp_path / "wide.toml").write_text(PERMISSIVE.replace("50.0", "100.0"))
    for node in nodes:
        give(node, made)
    server = coordinator(tmp_path / "measured", made)
    while not server.done:
        assert not one_round(server, nodes)[1]
    assert server.evaluation_due()
    assert refused(answer(nodes[0], server.evaluation_requests([0], "intervals")[0])) == "intervals", "the job has none"
    asked = server.evaluation_requests(range(2))
    row, dropped = server.evaluations.take(asked, [(i, answer(nodes[i], request)) for i, request in asked.items()])
    assert not dropped
    parts = [load_examples(node.source, made, node.state_dir) for node in nodes]
    held = [(part.features[part.held_out], part.labels[part.held_out]) for part in parts]
    features, labels = (np.concatenate(side) for side in zip(*held, strict=True))
    exact = 30 * np.abs(np.clip(features @ server.model[0], 0, 1) - labels).mean()
    assert row["mae"]["interval"][0] < exact < row["mae"]["interval"][1]
    assert row["mae"]["value"] == pytest.approx(exact, rel=0.25)
    entry = spends(nodes[0])[-1]
    assert entry.job.endswith(":evaluation")
    assert entry.sigma / entry.sensitivity == pytest.approx(made.evaluation.cost_multiplier(made.config), rel=1e-3)
    server.finish()
    assert read_run(tmp_path / "measured").summary["metrics"]["mae"] == row["mae"]
    command("report", tmp_path / "measured", "--out", tmp_path / "measured.html")
    page = (tmp_path / "measured.html").read_text()
    assert "Mean absolute error" in page
    assert "On rows that clients held out, by noised sums" in page
    summary = json.loads((tmp_path / "measured" / "summary.json").read_text())
    summary["metrics_averaged"] = summary.pop("metrics")  # as in a job that releases the averaged model
    (tmp_path / "measured" / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "measured" / "SHA256SUMS").unlink(missing_ok=True)
    command("report", tmp_path / "measured", "--out", tmp_path / "measured.html")
    assert "Mean absolute error" in (tmp_path / "measured.html").read_text()


def test_clients_release_what_intervals_need_once_and_the_run_keeps_them(folder: Path, tmp_path: Path) -> None:
    """The estimates are those of the rows as they are cut, up to the noise; another request, or an earlier one, is refused."""
    schema = read_schema(SCHEMA)
    header, *lines = (folder / "all.csv").read_text().splitlines()
    loose = PERMISSIVE.replace("50.0", "5000.0").replace("min = 0.1", "min = 0.001")
    (tmp_path / "policy.toml").write_text(loose + "interval_noise_multiplier_min = 0.001\n")
    settings = ["data.clients=3", "rounds.participants=0", "data.scaling=bounded", "rounds.total=2", "problem.loss=squared"]
    settings += [
        "privacy.epsilon=2000.0",
        "problem.gamma=0.0",
        "local.steps=30",
        "algorithm.rho=0.02",
        "metrics.intervals=true",
    ]
    made = make_job(configure(*settings), 320, schema.outputs, schema.feature_names, table=schema.model_dump())
    assert "Intervals: one message after training" in "\n".join(explain(made))
    nodes = []
    for i in range(3):
        (tmp_path / f"{i}.csv").write_text("\n".join([header, *lines[300 * i : 300 * i + 300]]) + "\n")
        nodes.append(Node(NodeSource(i, tmp_path / f"{i}.csv", SCHEMA, None), tmp_path / f"c{i}", tmp_path / "policy.toml"))
        give(nodes[-1], made)
    server = coordinator(tmp_path / "run", made)
    one_round(server, nodes)
    assert not server.curvatures.due(server.round)
    early = server.evaluation_requests([0], "intervals")[0]
    assert refused(answer(nodes[0], early)) == "intervals"
    one_round(server, nodes)
    assert server.curvatures.due(server.round)
    asked = server.evaluation_requests(range(3), "intervals")
    replies = [(i, answer(nodes[i], request)) for i, request in asked.items()]
    assert server.curvatures.take(asked, replies) == (3, [])
    (tmp_path / "hostile").mkdir()
    (part,) = decode(replies[0][1].vectors, dimensions=[curvature_size(made.width)], limit=1e9)
    for factor, word in ((30.0, "far"), (1e-9, "noise")):  # more than any rows allow; and without its noise
        vectors = encode([part._replace(values=part.values * np.float32(factor))])
        forged = [(0, Reply.of(asked[0], vectors)), *replies[1:]]
        count, (line,) = Curvatures(made, tmp_path / "hostile").take(asked, forged)
        assert (count, line.split(": ")[:2]) == (2, ["client 0", word])
    other = answer(nodes[0], asked[0]._replace(vectors=early.vectors))
    assert refused(other) == "repeat"
    entry = spends(nodes[0])[-1]
    assert entry.job.endswith(":intervals")
    plan = made.setup[1]
    assert plan is not None
    assert entry.sigma / entry.sensitivity == pytest.approx(plan.interval_multiplier, rel=1e-3)
    summary = server.finish()
    assert summary["epsilon"] <= 2000 * (1 + 1e-6)
    parts = [load_examples(node.source, made, node.state_dir) for node in nodes]
    features, labels = (np.concatenate([getattr(part, name)[part.filled] for part in parts]) for name in ("features", "labels"))
    loss = made.setup[0].problem.loss
    exact = exact_intervals(
        huber(loss.gradient_bound(1.0)), server.model, features, labels, np.full(len(labels), 1 / len(labels))
    )
    kept = load_model(tmp_path / "run").intervals
    assert kept is not None
    given = ~np.isnan(kept.errors)
    assert given.sum() >= 3
    np.testing.assert_array_less(np.abs(kept.estimate - exact.estimate)[given], 4 * kept.errors[given])
    command("export", tmp_path / "run", "--intervals", "0.95", "--out", tmp_path / "intervals.csv")
    assert (tmp_path / "intervals.csv").read_text().startswith("feature,estimate,low,high,p")
    with pytest.raises(ConfigError, match="at least 3 clients"):
        make_job(configure(*settings, "data.clients=2"), 320, schema.outputs, schema.feature_names, table=schema.model_dump())


TIMES = """
label = "days"
target = { low = 0, high = 300, event = "died", bands = 3 }
[columns.age]
kind = "number"
low = 0
high = 1
"""


def test_a_deployment_learns_a_time_to_an_event(tmp_path: Path) -> None:
    """The messages without noise are those of the rows of bands; the model is evaluated, applied and exported."""
    rng = np.random.default_rng(0)
    (tmp_path / "times.toml").write_text(TIMES)
    (tmp_path / "policy.toml").write_text(PERMISSIVE.replace("50.0", "200.0"))
    for client in range(2):
        age = rng.random(120)
        event, end = rng.exponential(200 * np.exp(-1.5 * age)), rng.uniform(50, 500, 120)
        lines = [f"{a:.3f},{min(t, e):.1f},{int(t <= e)}" for a, t, e in zip(age, event, end, strict=True)]
        lines[5] = "0.5,20,maybe"  # neither yes nor no: a row that does not count
        (tmp_path / f"{client}.csv").write_text("\n".join(["age,days,died", *lines]) + "\n")
    schema = read_schema(tmp_path / "times.toml")
    config = configure(
        *["data.clients=2", "rounds.participants=0", "data.scaling=bounded", "rounds.total=3", "privacy.epsilon=80.0"],
        *[
            "problem.loss=piecewise-exponential",
            "problem.gamma=0.0",
            "local.steps=20",
            "algorithm.rho=0.02",
            "privacy.clip=0.5",
        ],
    )
    what = {"table": schema.model_dump(), "evaluation": Evaluation(share=0.3, epsilon=40.0, bins=5).model_dump()}
    with pytest.raises(ConfigError, match="unit_rows=1 must be the 3 bands"):
        make_job(config, 120, schema.outputs, schema.feature_names, **what)
    made = make_job(config, 120, schema.outputs, schema.feature_names, unit_rows=3, **what)
    assert "a subject has a row in each of 3 time bands" in "\n".join(explain(made))
    nodes = [
        Node(NodeSource(i, tmp_path / f"{i}.csv", tmp_path / "times.toml", None), tmp_path / f"c{i}", tmp_path / "policy.toml")
        for i in range(2)
    ]
    for node in nodes:
        give(node, made)
    own = load_examples(nodes[0].source, made, nodes[0].state_dir)
    slots = own.weights.reshape(-1, 3)
    assert (slots.sum(axis=1) <= 1).all(), "a subject is one unit"
    assert (own.filled.reshape(-1, 3).any(axis=1)).sum() == 119, "the row without a known event does not count"
    assert (own.held_out.reshape(-1, 3) <= own.held_out.reshape(-1, 3)[:, :1]).all(), "a subject is held out as a whole"
    server = coordinator(tmp_path / "run", made)
    while not server.done:
        assert not one_round(server, nodes)[1]
    asked = server.evaluation_requests(range(2))
    row, dropped = server.evaluations.take(asked, [(i, answer(nodes[i], request)) for i, request in asked.items()])
    assert not dropped
    assert row["rows"] == pytest.approx(2 * 0.3 * 119, abs=30)
    assert 0 <= row["concordance"]["value"] <= 1
    server.finish()
    names = dict(zip(schema.feature_names, read_run(tmp_path / "run").model[0], strict=True))
    assert names["age"] > 0, "the hazard rises with age"
    command("predict", tmp_path / "run", tmp_path / "1.csv", "--out", tmp_path / "predicted.csv")
    assert 0 < float((tmp_path / "predicted.csv").read_text().splitlines()[1]) <= 300


def test_a_subject_that_leaves_changes_neither_who_is_held_out_nor_how_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "times.toml").write_text(TIMES)
    lines = [f"{0.01 * k:.2f},{10 + 7 * k},{k % 2}" for k in range(40)]
    schema = read_schema(tmp_path / "times.toml")
    config = configure("problem.loss=piecewise-exponential", "privacy.clip=0.5", "data.clients=3")
    evaluation = Evaluation(share=0.5, epsilon=1.0).model_dump()
    made = make_job(
        config, 50, schema.outputs, schema.feature_names, unit_rows=3, table=schema.model_dump(), evaluation=evaluation
    )
    held = []
    for name, kept in (("all", lines), ("fewer", lines[1:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,days,died", *kept]) + "\n")
        own = read_file_rows(NodeSource(0, tmp_path / f"{name}.csv", None, None), made)
        held.append([own.held_out.reshape(-1, 3)[:, 0], own.labels.reshape(-1, 3), own.features.reshape(-1, 3, made.width)])
    assert 5 < held[0][0].sum() < 35
    for whole, fewer in zip(*held, strict=True):
        np.testing.assert_array_equal(whole[1:40], fewer[:39])


def test_jobs_that_do_not_fit_a_number_are_refused() -> None:
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
