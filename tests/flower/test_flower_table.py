"""A private table, deployed as it is simulated: means and deviations first, shares by public slots, persons as the unit."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_kit import PERMISSIVE, coordinator, give, one_round, refused, spends

from fedpdm.cli.main import app
from fedpdm.compression.wire import decode, encode, make_part
from fedpdm.config import load_config
from fedpdm.data.schema import Category, Number, Schema, to_toml
from fedpdm.engines.flower.client.approve import check_fit, explain
from fedpdm.engines.flower.client.client import Node, answer
from fedpdm.engines.flower.client.node_data import NodeSource, load_examples
from fedpdm.engines.flower.client.standard import release_means
from fedpdm.engines.flower.client.work import Work
from fedpdm.engines.flower.cost import job_epsilon
from fedpdm.engines.flower.init import job_from
from fedpdm.engines.flower.job import Evaluation, Job
from fedpdm.engines.flower.protocol import Reply, Request
from fedpdm.engines.flower.server.coordinator import Coordinator
from fedpdm.errors import ConfigError, UserError
from fedpdm.privacy.accounting import compose_gdp, gdp_epsilon
from fedpdm.privacy.mechanism import secure
from fedpdm.privacy.standard_release import moment_count, moments_sensitivity
from fedpdm.runs.folder import read_models
from fedpdm.runs.saved import load_model
from fedpdm.runs.spent import read_accounts
from fedpdm.runs.train import train

SITES = ("north", "south", "west")
PERSONS = (60, 25, 9)
COLUMNS = {"age": Number(low=0, high=120), "dose": Number(low=0, high=10), "sex": Category(levels=["f", "m"])}


def write_rows(path: Path, rows: list[tuple[Any, ...]]) -> Path:
    path.write_text("\n".join(["age,dose,sex,patient,site,ill", *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def patients(seed: int = 0) -> list[list[tuple[Any, ...]]]:
    """The rows of every site: patients with one to three of them."""
    rng, sites = np.random.default_rng(seed), []
    for site, persons in zip(SITES, PERSONS, strict=True):
        rows = []
        for person in range(persons):
            age, sex = rng.uniform(20, 90), rng.choice(["f", "m"])
            for _ in range(int(rng.integers(1, 4))):
                ill = "yes" if age / 25 + (sex == "m") + rng.normal() > 2.8 else "no"
                rows.append((round(age, 1), round(rng.uniform(0, 10), 2), sex, f"{site}-{person}", site, ill))
        sites.append(rows)
    return sites


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everybody's rows, those of every site, rows to test on, and the schema."""
    folder, sites = tmp_path_factory.mktemp("table"), patients()
    write_rows(folder / "all.csv", [row for rows in sites for row in rows])
    write_rows(folder / "new.csv", patients(1)[0][:20])
    for client, rows in enumerate(sites):
        write_rows(folder / f"{client}.csv", rows)
    schema = Schema(label="ill", classes=["no", "yes"], client="site", unit_column="patient", columns=COLUMNS)
    (folder / "s.toml").write_text(to_toml(schema))
    (folder / "policy.toml").write_text(PERMISSIVE)
    return folder


def settings(table: Path, *more: str) -> list[str]:
    files = {"data.name": "all.csv", "data.schema_file": "s.toml", "data.test_file": "new.csv"}
    named = [f"{key}={json.dumps(str(table / name))}" for key, name in files.items()]
    return [*named, "data.partition=column", "privacy.epsilon=3.0", "rounds.total=3", *more]


@pytest.fixture(scope="module")
def simulated(table: Path) -> Path:
    """A run of the preset, as `fedpdm run --epsilon 3` makes it."""
    train(load_config("private-table", settings(table)), table / "simulated")
    return table / "simulated"


def make_job(run: Path, noise: str = "secure", slots: tuple[int, ...] = PERSONS, **others: Any) -> Job:
    return job_from(str(run), [], slots=slots, unit_rows=3, noise=noise, **others)


def nodes_of(folder: Path, table: Path, job: Job) -> list[Node]:
    """Nodes with files of their own: two state folders for one file would be refused."""
    nodes = []
    for client in range(len(SITES)):
        path = Path(shutil.copy(table / f"{client}.csv", folder / f"{client}.csv"))
        nodes.append(Node(NodeSource(client, path, None, None), folder / f"client-{client}", table / "policy.toml"))
        give(nodes[-1], job)
    return nodes


