"""FedPDM: closed forms, a round by hand, the three server rules, and the centralised optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from conftest import random_federation

from fedpdm.algorithms import Broadcast, Examples, LocalPlan, Reports, fedpdm
from fedpdm.algorithms.local import solve, step_size_at
from fedpdm.data import labels_per_client, load_dataset, make_federation
from fedpdm.engines.simulation.simulation import Schedule, Simulation
from fedpdm.errors import ConfigError
from fedpdm.problem import Loss, Problem, logistic, penalties, softmax
from fedpdm.rounds import Setup, client_round, server_round

NO_KEY = jax.random.key(0)


def one_client(features, labels) -> Examples:
    features = jnp.asarray(features, jnp.float32)
    return Examples(features[None], jnp.asarray(labels)[None], jnp.array([len(labels)]), jnp.int32(0))


def constant_gradient(gradient) -> Loss:
    """A linear loss, so that the mean gradient met is known exactly."""
    return Loss(
        "linear",
        values=lambda model, features, labels: jnp.sum(model * gradient) * jnp.ones(len(labels)),
        gradient=lambda model, features, labels, weights: jnp.sum(weights) * gradient,
        scores=lambda model, features: features @ model.T,
        gradient_bound=lambda radius: float("inf"),
        smoothness=lambda radius: 0.0,
    )


@pytest.mark.parametrize(("rho", "eta", "steps"), [(10.0, 0.04, 10), (0.5, 0.9, 3), (2.0, 0.5, 7)])
def test_closed_form_of_the_local_solve(rho, eta, steps):
    """lambda' = kappa lambda + (1 - kappa) g and y = x0 + ((1 - 2 kappa) lambda - 2 (1 - kappa) g)/rho."""
    rng = np.random.default_rng(0)
    x0, dual, gradient = (jnp.asarray(rng.normal(size=(2, 3)), jnp.float32) for _ in range(3))
    problem = Problem(constant_gradient(gradient), penalties.none())
    algorithm = fedpdm(rho=rho)
    setup = Setup(problem, algorithm, LocalPlan(steps, 2, eta))
    state = algorithm.init_client(x0)._replace(dual=dual)
    result = client_round(setup, one_client(np.ones((6, 3)), np.zeros(6, int)), state, Broadcast(x0), 0, NO_KEY)
    kappa = (1 - rho * eta) ** steps
    np.testing.assert_allclose(result.state.dual, kappa * dual + (1 - kappa) * gradient, rtol=1e-5, atol=1e-5)
    expected = x0 + ((1 - 2 * kappa) * dual - 2 * (1 - kappa) * gradient) / rho
    np.testing.assert_allclose(result.message, expected, rtol=1e-5, atol=1e-5)


def test_two_client_round_by_hand():
    """Scalars worked out on paper: two clients, one logistic example each, one step, then the soft threshold."""
    rho, eta, gamma = 10.0, 0.04, 2.0
    algorithm = fedpdm(rho=rho)
    setup = Setup(Problem(logistic(), penalties.l1(gamma), beta=0.5), algorithm, LocalPlan(1, 0, eta))
    x0 = jnp.array([[0.5]])
    messages = []
    for a, dual in [(1.0, 0.2), (-2.0, -0.1)]:
        state = algorithm.init_client(x0)._replace(dual=jnp.array([[dual]]))
        result = client_round(setup, one_client([[a]], [0]), state, Broadcast(x0), 0, NO_KEY)
        gradient = -a / (1 + np.exp(0.5 * a)) + 0.5 * (2 * 0.5 / 1.25**2)
        x = 0.5 - eta * (gradient - dual)
        new_dual = dual + rho * (0.5 - x)
        assert float(result.state.dual[0, 0]) == pytest.approx(new_dual, rel=1e-5)
        assert float(result.message[0, 0]) == pytest.approx(x - new_dual / rho, rel=1e-5)
        messages.append(result.message)
    reports = Reports(jnp.stack(messages), jnp.arange(2), jnp.ones(2, bool))
    server = server_round(setup, algorithm.init_server(x0, 2), Broadcast(x0), reports)
    mean = float(messages[0][0, 0] + messages[1][0, 0]) / 2
    assert float(server.x0[0, 0]) == pytest.approx(np.sign(mean) * max(abs(mean) - gamma / rho, 0), rel=1e-5)


