"""Theorem 3: its constants, its conditions, and the bound on real runs."""

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_federation

from fedpdm.algorithms import LocalPlan, fedpdm
from fedpdm.engines.simulation.simulation import Schedule, Simulation
from fedpdm.privacy.mechanism import no_privacy, sound
from fedpdm.problem import Problem, logistic, penalties, softmax
from fedpdm.problem.stationarity import stationarity
from fedpdm.rounds import Setup, message_noise
from fedpdm.theory import analyse, answer, constants, gradient_variance, rounds_for, smoothness_of


def test_constants_on_paper_values():
    """L = 2, rho = 10, N = 100, worked out by hand: B1 = 500, B2 = 1.4, B3 = 0.8 + 1/3, B4 = 1.6; B7 is the largest."""
    b7 = 4 + 100 + 0.04 * (10 + 1.6) + 0.16
    theta = b7 / (0.8 + 1 / 3)
    got = constants(2.0, 10.0, 100)
    assert got == pytest.approx((theta, 2 * theta * (0.8 + 1 / 3), 2 * theta * 1.6, 80.0))


@pytest.mark.parametrize("L", [0.4, 0.5, 2.5, 3.0])
def test_outside_of_its_conditions_the_bound_is_infinite(L):
    assert constants(L, 10.0, 100).c0 == np.inf


def test_smoothness_bounds_the_hessian_and_is_tight_for_one_class():
    federation = random_federation([30, 30])
    for loss in (logistic(), softmax()):
        problem = Problem(loss, penalties.none(), beta=0.3)
        top = max(np.linalg.eigvalsh(f.T @ f / len(f))[-1] for f in federation.features)
        expected = loss.smoothness(1.0) * top + 0.6
        assert smoothness_of(problem, federation) == pytest.approx(expected, rel=1e-3)


def test_gradient_variance_is_that_of_drawn_batches():
    federation = random_federation([60])
    problem = Problem(softmax(), penalties.none())
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5)), jnp.float32)
    features, labels = jnp.asarray(federation.features[0]), jnp.asarray(federation.labels[0])
    full = problem.loss.gradient(x, features, labels, jnp.full(60, 1 / 60))
    rng = np.random.default_rng(0)
    spread = []
    for _ in range(3000):
        rows = rng.integers(0, 60, 4)  # with replacement, to which the formula belongs
        spread.append(float(jnp.sum((problem.loss.gradient(x, features[rows], labels[rows], jnp.full(4, 0.25)) - full) ** 2)))
    assert gradient_variance(problem, federation, x, 4) == pytest.approx(np.mean(spread), rel=0.1)
    assert gradient_variance(problem, federation, x, 0) == 0


def test_stationarity_by_its_definition():
    federation = random_federation([5, 8])
    problem = Problem(logistic(), penalties.l1(0.3), beta=0.2)
    rng = np.random.default_rng(2)
    models, duals = (jnp.asarray(rng.normal(size=(2, 3, 5)), jnp.float32) for _ in range(2))
    x0 = jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)
    rho, expected = 2.0, 0.0
    for j, size in enumerate(federation.sizes):
        f, k = (jnp.asarray(a[j, :size]) for a in (federation.features, federation.labels))
        gradient = problem.loss.gradient(models[j], f, k, jnp.full(size, 1 / size))
        gradient += 0.2 * 2 * models[j] / (1 + models[j] ** 2) ** 2
        expected += float(jnp.sum((gradient - duals[j] + rho * (models[j] - x0)) ** 2) + jnp.sum((x0 - models[j]) ** 2))
    mean = np.asarray(jnp.mean(models - duals / rho, axis=0))
    expected += float(np.sum((x0 - np.sign(mean) * np.maximum(np.abs(mean) - 0.3 / rho, 0)) ** 2))
    data = [jnp.asarray(a) for a in (federation.features, federation.labels, federation.sizes)]
    assert float(stationarity(problem, rho, -duals, models, x0, *data)) == pytest.approx(expected, rel=1e-5)