def deploy(server: Coordinator, nodes: list[Node]) -> dict[str, Any]:
    """What the strategy does: means first, then rounds and evaluations."""
    asked = server.standards.requests(range(len(nodes)))
    assert server.standards.due
    assert server.standards.take(asked, [(i, answer(nodes[i], request)) for i, request in asked.items()])[1] == []
    while not server.done:
        assert not one_round(server, nodes)[1]
        if server.evaluation_due():
            asked = server.evaluation_requests(range(len(nodes)))
            assert server.evaluations.take(asked, [(i, answer(nodes[i], request)) for i, request in asked.items()])[1] == []
    return server.finish()


def test_the_deployed_model_of_a_private_table_is_the_simulators(table: Path, simulated: Path, tmp_path: Path) -> None:
    """Means, shares, weights of persons, cuts and folds agree: with one seed's noise the models are the same."""
    job = make_job(simulated, "simulation")
    assert job.config.rounds.total == 3
    deploy(coordinator(tmp_path / "run", job), nodes_of(tmp_path, table, job))
    for name, model in read_models(tmp_path / "run").items():
        if not name.startswith("steadiness"):
            np.testing.assert_allclose(model, read_models(simulated)[name], atol=2e-4, err_msg=name)


def test_means_that_no_honest_client_has_are_refused(table: Path, simulated: Path, tmp_path: Path) -> None:
    job = make_job(simulated)
    server, nodes = coordinator(tmp_path / "run", job), nodes_of(tmp_path, table, job)
    asked = server.standards.requests(range(len(nodes)))
    said = {i: answer(nodes[i], request) for i, request in asked.items()}
    (part,) = decode(said[0].vectors, dimensions=[moment_count(job.features)], limit=1e6)
    for client, factor in ((0, 1e4), (1, 1e-6)):
        said[client] = Reply.of(asked[client], encode([part._replace(values=factor * part.values)]))
    used, dropped = server.standards.take(asked, said.items())
    assert used == len(nodes) - 2
    assert dropped[0].startswith("client 0: far: Its norm is")
    assert dropped[1].startswith("client 1: noise: Its norm is")


@pytest.fixture(scope="module")
def deployed(
    table: Path, simulated: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Job, list[Node], dict[str, Any]]:
    """The same table with secure noise and an evaluation at the end: the server's folder, job, nodes and summary."""
    folder = tmp_path_factory.mktemp("deployed")
    job = make_job(simulated, evaluation=Evaluation(share=0.3, epsilon=20.0))
    nodes = nodes_of(folder, table, job)
    server = coordinator(folder / "run", job)
    return folder, job, nodes, deploy(server, nodes)


def test_means_are_on_the_ledger_first_and_all_of_it_is_what_was_agreed(deployed: Any) -> None:
    _, job, nodes, summary = deployed
    rows = spends(nodes[1])
    assert [row.job.removeprefix(job.digest) for row in rows] == [":standard", "", "", "", ":evaluation"]
    assert rows[0].mechanism_note == "means and deviations, secure noise"
    assert rows[0].sensitivity == pytest.approx(moments_sensitivity(job.features) / PERSONS[1], rel=1e-6)
    spent = gdp_epsilon(compose_gdp(row.sigma / row.sensitivity for row in rows), 1e-5)
    assert spent == pytest.approx(job_epsilon(job), rel=1e-6)
    assert summary["epsilon"] == pytest.approx(spent, rel=1e-6)
    training = gdp_epsilon(compose_gdp(row.sigma / row.sensitivity for row in rows[:-1]), 1e-5)
    assert training == pytest.approx(3.0, rel=1e-6)
    assert "for all rows of one patient at one client" in summary["guarantee"]
    words = "\n".join(explain(job, 1))
    assert "Means and deviations: one message before training" in words
    assert "at most 25 (slots)" in words
    assert "all rows of one patient" in words