def test_server_rules_agree_under_full_participation():
    federation = random_federation([10, 10, 10, 10])
    models = {}
    for rule in ("participants", "cached", "dual-memory"):
        setup = Setup(Problem(softmax(), penalties.l1(0.01)), fedpdm(rho=1.0, server_rule=rule), LocalPlan(3, 0, 0.3))
        simulation = Simulation(setup, federation, Schedule(rounds=12, participants=4))
        list(simulation.run())
        models[rule] = simulation.model
    np.testing.assert_allclose(models["cached"], models["participants"], atol=1e-5)
    np.testing.assert_allclose(models["dual-memory"], models["participants"], atol=1e-5)


def test_dual_memory_recomputes_the_clients_duals_from_their_messages():
    federation = random_federation([10] * 6)
    algorithm = fedpdm(rho=2.0, server_rule="dual-memory")
    setup = Setup(Problem(softmax(), penalties.l1(0.01)), algorithm, LocalPlan(3, 2, 0.2))
    simulation = Simulation(setup, federation, Schedule(rounds=15, participants=2, all_first=False))
    list(simulation.run())
    np.testing.assert_allclose(simulation.state.server.memory, simulation.state.clients.dual, atol=1e-5)


def test_an_absent_client_changes_nothing():
    algorithm = fedpdm(rho=1.0, server_rule="cached")
    x0 = jnp.ones((2, 2))
    state = algorithm.init_server(x0, 3)
    y = jnp.stack([jnp.full((2, 2), 4.0), jnp.full((2, 2), jnp.nan)])
    after = algorithm.server_update(state, Reports(y, jnp.array([0, 2]), jnp.array([True, False])), penalties.none())
    np.testing.assert_allclose(after.x0, (4.0 + 1 + 1) / 3)
    setup = Setup(Problem(softmax(), penalties.l1(9.0)), algorithm, LocalPlan(1, 0, 0.1))
    nobody = server_round(setup, state, Broadcast(x0), Reports(y, jnp.array([0, 2]), jnp.zeros(2, bool)))
    np.testing.assert_array_equal(nobody.x0, x0)


def test_reaches_the_centralised_optimum_on_digits():
    dataset = load_dataset("digits")
    parts = labels_per_client(dataset.labels, 10, labels_per_client=4, seed=0)
    federation = make_federation(dataset, parts)
    ridge = 0.01
    problem = Problem(softmax(), penalties.l2(ridge))
    setup = Setup(problem, fedpdm(rho=0.3), LocalPlan(20, 0, 0.3))
    simulation = Simulation(setup, federation, Schedule(rounds=300, participants=10, diagnose_every=100))
    rows = list(simulation.run())

    weights = np.concatenate([np.full(len(p), 1 / len(p) / len(parts)) for p in parts])
    features, labels = dataset.features[np.concatenate(parts)], dataset.labels[np.concatenate(parts)]

    def objective(flat):
        model = flat.reshape(10, -1)
        scores = features.astype(float) @ model.T
        scores -= scores.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(scores).sum(axis=1))
        slopes = np.exp(scores - log_sum[:, None]) - np.eye(10)[labels]
        value = np.sum(weights * (log_sum - scores[np.arange(len(labels)), labels])) + ridge / 2 * flat @ flat
        return value, ((slopes * weights[:, None]).T @ features + ridge * model).ravel()

    best = scipy.optimize.minimize(objective, np.zeros(10 * 65), jac=True, method="L-BFGS-B", options={"maxiter": 2000})
    assert rows[-1]["objective"] == pytest.approx(best.fun, rel=1e-3)
    assert rows[-1]["objective"] >= best.fun * (1 - 1e-4)
    assert np.linalg.norm(simulation.model.ravel() - best.x) < 0.05 * np.linalg.norm(best.x)


