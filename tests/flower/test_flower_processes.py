"""Real Flower processes with TLS and authentication, and kill -9. One SuperLink and two SuperNodes serve all tests here."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_kit import COMPILED, PERMISSIVE

import fedpdm
from fedpdm.config import validate
from fedpdm.data import Federation
from fedpdm.data.prepare import build_federation
from fedpdm.engines.flower.client.approve import approve
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.cohort.coordinator import CohortCoordinator
from fedpdm.engines.flower.cohort.killer import Death, Killer
from fedpdm.engines.flower.cohort.node import public_key
from fedpdm.engines.flower.init import job_from
from fedpdm.engines.flower.job import job_toml, read_job
from fedpdm.engines.flower.processes.keys import make_certificates, make_node_key
from fedpdm.engines.flower.processes.launch import CONNECTION, LocalFederation
from fedpdm.engines.flower.processes.status import client_status
from fedpdm.engines.flower.protocol import REFUSALS
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.privacy.ledger import Ledger
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

    def state(self, client: int) -> Path:
        return self.folder / f"client-{client}"

    def start_node(self, client: int) -> None:
        own = {"client": client, "state-dir": str(self.state(client)), "policy": str(self.folder / "policy.toml")}
        self.flower.start_node(f"node-{client}", self.keys[client], own)

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
        return self.flower.submit(OPTIONS | (options or {}) | {"job": str(path), "out": str(out)}), out

    def wait(self, what: Any, seconds: float = 1500.0) -> None:
        until = time.monotonic() + seconds
        while not what():
            self.flower.revive()
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


def test_the_model_of_real_processes_is_the_simulators(site: Site) -> None:
    _, out = site.begin("same", noise="simulation", rounds__total=2)
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
import json
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query()
def steal(message, context):
    Path({loot!r}).write_text(str(context.node_config))
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    def ours(**fields):
        return RecordDict({{"fedpdm": ConfigRecord({{"protocol": 3, **fields}})}})

    work = dict(task="train", job="0" * 64, round=0, client=0, accepted="", standard=b"")
    messages = [Message(RecordDict({{"evil": ConfigRecord({{"x": 1}})}}), node, "query") for node in nodes]
    messages += [Message(ours(job="0" * 64, offer="[" * 100000), node, "query") for node in nodes]
    odd = dict(), dict(job="../../etc/passwd"), dict(job="x" * 10**6), dict(round=-1), dict(round=2**62), dict(client=9)
    for changed in odd:
        messages.append(Message(ours(**(work | changed)), nodes[0], "train"))
    messages.append(Message(ours(**(work | dict(task="evaluate"))), nodes[0], "evaluate"))
    replies = grid.send_and_receive(messages, timeout=1200)
    said = [dict(reply.content["fedpdm"]) if reply.has_content() else {{"refused": "error"}} for reply in replies]
    part = Path({said!r} + ".part")
    part.write_text(json.dumps(said))
    part.rename({said!r})
"""


def test_a_node_runs_its_own_app_whatever_app_it_is_sent(site: Site) -> None:
    app = site.folder / "evil"
    app.mkdir()
    loot, said = site.folder / "loot", site.folder / "said"
    (app / "evil.py").write_text(EVIL.format(loot=str(loot), said=str(said)))
    (app / "pyproject.toml").write_text(
        '[project]\nname = "evil"\nversion = "1.0"\ndescription = ""\nlicense = "Apache-2.0"\ndependencies = []\n'
        '[tool.flwr.app]\npublisher = "evil"\n[tool.flwr.app.components]\n'
        'serverapp = "evil:server"\nclientapp = "evil:client"\n'
    )
    site.flower.flwr("run", str(app), CONNECTION)
    site.wait(said.exists)
    replies = json.loads(said.read_text())
    assert len(replies) == 11
    assert {reply["refused"] for reply in replies} == {"malformed", "job", "client"}, "fedpdm's own ClientApp answered"
    for reply in replies:
        assert reply["reason"] == REFUSALS[reply["refused"]], "constant texts, and no words of an exception"
        assert "examples" not in reply
    assert not loot.exists()


COHORT = """
[cohort]
keys = [{keys}]
size = 3
colluding = 0
dropouts = 1
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


def test_members_of_a_secure_sum_are_killed(site: Site) -> None:
    """One may be missing: the others' sum is exact. Two are too many: the sum stays closed, and the ledgers say what left."""
    with (site.folder / "policy.toml").open("a") as policy:
        policy.write(COHORT.format(keys=", ".join(f'"{public_key(site.state(client))}"' for client in range(3))))
    site.keys.append(site.flower.register("node-2"))
    site.start_node(2)
    for client in range(3):
        site.state(client).joinpath("keep-shares").touch()
    _, out = site.begin("sums", {"nodes": 3, "timeout": 60.0}, **SUMS)
    job = read_job(site.folder / "sums.toml")
    deaths = [Death(0, 2, "masked"), Death(1, 0, "agree"), Death(1, 1, "masked")]
    killer = Killer(site.flower, job.digest, [site.state(client) for client in range(3)], deaths)
    killed: list[Death] = []

    def over() -> bool:
        killed.extend(killer.look(len(site.rows(out))))
        return (out / "summary.json").exists()

    site.wait(over)
    assert sorted(killed) == deaths
    assert [row["participants"] for row in site.rows(out)] == [2, 0]
    assert [site.spent_rounds(out, client) for client in range(3)] == [[0, 1], [0], [1]]
    shares = [np.load(site.state(client) / "share-0.npy") for client in (0, 1)]
    again = RunFolder.create(site.folder / "again", job.config, {}, {})
    again.close()
    server = CohortCoordinator(job, again, None)
    opened, _ = server._opened(sum(shares[1:], shares[0]), 2)
    # Two processes turn the same whole numbers into a model that is the same up to the last bits of float32.
    np.testing.assert_allclose(read_models(out)["model"], opened.x0, rtol=0, atol=2e-8)
    alone, _ = server._opened(shares[0], 1)
    assert np.abs(read_models(out)["model"] - alone.x0).max() > 1e-3, "one share alone is another model"
    assert client_status(site.state(2))["trouble"] is None