def test_mean_of_the_measure_stays_below_the_bound_where_the_theorem_applies():
    federation = random_federation([30] * 4)
    problem = Problem(logistic(), penalties.l1(0.01), beta=0.5)
    tolerance = 1e-4
    plan = LocalPlan(3000, 0, 0.02, tolerance=tolerance)
    simulation = Simulation(Setup(problem, fedpdm(rho=12.0), plan), federation, Schedule(60, participants=4, diagnose_every=1))
    theory = analyse(problem, federation, rho=12.0, x0=simulation.state.server.x0, batch_size=0, tolerance=tolerance)
    assert theory.holds
    measures = [row["stationarity"] for row in simulation.run()]
    for rounds in (5, 20, 60):
        assert np.mean(measures[:rounds]) <= theory.bound(rounds)
    assert measures[-1] < 0.2 * measures[0]
    assert theory.bound(int(rounds_for(theory, 2 * theory.floor))) <= 2 * theory.floor
    assert rounds_for(theory, 0.5 * theory.floor) == np.inf


def test_with_noise_the_bound_counts_every_coordinate_and_the_theorem_does_not_apply():
    federation = random_federation([30] * 4)
    problem, x0 = Problem(logistic(), penalties.none()), jnp.zeros((3, 5))
    quiet, noisy = (
        analyse(problem, federation, rho=12.0, x0=x0, batch_size=0, tolerance=1e-4, noise=noise) for noise in (0.0, 0.5)
    )
    assert quiet.holds
    assert not noisy.holds
    assert noisy.bound(10) - quiet.bound(10) == pytest.approx(8 * 12.0 * 15 * 0.5)


def test_a_bound_outside_of_the_conditions_is_infinite_and_never_nan():
    problem, federation = Problem(logistic(), penalties.none()), random_federation([9])
    theory = analyse(problem, federation, rho=0.1, x0=jnp.zeros((3, 5)), batch_size=0, tolerance=0.0)
    assert theory.bound(10) == np.inf
    assert theory.floor == 0
    assert not theory.holds
    assert np.isnan(theory.smoothness_used)


def test_the_answer_names_what_stands_in_the_way_and_the_way_out():
    problem, federation, x0 = Problem(logistic(), penalties.none()), random_federation([9]), jnp.zeros((3, 5))
    bad = analyse(problem, federation, rho=0.1, x0=x0, batch_size=0, tolerance=0.0, noise=0.5)
    said = answer(bad, 10)
    assert said[0].startswith("Theorem 3 does not apply")
    assert [line.split()[1] for line in said[1:]] == ["algorithm.rho=0.1", "local.tolerance=0", "The"]
    needed = float(said[1].partition("above ")[2].partition(",")[0])
    good = analyse(problem, federation, rho=1.01 * needed, x0=x0, batch_size=0, tolerance=1e-4)
    assert good.holds, "the rho that the answer names is enough"
    assert answer(good, 10)[0].endswith(f"at most {good.bound(10):.4g}.")


@pytest.mark.parametrize("sizes", [(8,), (20,)])
def test_the_noise_of_a_message_is_the_noise_that_a_round_adds(sizes):
    federation = random_federation([sizes[0]] * 2)
    bound = lambda release: 1.0 / release.examples  # noqa: E731
    setup = Setup(Problem(softmax(), penalties.none()), fedpdm(rho=1.0), LocalPlan(3, 0, 0.1), sound(bound, 40.0))
    assert message_noise(setup, sizes[0], 0) == pytest.approx(2 * 40.0 / sizes[0])
    assert message_noise(setup._replace(privacy=no_privacy()), sizes[0], 0) == 0
    simulation = Simulation(setup, federation, Schedule(1, participants=2))
    list(simulation.run())
    assert float(simulation.state.noise) * 2**0.5 == pytest.approx(message_noise(setup, sizes[0], 0), rel=1e-5)
