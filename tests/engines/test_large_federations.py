"""Federations whose states or data do not fit into memory: only a call's participants are loaded, with the same result."""

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import random_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpdm.choices import ALGORITHMS
from fedpdm.config import digest, load_config
from fedpdm.engines.simulation import window as module
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.client_store import ClientStore
from fedpdm.engines.simulation.hosts import join
from fedpdm.errors import ConfigError, UserError
from fedpdm.runs.finished import read_run
from fedpdm.runs.folder import RunFolder
from fedpdm.runs.train import run, train

RULES = [(name, "participants") for name in ALGORITHMS] + [("fedpdm", "cached"), ("fedpdm", "dual-memory")]
SIZES = [int(n) for n in np.random.default_rng(0).integers(5, 20, 40)]


class OnDemand:
    """Rows from a function, like the data of a million clients: with a shape and rows by number, and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.read = array, array.shape, 0

    def __getitem__(self, rows) -> np.ndarray:
        self.read = max(self.read, len(rows))
        return self.array[rows]


def config_of(algorithm: str = "fedpdm", rule: str = "dual-memory", *more: str):
    fixed = ["rounds.total=25", "rounds.participants=3", "rounds.all_first=false", "metrics.diagnose_every=0"]
    chosen = [f"algorithm.name={algorithm}", f"algorithm.server_rule={rule}", "local.steps=3", "local.batch_size=4"]
    return load_config("plain", [*fixed, *chosen, "compression.uplink=0.5", *more])


@pytest.mark.parametrize(("algorithm", "rule"), RULES)
def test_the_store_changes_nothing(monkeypatch, algorithm: str, rule: str) -> None:
    federation = random_federation(SIZES)
    whole = build_simulation(config_of(algorithm, rule), federation)
    rows = list(whole.run())
    monkeypatch.setattr(module, "LARGE", 100)
    lazy = federation._replace(features=OnDemand(federation.features), labels=OnDemand(federation.labels), feature_names=())
    windowed = build_simulation(config_of(algorithm, rule), lazy)
    assert windowed.window.brings_data
    assert windowed.window.stores == (algorithm not in ("fedavg", "fedprox"))
    assert list(windowed.run()) == rows
    np.testing.assert_array_equal(windowed.model, whole.model)
    np.testing.assert_array_equal(windowed.averaged_model, whole.averaged_model)
    assert lazy.features.read <= 30, "nobody's data were read but the participants'"
    assert all(leaf.shape[0] != 40 for leaf in jax.tree.leaves(windowed.state.clients))


def test_a_private_run_checks_what_it_reads(monkeypatch) -> None:
    """With data that come when they are needed: the same model, and an example beyond the radius is refused all the same."""
    federation = random_federation(SIZES)
    features = federation.features / np.float32(1.001 * np.linalg.norm(federation.features, axis=2).max())
    private = ["privacy.mechanism=sound", "privacy.epsilon=1", "local.batch_size=0", "compression.uplink=1", "data.clients=40"]
    config = config_of("fedpdm", "dual-memory", *private, "rounds.sampling=cycle", "local.step_size=0.5")
    models = []
    for held in (features, OnDemand(features)):
        simulation = build_simulation(config, federation._replace(features=held))
        list(simulation.run())
        models.append(simulation.model)
    assert simulation.window.brings_data
    np.testing.assert_array_equal(models[0], models[1])
    beyond = features.copy()
    beyond[simulation._roster[0][0][0], 0] *= 100
    with pytest.raises(ConfigError, match="above the radius 1"):
        list(build_simulation(config, federation._replace(features=OnDemand(beyond))).run())


def test_a_run_with_a_store_is_killed_and_goes_on(monkeypatch, tmp_path: Path) -> None:
    """Records of the log after the last checkpoint are removed."""
    monkeypatch.setattr(module, "LARGE", 100)
    federation, config = random_federation(SIZES), config_of()
    expected = build_simulation(config, federation)
    list(expected.run())

    with closing(RunFolder.create(tmp_path / "run", config, federation.checksums)) as folder:
        log = folder.path / "clients.log"
        broken = build_simulation(config, federation)
        broken.restore(broken.state, 0, log)
        broken.advance()
        folder.save_checkpoint(broken.state, broken.round, digest(config))
        length = log.stat().st_size
        broken.advance()
        assert log.stat().st_size > length
        again = build_simulation(config, federation)
        run(config, folder, again)
    np.testing.assert_array_equal(again.model, expected.model)


def test_what_needs_everybody_at_once_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(module, "LARGE", 100)
    for change, words in (("rounds.all_first=true", "all_first=true"), ("metrics.diagnose_every=5", "diagnose_every=5")):
        with pytest.raises(ConfigError, match=words):
            build_simulation(config_of("fedpdm", "dual-memory", change), random_federation(SIZES))


def test_a_store_that_is_not_there_is_missed(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "LARGE", 100)
    one = build_simulation(config_of(), random_federation(SIZES))
    one.advance()
    with pytest.raises(UserError, match=r"of 2\d records"):
        build_simulation(config_of(), random_federation(SIZES)).restore(one.state, one.round, tmp_path / "clients.log")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True), min_size=1, max_size=8), st.data())
def test_the_store_is_a_table_with_a_past(batches, data) -> None:
    """After any appends and a cut, it is the table of that time."""
    store = ClientStore(10, {"a": np.zeros(3, np.float32), "b": np.int32(-1)})
    tables = [np.full(10, -1)]
    ends = [0]
    for number, clients in enumerate(batches):
        rows = {"a": np.full((len(clients), 3), number, np.float32), "b": np.full(len(clients), number, np.int32)}
        store.append(np.array(clients), rows)
        table = tables[-1].copy()
        table[clients] = number
        tables.append(table)
        ends.append(store.length)
    back = data.draw(st.integers(0, len(batches)))
    store.cut(ends[back])
    found = store.read(np.arange(10))
    np.testing.assert_array_equal(found["b"], tables[back])
    np.testing.assert_array_equal(found["a"][:, 0], np.maximum(tables[back], 0))
    store.close()


def test_several_devices_share_the_participants_and_change_nothing() -> None:
    """Four simulated devices against one, in processes of their own; 4 of 8 clients a round, all of them in the first."""
    common = ["data.clients=8", "rounds.total=6", "rounds.participants=4", "local.steps=3", "metrics.diagnose_every=3"]
    cases = [
        [*common, f"algorithm.name={name}", f"local.batch_size={batch}", "compression.uplink=0.5"]
        for name, batch in (("fedpdm", 4), ("scaffold", 0))
    ]
    found = []
    for devices in (1, 4):
        environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        command = [sys.executable, str(Path(__file__).parent / "several_devices.py"), json.dumps(cases)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
        assert found[-1].pop("devices") == devices
        assert {case["shared_by"] for case in found[-1].values()} == {devices}
    for one, four in zip(*(case.values() for case in found), strict=True):
        np.testing.assert_allclose(four["model"], one["model"], atol=1e-6)
        assert four["last"]["uplink_bytes"] == one["last"]["uplink_bytes"]
        assert four["last"]["objective"] == pytest.approx(one["last"]["objective"], rel=1e-5)


def test_two_hosts_train_one_model_and_the_first_one_writes_it(tmp_path) -> None:
    """Two real processes on loopback share the participants by JAX's distributed runtime, with a ledger and noise."""
    chosen = ["data.name=digits", "data.clients=8", "rounds.participants=4", "rounds.total=4", "metrics.diagnose_every=2"]
    chosen += ["rounds.all_first=false", "privacy.mechanism=sound", "privacy.epsilon=3.0", "problem.loss=softmax"]
    chosen += ["local.batch_size=0", "local.steps=3", "local.step_size=0.5"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = [part for setting in chosen for part in ("--set", setting)]
    command = [sys.executable, "-m", "fedpdm.cli.main", "run", "plain", *flags, "--quiet", "--json", "--out", "run"]
    hosts = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        how = {"cwd": tmp_path / str(number), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        hosts.append(subprocess.Popen([*command, "--hosts", f"{number}/2@{address}"], **how))
    alone = train(load_config("plain", chosen), tmp_path / "alone")
    said = [host.communicate() for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    assert json.loads(said[0][0])["epsilon"] == alone.summary["epsilon"]
    together = read_run(tmp_path / "0" / "run")
    np.testing.assert_allclose(together.model, alone.model, atol=1e-6)
    assert [row["uplink_bytes"] for row in together.rows] == [row["uplink_bytes"] for row in alone.rows]
    assert said[1][0] == "Done. The first host has the run folder.\n"
    assert list((tmp_path / "1").iterdir()) == []


@pytest.mark.parametrize(
    ("hosts", "said"), [("2", "NUMBER/COUNT@ADDRESS:PORT"), ("0/2", "NUMBER/COUNT"), ("2/2@127.0.0.1:1", "counted from 0")]
)
def test_hosts_that_cannot_meet_are_refused_before_the_wait(hosts, said) -> None:
    with pytest.raises(ConfigError, match=said):
        join(hosts)
