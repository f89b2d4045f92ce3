"""Steps in the space of the rows are the usual steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_federation

from fedpdm.algorithms import LocalPlan, fedpdm
from fedpdm.algorithms.dual_space import gram_matrices, pays, serves
from fedpdm.algorithms.local import Examples, solve
from fedpdm.engines.simulation import window
from fedpdm.engines.simulation.simulation import Schedule, Simulation
from fedpdm.problem import Problem, logistic, penalties, softmax
from fedpdm.problem.losses import restricted, with_class_weights
from fedpdm.rounds import Setup

LOSSES = [softmax(), softmax(0.3), logistic(), logistic(0.4), with_class_weights(softmax(), [0.5, 2.0, 1.0])]


@pytest.mark.parametrize(("which", "persons"), [(0, False), (1, True), (2, False), (3, True), (4, False)])
def test_both_spaces_give_the_same_model(which, persons):
    rng = np.random.default_rng(which)
    features = jnp.asarray(rng.normal(size=(2, 7, 30)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 3, (2, 7)), jnp.int32)
    counted = (jnp.asarray(rng.uniform(0.2, 1, (2, 7)), jnp.float32), jnp.array([3.0, 4.0])) if persons else (None, None)
    x0, term = (jnp.asarray(rng.normal(size=(3, 30)), jnp.float32) for _ in range(2))
    problem, plan = Problem(LOSSES[which], penalties.none()), LocalPlan(9, 0, 0.05)

    @jax.jit
    def answer(grams):
        examples = Examples(features, labels, jnp.array([7, 4]), jnp.int32(1), *counted, grams)
        return solve(problem, plan, examples, x0, term, 0.7, jnp.float32(0.05), jax.random.key(0))

    (usual, taken), (other, as_many) = answer(None), answer(gram_matrices(features))
    np.testing.assert_allclose(usual, other, rtol=0, atol=2e-5)
    assert int(taken.steps) == int(as_many.steps)


def test_what_bends_the_steps_stays_in_the_usual_space():
    problem, plan = Problem(softmax(), penalties.none()), LocalPlan(5, 0, 0.1)
    assert serves(problem, plan)
    assert not serves(problem, plan, object())
    for field, value in {
        "batch_size": 4,
        "steps": 0,
        "tolerance": 1e-3,
        "linearised": True,
        "batch_clip": 1.0,
        "solver": "newton",
    }.items():
        assert not serves(problem, plan._replace(**{field: value}))
    assert not serves(problem._replace(beta=0.1), plan)
    assert not serves(problem._replace(penalty_by="subgradient"), plan)
    part = restricted(softmax(), jnp.zeros((3, 4)), jnp.ones((3, 4), bool), 1.0)
    assert not serves(problem._replace(loss=part), plan), "its gradient is not the slopes of plain scores"


def test_a_run_chooses_the_cheaper_space_and_ends_with_the_same_model(monkeypatch):
    federation = random_federation([9, 5, 8, 9], features=2000)
    setup = Setup(Problem(softmax(0.5), penalties.l1(1e-3)), fedpdm(rho=1.0), LocalPlan(20, 0, 0.05))
    schedule = Schedule(rounds=12, participants=2)
    chosen = Simulation(setup, federation, schedule)
    assert chosen.window.data.grams is not None
    monkeypatch.setattr(window, "pays", lambda *sizes: False)
    usual = Simulation(setup, federation, schedule)
    assert usual.window.data.grams is None
    one, other = (list(run.run()) for run in (chosen, usual))
    np.testing.assert_allclose(chosen.model, usual.model, rtol=0, atol=1e-5)
    assert one[-1]["stationarity"] == pytest.approx(other[-1]["stationarity"], rel=1e-3)


def test_the_choice_counts_the_gram_matrix():
    assert not pays(rows=600, features=3970, classes=10, steps=20, participations=0.3)
    assert not pays(rows=5000, features=3970, classes=10, steps=20, participations=1000)
