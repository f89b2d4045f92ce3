"""Properties of every algorithm in the table."""

import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_federation

from fedpdm import algorithms
from fedpdm.algorithms import LocalPlan, Reports, afedpd, fedavg, feddr, feddyn, fedpdm, fedprox, scaffold
from fedpdm.choices import ALGORITHMS
from fedpdm.engines.simulation.simulation import Schedule, Simulation
from fedpdm.errors import ConfigError
from fedpdm.problem import Problem, penalties, softmax
from fedpdm.rounds import Setup

MAKE = {
    "fedavg": lambda: fedavg(),
    "fedprox": lambda: fedprox(mu=0.5),
    "scaffold": lambda: scaffold(),
    "feddyn": lambda: feddyn(alpha=1.0),
    "fedpdm": lambda: fedpdm(rho=1.0),
    "feddr": lambda: feddr(rho=1.0),
    "afedpd": lambda: afedpd(rho=1.0),
}
assert MAKE.keys() == ALGORITHMS.keys(), "give the new algorithm its settings here"


def simulation(name: str, rounds: int = 25, **schedule) -> Simulation:
    setup = Setup(Problem(softmax(), penalties.l1(0.005)), MAKE[name](), LocalPlan(4, 5, 0.3))
    federation = random_federation([20, 7, 13, 30, 9, 11])
    return Simulation(setup, federation, Schedule(rounds, **({"participants": 3} | schedule)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_objective_falls_on_ragged_clients(name):
    rows = [row for row in simulation(name).run() if "objective" in row]
    assert rows[-1]["objective"] < 0.99 * rows[0]["objective"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_states_keep_their_structure(name):
    """A state goes in and comes out with the same tree, shapes and types: else a checkpoint could not be restored."""
    algorithm = MAKE[name]()
    x0 = jnp.ones((2, 3))
    client, server = algorithm.init_client(x0), algorithm.init_server(x0, 4)
    after, message = algorithm.client_update(client, algorithm.broadcast(server), 2 * x0, jnp.float32(0.5))
    reports = Reports(jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), message), jnp.array([1, 3]), jnp.ones(2, bool))
    served = algorithm.server_update(server, reports, penalties.l1(0.1))
    for before, now in [(client, after), (server, served)]:
        assert jax.tree.structure(before) == jax.tree.structure(now)
        shapes = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)] for state in (before, now)]
        assert shapes[0] == shapes[1]
    assert served.x0.shape == jax.tree.leaves(message)[0].shape == x0.shape
    assert jax.tree.structure(message) == jax.tree.structure(algorithm.gain(jnp.float32(0.5)))
    assert jax.tree.structure(message) == jax.tree.structure(algorithm.silent(algorithm.broadcast(server)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_chunks_of_every_length_share_one_compilation_and_give_the_same_model(name):
    models = []
    for chunk in (1, 4, 25):
        run = simulation(name, diagnose_every=chunk)
        list(run.run())
        assert len(run._compiled) == 4  # the first state, the first round with everybody, the others, the diagnosis
        models.append(run.model)
    np.testing.assert_array_equal(models[0], models[1])
    np.testing.assert_array_equal(models[0], models[2])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_padding_does_not_matter(name):
    """The same clients, padded to more rows, give the same model."""
    plain = simulation(name, participants=6)
    padded = simulation(name, participants=6)
    federation = padded.federation
    features = np.pad(federation.features, ((0, 0), (0, 0), (0, 0)))
    features[np.arange(features.shape[1]) >= federation.sizes[:, None]] = 1e6  # the values of padding are never read
    poisoned = Simulation(padded.setup, federation._replace(features=features), padded.schedule)
    list(plain.run())
    rows = list(poisoned.run())
    np.testing.assert_array_equal(plain.model, poisoned.model)
    assert np.isfinite(rows[-1]["objective"])
    assert np.isfinite(rows[-1]["stationarity"])


@pytest.mark.parametrize("participants", [0, 7])
def test_participants_must_fit_the_federation(participants):
    with pytest.raises(ConfigError, match="participants"):
        simulation("fedpdm", participants=participants)


def test_no_module_of_an_algorithm_is_hidden_by_its_function():
    package = Path(algorithms.__file__).parent
    for stem in (path.stem for path in package.glob("*.py") if path.stem != "__init__"):
        module = importlib.import_module(f"fedpdm.algorithms.{stem}")
        assert getattr(algorithms, stem) is module
