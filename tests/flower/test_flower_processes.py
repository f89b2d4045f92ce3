"""Real Flower processes with TLS and authentication, and kill -9. One SuperLink and two SuperNodes serve all tests here."""

import json
import math
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from flower_kit import COMPILED, PERMISSIVE
from hostile_kit import JOBS, Pair, Row
from onnx import TensorProto, helper, numpy_helper

import fedpdm
from fedpdm.algorithms.base import Reports
from fedpdm.compression.wire import encode, make_part
from fedpdm.config import validate
from fedpdm.data import Federation
from fedpdm.data.encoders import add_encoder
from fedpdm.data.prepare import build_federation
from fedpdm.engines.flower.client.approve import approve
from fedpdm.engines.flower.client.identity import public_key
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.cohort.coordinator import CohortCoordinator
from fedpdm.engines.flower.init import job_from
from fedpdm.engines.flower.job import Job, job_toml, read_job
from fedpdm.engines.flower.processes.keys import make_certificates, make_node_key
from fedpdm.engines.flower.processes.launch import CONNECTION, LocalFederation
from fedpdm.engines.flower.processes.status import client_status
from fedpdm.engines.flower.protocol import REFUSALS, Meeting, Request
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.participation import cohort_table
from fedpdm.privacy.ledger import Ledger
from fedpdm.rounds import server_round, travel_at
from fedpdm.runs.folder import RunFolder, read_models
from fedpdm.runs.saved import load_model

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
SETTINGS: dict[str, Any] = {
    "data.name": "digits",
    "data.clients": 2,
    "data.partition": "iid",
    "data.scaling": "unit",
    "rounds.total": 3,
    "rounds.participants": 2,
    "rounds.all_first": False,
    "local.steps": 3,
    "local.batch_size": 0,
    "local.step_size": 1.0,
    "algorithm.name": "fedpdm",
    "algorithm.rho": 0.1,
    "algorithm.server_rule": "dual-memory",
    "privacy.mechanism": "sound",
    "privacy.epsilon": 2.0,
}
OPTIONS: dict[str, Any] = {"timeout": 120.0, "wait": 120.0, "nodes": 2}


def in_slots(federation: Federation) -> Federation:
    """The clients' rows in as many slots as the largest has: an empty one is zero."""
    return federation._replace(sizes=np.full_like(federation.sizes, federation.max_size))


