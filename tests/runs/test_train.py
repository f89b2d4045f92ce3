"""`fedpdm.train` is `fedpdm run`; it resumes; and a ledger cannot be lost on the way."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpdm
from fedpdm.cli.main import app
from fedpdm.config import digest, load_config
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import resolved_simulation
from fedpdm.errors import ConfigError, UserError
from fedpdm.runs.finished import read_run
from fedpdm.runs.folder import RunFolder
from fedpdm.runs.simulated_ledger import SimulatedLedger
from fedpdm.runs.train import run
from fedpdm.setup.resolve import resolve

SETTINGS = [
    "data.name=digits",
    "data.clients=5",
    "rounds.participants=0",
    "rounds.total=4",
    "rounds.all_first=false",
    "local.batch_size=0",
    "local.steps=2",
    "metrics.diagnose_every=2",
    "privacy.mechanism=sound",
    "privacy.epsilon=3.0",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> "fedpdm.FinishedRun":
    return fedpdm.train(load_config("plain", SETTINGS), tmp_path_factory.mktemp("runs") / "run")


def test_python_and_the_command_line_give_the_same_bits(trained: "fedpdm.FinishedRun", tmp_path: Path) -> None:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    app(["run", "plain", *settings, "--out", str(tmp_path / "run"), "--quiet"], standalone_mode=False)
    for name in ("model.safetensors", "metrics.jsonl", "clients.json"):
        assert (tmp_path / "run" / name).read_bytes() == (trained.folder / name).read_bytes()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {path.name for path in trained.folder.iterdir()}
    assert (trained.folder / "report.html").is_file()


def test_the_run_that_is_returned_has_model_curves_and_guarantee(trained: "fedpdm.FinishedRun") -> None:
    assert trained.model.shape == trained.averaged_model.shape == (10, 65)
    assert trained.curves["test_accuracy"][0].tolist() == [1, 2, 3, 4]
    assert trained.curves["objective"][1].shape == (2,)
    assert trained.guarantee.startswith("Differential privacy with epsilon = 3 ")
    assert trained.config.rounds.participants == 5, "0 stands for all of the five clients"
    assert trained.summary["test_accuracy"] == pytest.approx(trained.curves["test_accuracy"][1][-1], abs=1e-6)
    again = read_run(trained.folder)
    np.testing.assert_array_equal(again.model, trained.model)
    assert (again.summary, again.rows) == (trained.summary, trained.rows)


def test_an_interrupted_run_is_resumed_to_the_same_bits(trained: "fedpdm.FinishedRun", tmp_path: Path) -> None:
    path = tmp_path / "run"

    def interrupt(rows: list[dict[str, Any]]) -> None:
        raise KeyboardInterrupt

    unresolved = load_config("plain", SETTINGS)
    federation = build_federation(unresolved, progress=False)
    config = resolve(unresolved, federation)
    ledger = functools.partial(SimulatedLedger, path / "ledger.sqlite", digest(config))
    folder = RunFolder.create(path, config, federation.checksums)
    with pytest.raises(KeyboardInterrupt):
        run(config, folder, resolved_simulation(config, federation, ledger=ledger), interrupt)
    folder.close()
    with pytest.raises(UserError, match="not finished"):
        read_run(path)
    resumed = fedpdm.train(resume=path)
    np.testing.assert_array_equal(resumed.model, trained.model)
    assert resumed.rows == trained.rows
    assert resumed.summary["epsilon"] == trained.summary["epsilon"]
    again = fedpdm.train(resume=path)
    assert again.summary == resumed.summary, "a finished run is returned as it is"
    with pytest.raises(ConfigError, match="neither config nor out"):
        fedpdm.train("plain", resume=path)


def test_a_simulation_keeps_its_ledger(tmp_path: Path) -> None:
    unresolved = load_config("plain", SETTINGS)
    federation = build_federation(unresolved, progress=False)
    config = resolve(unresolved, federation)
    assert resolve(config, federation) == config
    ledger = functools.partial(SimulatedLedger, tmp_path / "ledger.sqlite", digest(config))
    simulation = resolved_simulation(config, federation, ledger=ledger)
    with pytest.raises(ConfigError, match="cannot restart with seed 7"):
        simulation.restart(7)
    with pytest.raises(AssertionError, match="open ledger"):
        simulation.advance()
    folder = RunFolder.create(tmp_path / "run", config, federation.checksums)
    with pytest.raises(ValueError, match="needs a ledger"):
        run(config, folder, resolved_simulation(config, federation))
    folder.close()
