"""A number is learnt wherever classes are: every algorithm, sparse messages, cohorts, penalties, batches."""

import numpy as np
import pytest

from fedpdm.config import load_config
from fedpdm.data import federation_from_arrays
from fedpdm.engines.simulation.build import build_simulation

SHARED = ["data.name=own", "data.clients=6", "data.partition=iid", "data.features=raw", "data.basis=none", "rounds.total=4"]
SHARED += ["rounds.participants=6", "rounds.all_first=false", "local.batch_size=0", "metrics.diagnose_every=0"]
PRIVATE = ["privacy.mechanism=sound", "privacy.epsilon=50.0", "privacy.mode=linearised", "local.steps=1", "local.step_size=1.0"]
CASES = {
    "fedavg, batches": ["algorithm.name=fedavg", "local.batch_size=10", "local.steps=5", "local.step_size=0.5"],
    "scaffold, poisson": ["algorithm.name=scaffold", "problem.loss=poisson", "local.steps=3", "local.step_size=0.5"],
    "feddyn, quantile": ["algorithm.name=feddyn", "problem.loss=quantile", "problem.quantile_smoothing=0.1", "local.steps=3"],
    "sparse messages": ["compression.kind=shared-randk", "compression.uplink=0.5", *PRIVATE],
    "largest noised": ["compression.kind=noisy-topk", "compression.uplink=0.5", "problem.loss=huber", *PRIVATE],
    "cohorts": ["privacy.trust=cohorts", "algorithm.server_rule=dual-memory", *PRIVATE],
    "sparse regression": ["problem.penalty=mcp", "problem.gamma=0.02", "local.steps=20", "local.step_size=0.5"],
}


pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (6, 200, 4))
    x[..., -1] = 1
    x /= 2
    y = np.clip(0.5 + x @ [0.5, -0.3, 0.0, 0.0] + 0.05 * rng.normal(size=(6, 200)), 0, 1)
    return federation_from_arrays(list(zip(x, y, strict=True)), x[0], y[0], number=True)


@pytest.mark.parametrize("name", CASES)
def test_the_test_loss_falls(name, federation):
    base = [] if any(setting.startswith("problem.loss") for setting in CASES[name]) else ["problem.loss=squared"]
    simulation = build_simulation(load_config("plain", [*SHARED, "problem.gamma=0.0", *base, *CASES[name]]), federation)
    before = simulation.test_accuracy(simulation.model)
    rows = list(simulation.run())
    assert rows[-1]["test_loss"] < before
    assert simulation.model.shape == (1, 4)