class Site:
    """Two nodes around a SuperLink, and what a test does to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "policy.toml").write_text(PERMISSIVE)
        faults = Path(__file__).parent / "flower_faults"
        package = Path(fedpdm.__file__).parents[1]  # the one under test, where another one is installed
        environment = {"JAX_COMPILATION_CACHE_DIR": str(COMPILED / "compiled"), "PYTHONPATH": f"{faults}{os.pathsep}{package}"}
        self.flower = LocalFederation(folder / "flower", environment)
        self.keys: list[Path] = []
        self.submitted: dict[str, Any] = {}
        self.run: int | None = None  # the last one

    def state(self, client: int) -> Path:
        return self.folder / f"client-{client}"

    def own(self, client: int) -> dict[str, Any]:
        return {"client": client, "state-dir": str(self.state(client)), "policy": str(self.folder / "policy.toml")}

    def share_sums(self, members: int, size: int, dropouts: int) -> None:
        """Let the nodes' policy allow sums among so many members; start those that are not there yet."""
        keys = ", ".join(f'"{public_key(self.state(client))}"' for client in range(members))
        policy = PERMISSIVE + COHORT.format(keys=keys, size=size, dropouts=dropouts)
        (self.folder / "policy.toml").write_text(policy)
        for client in range(len(self.keys), members):
            self.keys.append(self.flower.register(f"node-{client}"))
            self.start_node(client)

    def start_node(self, client: int) -> None:
        self.flower.start_node(f"node-{client}", self.keys[client], self.own(client))

    def exchange_nodes(self, own: list[dict[str, Any]]) -> None:
        """Start the nodes again with other settings; return when the SuperLink has let them in.

        Until then it may take the stopped processes for alive, and answer for them that they are not there.
        """
        logs = [self.folder / f"flower/logs/node-{client}.log" for client in range(len(own))]
        admitted = [log.read_text().count("SuperNode ID") for log in logs]
        for client, settings in enumerate(own):
            self.flower.stop_one(f"node-{client}")
            self.flower.start_node(f"node-{client}", self.keys[client], settings)
        self.wait(lambda: all(log.read_text().count("SuperNode ID") > n for log, n in zip(logs, admitted, strict=True)))

    def begin(
        self, name: str, options: dict[str, Any] | None = None, noise: str = "secure", **settings: Any
    ) -> tuple[int, Path]:
        """Make a job that both clients hold, and submit it; once more under the same name, it is the same job."""
        out, path = self.folder / name, self.folder / f"{name}.toml"
        changed = SETTINGS | {key.replace("__", "."): value for key, value in settings.items()}
        if not path.exists():
            chosen = [f"{key}={json.dumps(value)}" for key, value in changed.items()]
            job = job_from(
                "demo",
                ["data.features=raw", "data.basis=none", "compression.values=float32", "privacy.clip=", *chosen],
                slots=None,
                noise=noise,
            )
            path.write_text(job_toml(job))
            for client in range(job.config.data.clients):
                approve(self.state(client), job, load_policy(self.folder / "policy.toml"))
        self.submitted = OPTIONS | (options or {}) | {"job": str(path), "out": str(out)}
        self.run = self.flower.submit(self.submitted)
        return self.run, out

    def wait(self, what: Any, seconds: float = 1500.0) -> None:
        until, looked = time.monotonic() + seconds, time.monotonic()
        while not what():
            self.flower.revive()
            if self.run is not None and time.monotonic() - looked > 20:
                looked = time.monotonic()
                # Flower gives up a server's process that a busy machine lets wait for a minute: an operator runs it again.
                if "No heartbeat" in self.flower.status(self.run)[1]:
                    self.run = self.flower.submit(self.submitted)
            assert time.monotonic() < until, (self.folder / "flower/logs/superlink.log").read_text()[-3000:]
            time.sleep(0.1)

    def finish(self, out: Path) -> dict[str, Any]:
        self.wait((out / "summary.json").exists)
        return json.loads((out / "summary.json").read_bytes())

    def rows(self, out: Path) -> list[dict[str, Any]]:
        path = out / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def spent_rounds(self, out: Path, client: int) -> list[int]:
        job = json.loads((out / "manifest.json").read_bytes())["job"]
        with Ledger(self.state(client) / "ledger.sqlite") as ledger:
            return [row.round for row in ledger.rows() if row.job == job]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    with site.flower:
        site.flower.start_superlink()
        site.keys += [site.flower.register(f"node-{client}") for client in range(2)]
        for client in range(2):
            site.start_node(client)
        # two that must stay outside: one that nobody registered, one that trusts another authority
        stranger, _ = make_node_key(site.folder / "keys", "stranger")
        own = {"client": 0, "state-dir": str(site.folder / "stranger"), "policy": str(site.folder / "policy.toml")}
        site.flower.start_node("stranger", stranger, own)
        other = make_certificates(site.folder / "other")
        site.flower.start_node("deceived", site.keys[1], own, authority=other.authority)
        yield site


