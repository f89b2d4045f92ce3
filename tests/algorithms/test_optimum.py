"""Weighted consensus, exact local solves, the metric, the balance of rho: together they reach the central optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from fedpdm.algorithms import LocalPlan
from fedpdm.algorithms.base import Broadcast, Reports, element_wise_mean
from fedpdm.algorithms.newton import newton
from fedpdm.algorithms.primal_dual import balanced, fedpdm
from fedpdm.choices import ALGORITHMS, PENALTIES
from fedpdm.config import load_config
from fedpdm.data import federation_from_arrays
from fedpdm.engines.simulation import newton_steps
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.engines.simulation.state import Schedule
from fedpdm.errors import ConfigError
from fedpdm.problem import Problem, penalties, softmax
from fedpdm.problem.metric import prox_in_metric
from fedpdm.problem.objective import local_gradients, local_objectives
from fedpdm.rounds import Setup

OPTIONS = {"fedpdm": {"rho": 0.7, "server_rule": "dual-memory"}, "fedprox": {"mu": 0.3}, "feddyn": {"alpha": 0.4}}
OPTIONS |= {"feddr": {"rho": 0.7, "relaxation": 1.5}, "afedpd": {"rho": 0.7}}
SIZES = (6, 15, 40, 140)


def table(seed=0, columns=5):
    """Clients of very different sizes whose rows differ, with correlated columns."""
    rng = np.random.default_rng(seed)
    mixed = np.eye(columns) + 0.8
    arrays = []
    for place, size in enumerate(SIZES):
        rows = rng.normal(0.3 * place, 1, (size, columns)) @ mixed / columns
        labels = (rows @ np.linspace(-2, 2, columns) + rng.logistic(size=size) > 0.5).astype(int)
        arrays.append((np.column_stack([rows, np.ones(size)]).astype(np.float32), labels))
    return arrays


def federation_of(arrays):
    names = [f"x{i}" for i in range(arrays[0][0].shape[1] - 1)] + ["bias"]
    return federation_from_arrays(arrays, *arrays[-1], feature_names=names)


def central_value(arrays, penalty_value, model):
    features, labels = np.concatenate([a for a, _ in arrays]), np.concatenate([b for _, b in arrays])
    scores = features.astype(float) @ np.asarray(model, float).T
    return np.mean(np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(labels)), labels]) + penalty_value(model)


def test_newton_ends_at_the_minimum_that_scipy_finds():
    rows, labels = (jnp.asarray(part) for part in table()[2])
    loss, weights = softmax(), jnp.full(len(table()[2][1]), 1 / SIZES[2])

    def value(x):
        return jnp.sum(loss.values(x, rows, labels) * weights) + 0.005 * jnp.sum((x - 1) ** 2)

    x, steps = newton(value, jax.grad(value), jnp.full((2, 6), 3.0), 30, 1e-12)
    best = minimize(lambda flat: float(value(jnp.asarray(flat.reshape(2, 6), jnp.float32))), np.zeros(12), method="BFGS")
    assert float(jnp.sum(jax.grad(value)(x) ** 2)) <= 1e-12
    beyond, more = newton(value, jax.grad(value), jnp.full((2, 6), 3.0), 30, 0.0)  # rounding ends it, not the most steps
    assert int(more) <= int(steps) + 3
    assert float(jnp.sum(jax.grad(value)(beyond) ** 2)) <= 1e-12
    assert 0 < int(steps) < 30
    assert float(value(x)) <= best.fun + 1e-6


@pytest.mark.parametrize("penalty", [penalties.l1(0.2), penalties.group_lasso(0.2), penalties.box(-0.1, 0.4)])
def test_the_prox_in_a_metric_beats_every_point_around_it(penalty):
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4))
    metric, u = jnp.asarray(root @ root.T + 0.3 * np.eye(4), jnp.float32), jnp.asarray(rng.normal(size=(2, 4)), jnp.float32)
    x = prox_in_metric(penalty, u, 0.8, metric, jnp.zeros_like(u))

    def value(z):
        return penalty.value(z) + jnp.sum((z - u) * ((z - u) @ metric)) / 1.6

    others = x + jnp.asarray(rng.normal(size=(300, 2, 4)) * 10 ** rng.uniform(-3, 0, (300, 1, 1)), jnp.float32)
    assert bool(jnp.all(jax.vmap(value)(others) >= value(x) - 1e-5))


def test_rho_follows_the_residuals_and_comes_to_rest():
    def after(primal, dual, t=0, rho=0.1):
        return float(balanced(jnp.float32(rho), 0.1, jnp.int32(t), jnp.float32(primal), jnp.float32(dual)))

    assert after(1.0, 1.0) == pytest.approx(0.1)
    assert after(100.0, 1.0) == pytest.approx(0.2)
    assert after(1.0, 100.0) == pytest.approx(0.05)
    assert after(100.0, 1.0, rho=5.0) == pytest.approx(5.0)  # 50 times where it began
    assert after(100.0, 1.0, t=50) == pytest.approx(0.1)


@pytest.mark.parametrize("name", [row.name for row in ALGORITHMS.values()])
def test_every_algorithm_takes_shares_in_its_means(name):
    """A client with twice the share equals two clients with the same messages; equal shares change nothing."""
    algorithm = ALGORITHMS.row(name).build(OPTIONS.get(name, {}))
    rng = np.random.default_rng(0)
    x0, solutions = jnp.asarray(rng.normal(size=(2, 3))), jnp.asarray(rng.normal(size=(2, 2, 3)))

    def next_model(copies, shares):
        state = algorithm.init_server(x0, len(copies))
        broadcast = algorithm.broadcast(state)
        said = [
            algorithm.client_update(algorithm.init_client(x0), broadcast, solutions[i], jnp.float32(0.5))[1] for i in copies
        ]
        messages = jax.tree.map(lambda *leaves: jnp.stack(leaves), *said)
        reports = Reports(messages, jnp.arange(len(copies)), jnp.ones(len(copies), bool), travel=0.5, shares=shares)
        return algorithm.server_update(state, reports, penalties.l1(0.1)).x0

    np.testing.assert_allclose(next_model([0, 1], jnp.array([2 / 3, 1 / 3])), next_model([0, 0, 1], None), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(next_model([0, 1], jnp.array([0.5, 0.5])), next_model([0, 1], None), rtol=1e-5, atol=1e-6)


def test_a_mean_with_shares_leaves_out_who_is_absent():
    values = jnp.array([[1.0], [4.0], [100.0]])
    mean = element_wise_mean(values, jnp.array([True, True, False]), jnp.array([0.2, 0.1, 0.7]))
    np.testing.assert_allclose(mean, [2.0], rtol=1e-6)


def numpy_fedpdm(arrays, rho, gamma, rounds):
    """Weighted FedPDM with exact local solves, as docs/algorithms.md writes it, in float64."""
    shares = np.array(SIZES) / sum(SIZES)
    x0, duals = np.zeros((2, 6)), np.zeros((len(arrays), 2, 6))
    for _ in range(rounds):
        said = []
        for i, (rows, labels) in enumerate(arrays):
            hot = np.eye(2)[labels]

            def local(flat, rows=rows, hot=hot, i=i, x0=x0):
                x = flat.reshape(2, 6)
                scores = rows.astype(float) @ x.T
                total = np.logaddexp.reduce(scores, axis=1)
                slope = (np.exp(scores - total[:, None]) - hot).T @ rows / len(rows) - duals[i] + rho * (x - x0)
                value = np.mean(total - (scores * hot).sum(1)) - (duals[i] * x).sum() + rho / 2 * ((x - x0) ** 2).sum()
                return value, slope.ravel()

            x = minimize(local, x0.ravel(), jac=True, method="BFGS", options={"gtol": 1e-9}).x.reshape(2, 6)
            duals[i] += rho * (x0 - x)
            said.append(x - duals[i] / rho)
        u = np.tensordot(shares, said, 1)
        x0 = np.sign(u) * np.maximum(np.abs(u) - gamma / rho, 0)
    return x0


def test_weighted_fedpdm_is_the_plain_program():
    arrays, rho, gamma = table(), 0.3, 0.01
    setup = Setup(
        Problem(softmax()._replace(initial=lambda: jnp.zeros((2, 6))), penalties.l1(gamma)),
        fedpdm(rho=rho, server_rule="dual-memory"),
        LocalPlan(30, 0, 0.1, tolerance=1e-12, solver="newton"),
    )
    schedule = Schedule(rounds=4, participants=4, all_first=False, diagnose_every=0)
    shares = (np.array(SIZES) / sum(SIZES)).astype(np.float32)
    simulation = Simulation(setup, federation_of(arrays), schedule, shares=shares)
    list(simulation.run())
    np.testing.assert_allclose(simulation.model, numpy_fedpdm(arrays, rho, gamma, 4), atol=2e-4)


@pytest.mark.parametrize("penalty", ["l1", "group-lasso"])
def test_the_preset_reaches_the_central_optimum_and_says_so(penalty):
    """Objective within 0.1 % of the best that a long central descent finds, on the features that the model sees."""
    arrays = table()
    config = load_config("table", [f"problem.penalty={penalty}", "problem.gamma=0.01", "data.clients=4"])
    simulation = build_simulation(config, federation_of(arrays))
    rows = list(simulation.run())
    assert simulation.converged
    assert rows[-1]["round"] < config.rounds.total
    seen = simulation.federation
    standard = [(seen.features[i, :size], seen.labels[i, :size]) for i, size in enumerate(SIZES)]
    chosen = PENALTIES.row(penalty).build({"gamma": 0.01})
    best = central_optimum(standard, chosen)
    found = central_value(standard, lambda x: float(chosen.value(jnp.asarray(x))), simulation.model)
    assert rows[-1]["objective"] == pytest.approx(found, rel=1e-5)
    assert found <= best * 1.001
    assert simulation.federation.standard is not None
    raw, folded = np.concatenate([a for a, _ in arrays]), simulation.federation.standard.fold(simulation.model)
    mapped = np.concatenate([a for a, _ in standard]) @ simulation.model.T
    np.testing.assert_allclose(raw @ folded.T, mapped, atol=1e-3)


def central_optimum(arrays, penalty):
    """By accelerated proximal gradient steps on all rows."""
    features = jnp.asarray(np.concatenate([a for a, _ in arrays]))
    labels = jnp.asarray(np.concatenate([b for _, b in arrays]))
    weights = jnp.full(len(labels), 1 / len(labels))
    step = 2.0 / float(np.linalg.norm(np.asarray(features), 2) ** 2 / len(labels))

    def body(t, carry):
        x, z = carry
        new = penalty.prox(z - step * softmax().gradient(z, features, labels, weights), step)
        return new, new + t / (t + 3) * (new - x)

    x = jax.lax.fori_loop(0, 3000, body, (jnp.zeros((max(b.max() for _, b in arrays) + 1, features.shape[1])),) * 2)[0]
    return central_value(arrays, lambda x: float(penalty.value(jnp.asarray(x))), x)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["privacy.mechanism=sound", "privacy.epsilon=1.0"], "private-table"),
        (["rounds.participants=3"], "set it to 0"),
        (["problem.penalty=mcp"], "algorithm.metric=.* and algorithm.newton=false"),
        (["problem.beta=0.1"], "algorithm.newton=false"),
        (["metrics.diagnose_every=0"], "metrics.diagnose_every"),
        (["local.tolerance=0.0"], "local.tolerance"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_way_out(settings, said):
    with pytest.raises(ConfigError, match=said):
        load_config("table", settings)


def test_a_broadcast_carries_the_weight_of_its_round():
    algorithm = fedpdm(rho=0.5, server_rule="dual-memory", adaptive=True)
    state = algorithm.init_server(jnp.zeros((2, 3)), 4)._replace(rho=jnp.float32(2.0))
    broadcast = algorithm.broadcast(state)
    assert isinstance(broadcast, Broadcast)
    assert float(broadcast.weight) == 2.0
    client, y = algorithm.client_update(algorithm.init_client(jnp.zeros((2, 3))), broadcast, jnp.ones((2, 3)), jnp.float32(1))
    np.testing.assert_allclose(client.dual, -2.0)
    np.testing.assert_allclose(y, 2.0)


def tiny_clients():
    """Sixty clients with one to four rows of three classes, one of which is rare."""
    rng, arrays = np.random.default_rng(3), []
    for _ in range(60):
        rows = rng.normal(rng.normal(), 1, (rng.integers(1, 5), 7)).astype(np.float32)
        rows[:, -1] = 1
        arrays.append((rows, rng.choice(3, len(rows), p=[0.6, 0.35, 0.05])))
    return arrays


@pytest.mark.parametrize("persons", [False, True])
def test_the_sums_of_a_newton_step_are_the_derivatives_of_the_objective(persons):
    federation, rng = federation_of(tiny_clients()), np.random.default_rng(0)
    if persons:
        counts = rng.integers(1, 4, federation.labels.shape).astype(np.float32)
        federation = federation._replace(weights=1 / counts, persons=federation.sizes + 1)
    shares = (federation.sizes / federation.sizes.sum()).astype(np.float32)
    problem, x = Problem(softmax(), penalties.l1(0.01)), rng.normal(size=(3, 7)).astype(np.float32)
    rows = federation.features, federation.labels, federation.sizes, federation.weights, federation.persons

    def mean_loss(flat):
        return jnp.dot(shares, local_objectives(problem, flat.reshape(3, 7), *rows))

    with jax.enable_x64(True):
        sums = newton_steps._Sums(problem, federation, shares)
        value, gradient, curvature = sums.quadratic(x.astype(np.float64))
        each = sums.of_clients(x.astype(np.float64))
    assert value == pytest.approx(float(mean_loss(x.ravel())), rel=1e-5)
    np.testing.assert_allclose(gradient.ravel(), jax.grad(mean_loss)(x.ravel()), atol=1e-5)
    np.testing.assert_allclose(curvature, jax.hessian(mean_loss)(x.ravel()), atol=1e-5)
    np.testing.assert_allclose(each, local_gradients(problem, jnp.stack([x] * 60), *rows), atol=1e-5)


def test_newton_steps_of_the_server_end_the_wait_for_tiny_clients():
    def run(*more):
        config = load_config("table", ["data.clients=60", "problem.gamma=0.001", "rounds.total=30", *more])
        simulation = build_simulation(config, federation_of(tiny_clients()))
        return simulation, list(simulation.run())

    slow, _ = run("algorithm.newton=false")
    simulation, rows = run()
    assert simulation.converged
    assert not slow.converged
    assert [row["round"] for row in rows if "newton_steps" in row] == [11]
    seen = simulation.federation
    standard = [(seen.features[i, :size], seen.labels[i, :size]) for i, size in enumerate(seen.sizes)]
    best = central_optimum(standard, penalties.l1(0.001))
    assert rows[-1]["objective"] <= best * (1 + 1e-5)
    # a curvature has 21 * 22 / 2 numbers, and every client sent at least one; a round has 21
    assert rows[10]["uplink_bytes"] - rows[9]["uplink_bytes"] >= 60 * 4 * (21 * 22 // 2 + 2 * 21)