def test_a_fixed_point_is_where_the_stationarity_measure_vanishes():
    federation = random_federation([30, 30, 30])
    setup = Setup(Problem(softmax(), penalties.l1(0.02)), fedpdm(rho=0.5), LocalPlan(30, 0, 0.4))
    simulation = Simulation(setup, federation, Schedule(rounds=400, participants=3, diagnose_every=50))
    rows = [row for row in simulation.run() if "stationarity" in row]
    assert rows[-1]["stationarity"] < 1e-8 < rows[0]["stationarity"]
    gradient = jax.grad(
        lambda x: jnp.mean(
            jnp.stack(
                [
                    jnp.mean(softmax().values(x, jnp.asarray(f), jnp.asarray(k)))
                    for f, k in zip(federation.features, federation.labels, strict=True)
                ]
            )
        )
    )(jnp.asarray(simulation.model))
    distance = setup.problem.penalty.subdifferential_distance(jnp.asarray(simulation.model), gradient)
    assert float(jnp.max(distance)) < 1e-3


def test_tolerance_stops_after_the_first_small_direction_and_the_cap_holds():
    gradient = jnp.ones((1, 2))
    problem = Problem(constant_gradient(gradient), penalties.none())
    examples = one_client(np.ones((8, 2)), np.zeros(8, int))
    x0 = jnp.zeros((1, 2))

    def steps(tolerance, cap):
        plan = LocalPlan(cap, 0, 0.5, tolerance=tolerance)
        return int(solve(problem, plan, examples, x0, 0.0, 1.0, step_size_at(plan, 0), NO_KEY)[1].steps)

    # The direction halves at each step from norm^2 = 2: 2, 0.5, 0.125, 0.03125, ...
    assert [steps(2.0, 50), steps(0.5, 50), steps(0.04, 50), steps(1e-9, 5)] == [1, 2, 4, 5]


def test_clients_that_stop_early_are_not_moved_on_by_slower_ones():
    """Under vmap everybody runs as long as the slowest: the finished ones must stay as they are."""
    federation = random_federation([20, 20])
    problem = Problem(softmax(), penalties.none())
    plan = LocalPlan(40, 0, 0.3, tolerance=0.01)
    x0 = jnp.ones((3, 5)) * jnp.arange(3)[:, None]

    def alone(client):
        examples = Examples(
            jnp.asarray(federation.features), jnp.asarray(federation.labels), jnp.asarray(federation.sizes), client
        )
        return solve(problem, plan, examples, x0, 5.0 * client, 1.0, jnp.float32(0.3), NO_KEY)

    both, info = jax.vmap(alone)(jnp.arange(2))
    assert int(info.steps[0]) != int(info.steps[1])
    for client in range(2):
        np.testing.assert_allclose(both[client], alone(jnp.int32(client))[0], atol=1e-6)


def test_batches_of_a_round_are_disjoint_and_never_touch_padding():
    federation = random_federation([12, 7])
    seen = []

    def spy(model, features, labels, weights):
        jax.debug.callback(lambda f: seen.append(np.asarray(f)), features)
        return jnp.zeros_like(model)

    problem = Problem(softmax()._replace(gradient=spy), penalties.none())
    for client, size in [(0, 12), (1, 7)]:
        seen.clear()
        data = [jnp.asarray(a) for a in (federation.features, federation.labels, federation.sizes)]
        examples = Examples(data[0], data[1], data[2], jnp.int32(client))
        plan = LocalPlan(size // 3, 3, 0.1)
        solve(problem, plan, examples, jnp.zeros((3, 5)), 0.0, 1.0, jnp.float32(0.1), jax.random.key(3))
        jax.effects_barrier()
        rows = np.concatenate(seen)
        own = {tuple(row) for row in federation.features[client, :size]}
        drawn = [tuple(row) for row in rows]
        assert len(set(drawn)) == len(drawn) == (size // 3) * 3
        assert set(drawn) <= own


@pytest.mark.parametrize("rho", [0.0, -1.0, float("nan")])
def test_rho_must_be_positive(rho):
    with pytest.raises(ConfigError, match="rho"):
        fedpdm(rho=rho)