def write_encoder(path: Path) -> Path:
    """Write an encoder of digits: made-up weights, and a bend."""
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(64, 20)).astype(np.float32), "weights")
    steps = [("Flatten", ["image"], ["rows"]), ("MatMul", ["rows", "weights"], ["sums"]), ("Tanh", ["sums"], ["vector"])]
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", 1, 8, 8])]
    outputs = [helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["rows", 20])]
    graph = helper.make_graph([helper.make_node(*step) for step in steps], "encoder", inputs, outputs, [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_the_model_of_real_processes_is_the_simulators(site: Site) -> None:
    """Behind an encoder that server and nodes have in their cache alone."""
    path = write_encoder(site.folder / "encoder.onnx")
    _, kept = add_encoder(path)
    behind: dict[str, Any] = {"data__features": "onnx", "data__encoder": str(path), "data__scaling": "none"}
    _, out = site.begin("same", noise="simulation", rounds__total=2, **behind)
    path.unlink()
    summary = site.finish(out)
    assert summary["messages_used"] == 4
    manifest = json.loads((out / "manifest.json").read_bytes())
    config = validate(manifest["config"])
    simulation = build_simulation(config, in_slots(build_federation(config)))
    rows = list(simulation.run())
    np.testing.assert_allclose(read_models(out)["model"], simulation.model, atol=2e-6)
    assert summary["test_accuracy"] == pytest.approx(rows[-1]["test_accuracy"], abs=1e-6)
    assert (summary["uplink_bytes"], summary["downlink_bytes"]) == (rows[-1]["uplink_bytes"], rows[-1]["downlink_bytes"])
    saved, federation = load_model(out), simulation.federation
    assert (saved.class_names, saved.feature_names) == (federation.class_names, federation.feature_names)
    kept.unlink()


def test_an_unregistered_node_and_one_that_trusts_another_authority_stay_outside(site: Site) -> None:
    logs = {name: (site.folder / f"flower/logs/{name}.log").read_text() for name in ("stranger", "deceived")}
    assert "certificate verify failed" in logs["deceived"].lower()
    assert "SuperNode ID" not in logs["stranger"] + logs["deceived"]
    assert not (site.folder / "stranger").exists(), "it was never asked for anything"
    for name in logs:
        if name in site.flower.processes:
            site.flower.stop_one(name)


def test_fewer_nodes_than_asked_for_are_waited_for_and_then_named(site: Site) -> None:
    run, _ = site.begin("few", {"nodes": 3, "wait": 3.0}, data__clients=3, rounds__participants=3)
    site.wait(lambda: site.flower.status(run)[0].startswith("finished"))
    state, words = site.flower.status(run)
    assert state == "finished:failed"
    assert "2 of 3 clients are connected after 3 s" in words
    log = site.flower.flwr("log", str(run), CONNECTION, "--show")
    assert "waiting for clients: 2 of 3 are connected" in log
    assert "Traceback" not in log


def test_the_servers_process_is_killed_and_goes_on_from_its_checkpoint(site: Site) -> None:
    _, out = site.begin("server")
    site.wait(lambda: len(site.rows(out)) == 1)
    (process,) = site.flower.find("superlink", "flwr-serverapp")
    os.kill(process, signal.SIGKILL)
    time.sleep(1.0)
    assert not (out / "summary.json").exists()
    site.begin("server")
    summary = site.finish(out)
    assert [row["round"] for row in site.rows(out)] == [1, 2, 3]
    assert summary["messages_used"] == 6, "nothing was lost"
    for client in range(2):
        assert site.spent_rounds(out, client) == [0, 1, 2], "and nothing was spent twice"


def test_a_clients_process_and_its_supernode_are_killed(site: Site) -> None:
    """The process after its message is on disk and before it left; then the node, which comes back under the same key."""
    site.state(0).mkdir(exist_ok=True)
    site.state(0).joinpath("die-at-kept").touch()
    _, out = site.begin("client", {"nodes": 1, "timeout": 30.0})
    site.wait(lambda: not site.state(0).joinpath("die-at-kept").exists())
    site.flower.kill("node-0")
    site.start_node(0)
    summary = site.finish(out)
    assert summary["rounds"] == 3
    rounds = site.spent_rounds(out, 0)
    assert rounds == sorted(set(rounds))
    with open_store(site.state(0)) as store:
        job = json.loads((out / "manifest.json").read_bytes())["job"]
        lost = store.messages(job)[0]
        assert lost.status in ("dropped", "pending"), "what never left is not taken for used"
    assert site.rows(out)[lost.round]["missing"] >= 1
    assert client_status(site.state(0))["budget"]["epsilon_spent"] < 50


def test_the_superlink_is_killed_and_started_again(site: Site) -> None:
    _, out = site.begin("superlink")
    site.wait(lambda: len(site.rows(out)) == 1)
    site.flower.kill("superlink")
    site.flower.start_superlink()
    site.begin("superlink")
    summary = site.finish(out)
    assert [row["round"] for row in site.rows(out)] == [1, 2, 3]
    for client in range(2):
        rounds = site.spent_rounds(out, client)
        assert rounds == sorted(set(rounds))
        assert len(rounds) <= 3
    assert summary["rounds"] == 3


EVIL = """
import json, pickle, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from fedpdm.engines.flower.protocol import Meeting, Request, pack

client = ClientApp()
server = ServerApp()
place = Path({place!r})

@client.query()
def steal(message, context):
    (place / "loot").write_text(str(context.node_config))
    return Message(RecordDict(), reply_to=message)

def plain(reply):
    if not reply.has_content():
        return {{"refused": str(reply.error.code), "reason": reply.error.reason}}
    said = dict(reply.content["fedpdm"])
    sizes = [len(array.data) for arrays in reply.content.array_records.values() for array in arrays.values()]
    return {{key: value for key, value in said.items() if key != "message"}} | {{"sizes": sizes}}

@server.main()
def main(grid, context):
    while len(nodes := sorted(grid.get_node_ids())) < 2:
        time.sleep(0.2)
    def send(messages):
        return list(grid.send_and_receive(messages, timeout=1200))

    work = Request("train", "0" * 64, 0, 0, "")
    odd = dict(), dict(job="../../etc/passwd"), dict(round=2**62), dict(client=9)
    messages = [Message(pack(work._replace(**changed)), nodes[0], "train") for changed in odd]
    messages.append(Message(RecordDict({{"evil": ConfigRecord({{"x": 1}})}}), nodes[0], "query"))
    messages.append(Message(pack(Meeting("0" * 64, "[" * 100000)), nodes[0], "query"))
    said = [[plain(reply) for reply in send(messages)]]
    for step in pickle.loads((place / "steps").read_bytes()):
        kind = "query" if isinstance(step, Meeting) else "train"
        replies = send([Message(pack(step), node, kind) for node in nodes])
        said.append([plain(reply) for reply in replies])
    (place / "part").write_text(json.dumps(said))
    (place / "part").rename(place / "said")
"""
EVIL_APP = """
[project]
name = "evil"
version = "1.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "evil"
[tool.flwr.app.components]
serverapp = "evil:server"
clientapp = "evil:client"
"""


def hostile_steps() -> dict[str, list[Any]]:
    """What the server sends to both, by the code that it must get."""
    raw, fourier, _, persons, _ = JOBS

    def train(job: Job, **changed: Any) -> Request:
        values = np.full(job.shape, 0.3, np.float32)
        request = Request("train", job.digest, 0, 0, "", encode([make_part(values, np.ones(values.shape, bool))]))
        return request._replace(**changed)

    assert persons.first_release is not None
    means = np.full(persons.first_release.sent_size, 1e5, np.float32)
    hostile_means = encode([make_part(means, np.ones(means.size, bool))])
    overflow = job_toml(fourier).replace("fourier_bandwidth = 1.0", "fourier_bandwidth = 1e-38")
    assert overflow != job_toml(fourier)
    return {
        "settings": [Meeting("0" * 64, overflow)],
        "model": [train(raw, vectors=train(fourier).vectors)],
        "": [
            train(raw),
            train(fourier),
            Request("standardise", persons.digest, 0, 0, ""),
            train(persons, standard=hostile_means),
        ],
        "repeat": [train(raw, accepted="0" * 32)],
    }


def test_a_hostile_server_cannot_tell_neighbours_apart(site: Site) -> None:
    """Nodes whose rows differ in one person answer alike to all that it sends, with the app of their own."""
    app = site.folder / "evil"
    app.mkdir()
    (app / "evil.py").write_text(EVIL.format(place=str(app)))
    (app / "pyproject.toml").write_text(EVIL_APP)
    steps = hostile_steps()
    (app / "steps").write_bytes(pickle.dumps([step for each in steps.values() for step in each]))
    cells = [[0.3, -1.0, 2.0], [3e38, 0.0, -3e38], [math.nan, math.inf, 0.3], [1.0, 0.3, 0.0]]
    own_rows = zip(cells, [0, 1, 7, 1], [1, 2, 2, 3], ["", "a a b", "\ud800", "7.0"], strict=True)
    pair = Pair([Row(row, label, person, note, [row[:2]]) for row, label, person, note in own_rows], 2)
    own = [
        {"client": 0, "state-dir": str(node.state_dir), "policy": str(node.policy), "data-path": str(node.source.path)}
        for node in pair.nodes
    ]
    try:
        site.exchange_nodes(own)
        site.flower.flwr("run", str(app), CONNECTION)
        site.wait((app / "said").exists)
        first, *pairs = json.loads((app / "said").read_text())
        assert sorted(reply["refused"] for reply in first) == ["client", "job", *["malformed"] * 3, "settings"]
        assert [one["refused"] for one, _ in pairs] == [code for code, each in steps.items() for _ in each]
        for one, other in pairs:
            assert one == other
        for reply in (*first, *(reply for both in pairs for reply in both)):
            assert reply["reason"] == (REFUSALS[reply["refused"]] if reply["refused"] else ""), "no words of an exception"
        assert not (app / "loot").exists(), "fedpdm's own ClientApp answered"
        kept = pair.kept()
        assert kept[0].spends == kept[1].spends
        assert len(kept[0].spends) == len(steps[""]), "every answer was paid for, and nothing else"
    finally:
        site.exchange_nodes([site.own(client) for client in range(2)])
        pair.close()


COHORT = """
[cohort]
keys = [{keys}]
size = {size}
colluding = 0
dropouts = {dropouts}
"""
SUMS: dict[str, Any] = {
    "data__clients": 3,
    "rounds__participants": 0,
    "rounds__total": 2,
    "local__steps": 1,
    "privacy__mode": "linearised",
    "privacy__trust": "cohorts",
    "cohorts__colluding": 0,
    "cohorts__dropouts": 1,
}


def model_after(site: Site, name: str, shares: dict[int, list[np.ndarray]]) -> np.ndarray:
    """The first round's model of a job, from the shares of its cohorts."""
    job = read_job(site.folder / f"{name}.toml")
    again = RunFolder.create(Path(tempfile.mkdtemp(dir=site.folder)) / "again", job.config, {}, {})
    again.close()
    server = CohortCoordinator(job, again, None)
    setup, state = server.agreement.setup, server.state.server
    sums = {row: sum(each[1:], each[0]) for row, each in shares.items()}
    clients = [server.virtual_client(row, words, len(shares[row])).message for row, words in sums.items()]
    messages = jax.tree.map(lambda *leaves: np.stack(leaves), *clients)
    travel = travel_at(setup, 0, setup.local.steps)
    reports = Reports(messages, np.array(list(sums), np.int32), np.ones(len(sums), bool), None, travel)
    return np.asarray(server_round(setup, state, setup.algorithm.broadcast(state), reports).x0)


def test_members_find_a_basis_by_a_secure_sum(site: Site) -> None:
    """One sum of second moments comes before the round; the ledgers have both, and the model is for the pixels."""
    site.share_sums(3, size=3, dropouts=1)
    basis = {"data__basis": "private", "data__basis_size": 10, "rounds__total": 1}
    _, out = site.begin("basis", {"nodes": 3, "timeout": 1200.0, "patience": 0.0}, **SUMS | basis)
    site.finish(out)
    assert [row["participants"] for row in site.rows(out)] == [3]
    job = read_job(site.folder / "basis.toml")
    for client in range(3):
        with Ledger(site.state(client) / "ledger.sqlite") as ledger:
            rows = [row for row in ledger.rows() if row.job.startswith(job.digest)]
        assert [(row.job.removeprefix(job.digest), row.round) for row in rows] == [(":standard", 0), ("", 0)]
        assert rows[0].mechanism_note == "second moment of the features, secure sum of 3 members"
    assert load_model(out).weights.shape == (10, 65)


def test_members_of_a_secure_sum_are_killed(site: Site) -> None:
    """One may be missing: the others' sum is exact. Two are too many: the sum stays closed, and the ledgers say what left."""
    site.share_sums(3, size=3, dropouts=1)
    for client in range(3):
        site.state(client).joinpath("keep-shares").touch()
    deaths = [site.state(2) / "die-at-masked-0", site.state(0) / "die-at-agree-1", site.state(1) / "die-at-agree-1"]
    for death in deaths:
        death.touch()
    # Without patience the server waits until Flower tells it of a death, however busy the machine is.
    _, out = site.begin("sums", {"nodes": 3, "timeout": 1200.0, "patience": 0.0}, **SUMS)
    site.finish(out)
    assert not any(death.exists() for death in deaths), "all three have died"
    assert [row["participants"] for row in site.rows(out)] == [2, 0]
    assert [site.spent_rounds(out, client) for client in range(3)] == [[0, 1], [0, 1], [1]]
    shares = [np.load(site.state(client) / "share-0.npy") for client in (0, 1)]
    # Two processes turn the same whole numbers into a model that is the same up to the last bits of float32.
    model = read_models(out)["model"]
    np.testing.assert_allclose(model, model_after(site, "sums", {0: shares}), rtol=0, atol=2e-8)
    assert np.abs(model - model_after(site, "sums", {0: shares[:1]})).max() > 1e-3, "one share alone is another model"
    assert client_status(site.state(2))["trouble"] is None


def test_a_lying_member_spoils_the_sum_of_its_own_cohort_only(site: Site) -> None:
    """Three cohorts of two. One member sends its update four times with the sign flipped: the other sums contradict its sum."""
    site.share_sums(6, size=2, dropouts=0)
    several = {"data__clients": 6, "rounds__total": 1, "cohorts__size": 2, "cohorts__dropouts": 0, "cohorts__compare": True}
    several |= {"privacy__epsilon": 20.0, "local__step_size": 4.0}
    (site.state(5) / "lie").touch()
    for client in range(6):
        (site.state(client) / "keep-shares").touch()
    run, out = site.begin("cohorts", {"nodes": 6, "timeout": 1200.0, "wait": 1200.0, "patience": 0.0}, **SUMS | several)
    summary = site.finish(out)
    table, _ = cohort_table(6, 2, read_job(site.folder / "cohorts.toml").config.seed)
    honest = {row: sorted(cohort) for row, cohort in enumerate(table.tolist()) if 5 not in cohort}
    (row,) = site.rows(out)
    assert (row["participants"], row["missing"], row["refused"]) == (4, 2, 1)
    log = site.flower.flwr("log", str(run), CONNECTION, "--show")
    assert "The sum is refused (compared: the other sums of the round contradict it)" in log
    assert summary["messages_refused"] == 2
    shares = {row: [np.load(site.state(client) / "share-0.npy") for client in cohort] for row, cohort in honest.items()}
    np.testing.assert_allclose(read_models(out)["model"], model_after(site, "cohorts", shares), rtol=0, atol=2e-8)
    assert [site.spent_rounds(out, client) for client in range(6)] == [[0]] * 6, "every share was paid for"