def test_the_deployed_model_takes_rows_and_tells_its_figures(
    deployed: Any, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, job, _, summary = deployed
    run = folder / "run"
    app(["predict", str(run), str(table / "new.csv"), "--out", str(folder / "p.csv")], standalone_mode=False)
    assert len((folder / "p.csv").read_text().splitlines()) == 21
    app(["export", str(run), "--out", str(folder / "w.csv")], standalone_mode=False)
    assert [line.split(",")[0] for line in (folder / "w.csv").read_text().splitlines()[1:]] == list(job.features)
    app(["report", str(run), "--out", str(folder / "r.html")], standalone_mode=False)
    assert "Balanced accuracy" in (folder / "r.html").read_text()
    app(["privacy", "spent", str(run)], standalone_mode=False)
    said = capsys.readouterr().out
    assert "client-2" in said
    assert f"of {job_epsilon(job):g} " in said, "the whole job: training and evaluations"
    assert "of all rows of one patient" in said
    assert read_accounts(run)[1][0]["epsilon_spent"] == pytest.approx(summary["epsilon"], rel=1e-9)
    released = summary["metrics_averaged"]  # the model of the preset is the averaged one, and it is what clients evaluate
    assert released["rows"] == pytest.approx(0.3 * sum(PERSONS), abs=15), "persons count, not rows"
    low, high = released["accuracy"]["interval"]
    assert low < released["accuracy"]["value"] < high
    assert load_model(run).weights.shape == (2, len(job.features))


def test_a_server_that_comes_back_asks_for_the_same_means_and_gets_the_same_bytes(deployed: Any) -> None:
    folder, job, nodes, _ = deployed
    first = json.loads((folder / "run" / "standard.json").read_text())
    server, before = coordinator(folder / "again", job), len(spends(nodes[0]))
    asked = server.standards.requests(range(3))
    server.standards.take(asked, [(i, answer(nodes[i], request)) for i, request in asked.items()])
    assert json.loads((folder / "again" / "standard.json").read_text()) == first
    assert len(spends(nodes[0])) == before


HOSTILE = {
    "a second release of means": ("standardise", 1, b"", "standard"),
    "no means": ("train", 0, b"", "standard"),
    "means that are no message": ("train", 0, b"garbage", "standard"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_server_gets_a_refusal_and_nothing_is_spent(case: str, simulated: Path, table: Path, tmp_path: Path) -> None:
    job = make_job(simulated)
    node = nodes_of(tmp_path, table, job)[0]
    task, round_index, means, code = HOSTILE[case]
    vectors = coordinator(tmp_path / "run", job).requests([0])[0].vectors
    assert refused(answer(node, Request(task, job.digest, round_index, 0, "", vectors, means))) == code
    assert spends(node) == []


def examples_of(job: Job, folder: Path, rows: list[tuple[Any, ...]]) -> Any:
    folder.mkdir(parents=True)
    return load_examples(NodeSource(1, write_rows(folder / "rows.csv", rows), None, None), job, folder)


def moved(job: Job, folder: Path, person: list[tuple[Any, ...]]) -> float:
    """How far all rows of one person move the means, over what the ledger says; noise is that of the simulation, the same."""
    others, paid = patients()[1][:30], []
    sums = []
    for place, rows in enumerate((others, others + person)):
        own = examples_of(job, folder / str(place), rows)
        (part,) = decode(
            release_means(job, 1, own, lambda s, _: paid.append(s)), dimensions=[moment_count(job.features)], limit=1e6
        )
        sums.append(part.values)
    return float(np.linalg.norm(sums[1] - sums[0])) / paid[0]


def test_all_rows_of_a_person_move_a_nodes_means_by_no_more_than_the_bound(simulated: Path, tmp_path: Path) -> None:
    """At a node, with its slots; a job that counts rows one by one is the control that breaks it."""
    person = [(120, 10, "m", "new", "south", "yes")] * 3
    job = make_job(simulated, "simulation")
    assert 0.9 < moved(job, tmp_path / "persons", person) <= 1 + 1e-4
    assert job.table is not None
    plain = {"table": job.table.model_copy(update={"unit_column": None}), "unit_rows": 1, "slots": 60, "client_slots": []}
    control = job.model_copy(update=plain)
    assert moved(control, tmp_path / "rows", person) > 2.5


def test_all_rows_of_a_person_move_a_nodes_solution_by_no_more_than_the_bound_whatever_the_means_are(
    simulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may send any means; the row is mapped and cut behind them. Rows that count fully are the control."""
    solutions: list[np.ndarray] = []

    def spy(bound: Any, z: float, margin: float, spend: Any, gaussian: Any) -> Any:
        privacy = secure(bound, z, margin, spend, gaussian)
        return privacy._replace(
            release_solution=lambda x, public: (solutions.append(np.array(x)), privacy.release_solution(x, public))[1]
        )

    monkeypatch.setattr("fedpdm.engines.flower.client.work.secure", spy)
    job, rng = make_job(simulated), np.random.default_rng(5)
    person = [(120, 10, "m", "new", "south", "yes")] * 3
    few = patients()[1][:12]
    pair = [examples_of(job, tmp_path / str(place), rows) for place, rows in enumerate((few, few + person))]
    fully = pair[1]._replace(weights=np.where(pair[1].filled, np.float32(1), np.float32(0)))
    worst, control = 0.0, 0.0
    for size in (0.1, 0.3, 1.0, 30.0, 1e5):
        means = rng.normal(size=moment_count(job.features) + 1) * size
        standard = encode([make_part(means.astype(np.float32), np.ones(means.size, bool))])
        vectors = coordinator(tmp_path / "run", job).requests([1])[1].vectors
        work, paid = Work(job, Request("train", job.digest, 0, 1, "", vectors, standard)), []
        for own in (*pair, fully):
            work.make(own, work.first_state(), lambda s, _, paid=paid: paid.append(s))
        without, with_them, counted = solutions[-3:]
        worst = max(worst, float(np.linalg.norm(with_them - without)) / paid[0])
        control = max(control, float(np.linalg.norm(counted - without)) / paid[0])
    assert 0.2 < worst <= 1
    assert control > 1


def test_a_person_keeps_a_slot_and_further_rows_are_left_out(
    simulated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(50, 1, "f", unit, "south", "no") for unit in ("a", "b", "a", "", "a", "a", "")]
    rows[1] = (50, "much", "f", "b", "south", "no")  # malformed: empty, and nobody else's matter
    job = make_job(simulated, "simulation")  # whose slots are in order
    own = examples_of(job, tmp_path / "rows", rows)
    assert own.features.shape[0] == 3 * PERSONS[1]
    np.testing.assert_allclose(own.weights[:15], [1 / 3] * 3 + [0] * 3 + [1, 0, 0] + [1, 0, 0] + [0] * 3, rtol=1e-6)
    assert "1 rows beyond 3 of one patient do not count" in capsys.readouterr().err
    many = [(50, 1, "f", f"p{k}", "south", "no") for k in range(PERSONS[1] + 1)]
    assert examples_of(job, tmp_path / "many", many).beyond == 1
    with pytest.raises(UserError, match="1 patients are beyond its 25 slots"):
        check_fit(NodeSource(1, tmp_path / "many" / "rows.csv", None, None), job, tmp_path / "many")


def test_what_a_job_of_a_table_lacks_is_said(simulated: Path, table: Path) -> None:
    with pytest.raises(ConfigError, match="--slots 500,80,1200"):
        job_from(str(simulated), [], slots=None)
    with pytest.raises(ConfigError, match="--unit-rows"):
        job_from(str(simulated), [], slots=[60])
    with pytest.raises(ConfigError, match=r"does not fit: client_slots \(--slots\) has 2 numbers, but .*--set data.clients=2"):
        job_from(str(simulated), [], slots=[60, 20], unit_rows=3)
    two = job_from(str(simulated), ["data.clients=2", "rounds.participants=2"], slots=[60, 20], unit_rows=3)
    assert (two.config.data.clients, two.client_slots) == (2, [60, 20])
    by_preset = job_from("private-table", ["data.clients=3"], slots=[60], unit_rows=3, schema=table / "s.toml")
    assert by_preset.config.rounds.total == 25, "the rule knows slots"


BASIS = ["data.standardise=false", "data.scaling=bounded", "data.basis=private", "data.basis_size=3", "problem.sparsity=4"]


@pytest.fixture(scope="module")
def projected(table: Path) -> Path:
    """The run of a private basis."""
    return train(load_config("private-table", settings(table, *BASIS)), table / "projected").folder


def test_a_private_basis_is_deployed_as_it_is_simulated(table: Path, projected: Path, tmp_path: Path) -> None:
    """Second moments, directions, cuts and folds agree: with one seed's noise the models are the same."""
    job = make_job(projected, "simulation")
    assert (job.shape, job.width) == ((2, 3), 5)
    deploy(coordinator(tmp_path / "run", job), nodes := nodes_of(tmp_path, table, job))
    for name, model in read_models(tmp_path / "run").items():
        if not name.startswith("steadiness"):
            np.testing.assert_allclose(model, read_models(projected)[name], atol=2e-4, err_msg=name)
    assert np.count_nonzero(load_model(tmp_path / "run").weights) == 4
    first = spends(nodes[1])[0]
    assert first.mechanism_note == "second moment of the features, simulation noise"
    assert first.sensitivity == pytest.approx(1 / PERSONS[1])


def test_a_private_basis_with_secure_noise_is_spent_first_and_once(table: Path, projected: Path, tmp_path: Path) -> None:
    job = make_job(projected)
    assert any(line.startswith("Second moment of the features") for line in explain(job))
    nodes, server = nodes_of(tmp_path, table, job), coordinator(tmp_path / "run", job)
    asked = server.standards.requests(range(len(nodes)))
    replies = [(i, answer(nodes[i], request)) for i, request in asked.items()]
    assert server.standards.take(asked, replies)[1] == []
    assert spends(nodes[0])[0].mechanism_note == "second moment of the features, secure noise"
    assert answer(nodes[0], asked[0]).vectors == replies[0][1].vectors, "the same bytes again, and no second release"
    assert len(spends(nodes[0])) == 1
    assert not one_round(server, nodes)[1]
