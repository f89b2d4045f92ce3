"""The algorithms against their papers' equations: a plain second implementation, rounds by hand, and identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_federation

from fedpdm.algorithms import (
    Broadcast,
    Examples,
    LocalPlan,
    Reports,
    afedpd,
    fedavg,
    feddr,
    feddyn,
    fedpdm,
    fedprox,
    scaffold,
)
from fedpdm.engines.simulation.simulation import Schedule, Simulation
from fedpdm.errors import ConfigError
from fedpdm.problem import Problem, logistic, penalties, softmax
from fedpdm.rounds import Setup, client_round, server_round

KEY = jax.random.key(0)
STRENGTH, STEP, STEPS = 0.01, 0.3, 4


def simulate(algorithm, participants=2, rounds=7, penalty=None, **schedule) -> Simulation:
    setup = Setup(Problem(softmax(), penalty or penalties.l1(STRENGTH)), algorithm, LocalPlan(STEPS, 0, STEP))
    federation = random_federation([20, 7, 13, 30, 9])
    return Simulation(setup, federation, Schedule(rounds, participants, **schedule))


def gradient(model, features, labels):
    scores = features @ model.T
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    slopes = scores / scores.sum(axis=1, keepdims=True) - np.eye(len(model))[labels]
    return slopes.T @ features / len(labels)


def shrink(x, threshold):
    return np.sign(x) * np.maximum(np.abs(x) - threshold, 0)


def plainly(name, x0, clients, rounds, weight):
    """Client by client and step by step, in float64, straight from each paper; `clients` is a list of (features, labels)."""
    n = len(clients)
    own = [np.zeros_like(x0) for _ in range(n)]  # c_i of SCAFFOLD, h_i of FedDyn, lambda_i of FedPDM
    common = np.zeros_like(x0)  # c of SCAFFOLD, h of FedDyn
    for chosen in rounds:
        ends, changes = [], []
        for i in chosen:
            x = x0.copy()
            for _ in range(STEPS):
                g = gradient(x, *clients[i])
                correction = common if name == "scaffold" else weight * (x - x0)
                x = x - STEP * (g - own[i] + correction)
            if name == "scaffold":
                new = own[i] - common + (x0 - x) / (STEPS * STEP)
                changes.append(new - own[i])
                own[i] = new
            if name == "feddyn":
                own[i] = own[i] - weight * (x - x0)
            if name == "fedpdm":
                own[i] = own[i] + weight * (x0 - x)
                x = x - own[i] / weight
            ends.append(x)
        mean = sum(ends) / len(ends)
        if name == "fedavg":
            x0 = shrink(mean, STRENGTH * STEP * STEPS)
        elif name == "fedprox":
            x0 = shrink(mean, STRENGTH * (1 - (1 - weight * STEP) ** STEPS) / weight)
        elif name == "scaffold":
            x0 = shrink(mean, STRENGTH * STEP * STEPS)
            common = common + sum(changes) / n
        elif name == "feddyn":
            common = common - weight / n * sum(x - x0 for x in ends)
            x0 = shrink(mean - common / weight, STRENGTH / weight)
        else:
            x0 = shrink(mean, STRENGTH / weight)
    return x0


def plain_data(simulation):
    """The clients' rows, the participants of each round, and the first model, in float64."""
    federation = simulation.federation
    clients = [
        (federation.features[i, :size].astype(np.float64), federation.labels[i, :size])
        for i, size in enumerate(federation.sizes)
    ]
    rounds = [chosen.tolist() for chosen, _ in simulation._roster]
    return clients, rounds, simulation.model.astype(np.float64)


@pytest.mark.parametrize(
    ("algorithm", "weight"),
    [(fedavg(), 0.0), (fedprox(mu=0.7), 0.7), (scaffold(), 0.0), (feddyn(alpha=0.7), 0.7), (fedpdm(rho=0.7), 0.7)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_plain_second_implementation_gives_the_same_model(algorithm, weight):
    simulation = simulate(algorithm)
    clients, rounds, start = plain_data(simulation)
    assert len(rounds[0]) == 5
    assert len(rounds[1]) == 2
    list(simulation.run())
    expected = plainly(algorithm.name, start, clients, rounds, weight)
    np.testing.assert_allclose(simulation.model, expected, atol=2e-5)
    assert np.abs(expected - start).max() > 0.1


def solved(x0, client, linear, weight):
    """The local steps of a client."""
    x = x0.copy()
    for _ in range(STEPS):
        x = x - STEP * (gradient(x, *client) + linear + weight * (x - x0))
    return x


def feddr_plainly(x0, clients, rounds, weight, relaxation):
    """Algorithm 1 of FedDR: the clients send changes, and the server adds them up."""
    y, x, sent = ([x0] * len(clients) for _ in range(3))
    total = x0
    for chosen in rounds:
        changes = []
        for i in chosen:
            y[i] = y[i] + relaxation * (x0 - x[i])
            x[i] = solved(x0, clients[i], weight * (x0 - y[i]), weight)
            changes.append(2 * x[i] - y[i] - sent[i])
            sent[i] = 2 * x[i] - y[i]
        total = total + sum(changes) / len(clients)
        x0 = shrink(total, STRENGTH / weight)
    return x0


def afedpd_plainly(x0, clients, rounds, weight, published):
    """A-FedPD: duals at the server as published, or each client's own part with one broadcast."""
    n = len(clients)
    duals, own, mean_dual = [np.zeros_like(x0)] * n, [np.zeros_like(x0)] * n, np.zeros_like(x0)
    for chosen in rounds:
        shift = mean_dual - sum(own) / n
        ends = {i: solved(x0, clients[i], duals[i] if published else own[i] + shift, weight) for i in chosen}
        mean = sum(ends.values()) / len(ends)
        duals = [dual + weight * (ends.get(i, mean) - x0) for i, dual in enumerate(duals)]
        own = [part + (weight * (ends[i] - x0) if i in ends else 0) for i, part in enumerate(own)]
        mean_dual = mean_dual + weight * (mean - x0)
        np.testing.assert_allclose(sum(duals) / n, mean_dual, atol=1e-12)
        x0 = shrink(mean + mean_dual / weight, STRENGTH / weight)
    return x0


@pytest.mark.parametrize(
    ("algorithm", "participants", "reference"),
    [
        (feddr(rho=0.7, relaxation=1.6), 2, lambda *given: feddr_plainly(*given, 0.7, 1.6)),
        (afedpd(rho=0.7), 2, lambda *given: afedpd_plainly(*given, 0.7, published=False)),
        (afedpd(rho=0.7), 5, lambda *given: afedpd_plainly(*given, 0.7, published=True)),
    ],
    ids=["FedDR", "A-FedPD by broadcast", "A-FedPD as published, with all clients"],
)
def test_a_second_implementation_of_the_splitting_methods(algorithm, participants, reference):
    simulation = simulate(algorithm, participants)
    clients, rounds, start = plain_data(simulation)
    list(simulation.run())
    expected = reference(start, clients, rounds)
    np.testing.assert_allclose(simulation.model, expected, atol=3e-5)
    assert np.abs(expected - start).max() > 0.1


def one_example(a) -> Examples:
    return Examples(jnp.full((1, 1, 1), a), jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32), jnp.int32(0))


def by_hand(algorithm, server_state, client_states):
    """One full-batch logistic step of size 0.5 for two of four clients with the features 1 and -2, and the server's answer."""
    setup = Setup(Problem(logistic(), penalties.l1(0.2)), algorithm, LocalPlan(1, 0, 0.5))
    broadcast = algorithm.broadcast(server_state)
    results = [
        client_round(setup, one_example(a), state, broadcast, 0, KEY)
        for a, state in zip((1.0, -2.0), client_states, strict=True)
    ]
    messages = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[r.message for r in results])
    reports = Reports(messages, jnp.array([0, 2]), jnp.ones(2, bool), travel=0.5)
    return [r.state for r in results], server_round(setup, server_state, broadcast, reports)


# x0 = 1: the gradients are -sigmoid(-1) = -0.2689414 and 2 sigmoid(2) = 1.7615942.
GRADIENTS = (-0.26894143, 1.76159416)
X0 = jnp.ones((1, 1))


def test_fedavg_by_hand():
    _, server = by_hand(fedavg(), fedavg().init_server(X0, 4), [(), ()])
    # ends 1.1344707 and 0.1192029, mean 0.6268368, threshold 0.2 * 0.5
    assert float(server.x0[0, 0]) == pytest.approx(0.5268368, abs=1e-6)


def test_scaffold_by_hand():
    algorithm = scaffold()
    server = algorithm.init_server(X0, 4)._replace(control=jnp.full((1, 1), 0.3))
    clients = [algorithm.init_client(X0)._replace(control=jnp.full((1, 1), c)) for c in (0.1, -0.4)]
    states, after = by_hand(algorithm, server, clients)
    ends = [1 - 0.5 * (g - c + 0.3) for g, c in zip(GRADIENTS, (0.1, -0.4), strict=True)]
    controls = [c - 0.3 + (1 - x) / 0.5 for c, x in zip((0.1, -0.4), ends, strict=True)]
    np.testing.assert_allclose([float(s.control[0, 0]) for s in states], controls, atol=1e-6)
    np.testing.assert_allclose(controls, GRADIENTS, atol=1e-6)  # one step: the control variate is the gradient met
    assert float(after.x0[0, 0]) == pytest.approx(sum(ends) / 2 - 0.1, abs=1e-6)
    assert float(after.control[0, 0]) == pytest.approx(0.3 + (controls[0] - 0.1 + controls[1] + 0.4) / 4, abs=1e-6)


def test_feddyn_by_hand():
    algorithm = feddyn(alpha=0.8)
    server = algorithm.init_server(X0, 4)._replace(slope=jnp.full((1, 1), 0.05))
    clients = [algorithm.init_client(X0)._replace(slope=jnp.full((1, 1), h)) for h in (0.1, -0.4)]
    states, after = by_hand(algorithm, server, clients)
    ends = [1 - 0.5 * (g - h) for g, h in zip(GRADIENTS, (0.1, -0.4), strict=True)]
    slopes = [h - 0.8 * (x - 1) for h, x in zip((0.1, -0.4), ends, strict=True)]
    np.testing.assert_allclose([float(s.slope[0, 0]) for s in states], slopes, atol=1e-6)
    h = 0.05 - 0.8 / 4 * (ends[0] - 1 + ends[1] - 1)
    centre = sum(ends) / 2 - h / 0.8
    assert float(after.slope[0, 0]) == pytest.approx(h, abs=1e-6)
    assert float(after.x0[0, 0]) == pytest.approx(np.sign(centre) * max(abs(centre) - 0.2 / 0.8, 0), abs=1e-6)


def models(*algorithms, **options):
    results = []
    for algorithm in algorithms:
        simulation = simulate(algorithm, **options)
        list(simulation.run())
        results.append(simulation.model)
    return results


def test_fedprox_without_its_term_is_fedavg():
    plain, proximal = models(fedavg(), fedprox(mu=0.0))
    np.testing.assert_array_equal(plain, proximal)


def test_fedpdm_with_everybody_is_feddyn():
    primal_dual, dynamic = models(fedpdm(rho=0.7), feddyn(alpha=0.7), participants=5, penalty=penalties.none(), rounds=15)
    np.testing.assert_allclose(primal_dual, dynamic, atol=1e-5)


def test_feddyn_is_fedpdm_that_remembers_the_duals():
    """Also with few participants and a penalty: the mean of x over those present, of the dual over all."""
    remembering, dynamic = models(fedpdm(rho=0.7, server_rule="dual-memory"), feddyn(alpha=0.7), rounds=15)
    np.testing.assert_allclose(remembering, dynamic, atol=1e-5)


def test_feddr_without_relaxation_is_fedpdm_with_the_cached_rule():
    """Also with few participants and a penalty."""
    splitting, primal_dual = models(feddr(rho=0.7, relaxation=1.0), fedpdm(rho=0.7, server_rule="cached"), rounds=15)
    np.testing.assert_allclose(splitting, primal_dual, atol=1e-5)


def test_scaffold_with_everybody_and_one_step_is_gradient_descent():
    setup = Setup(Problem(softmax(), penalties.none()), scaffold(), LocalPlan(1, 0, STEP))
    simulation = Simulation(setup, random_federation([20, 7, 13]), Schedule(6, 3))
    plain = Simulation(setup._replace(algorithm=fedavg()), random_federation([20, 7, 13]), Schedule(6, 3))
    for run in (simulation, plain):
        list(run.run())
    np.testing.assert_allclose(simulation.model, plain.model, atol=1e-5)


def test_silence_means_no_change():
    """A message that equals `silent` moves neither model nor memory."""
    for algorithm in (
        fedavg(),
        fedprox(mu=0.1),
        scaffold(),
        feddyn(alpha=0.5),
        fedpdm(rho=0.5),
        feddr(rho=0.5),
        afedpd(rho=0.5),
    ):
        server = algorithm.init_server(X0, 3)
        silent = algorithm.silent(algorithm.broadcast(server))
        reports = Reports(jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), silent), jnp.arange(2), jnp.ones(2, bool))
        after = algorithm.server_update(server, reports, penalties.none())
        jax.tree.map(np.testing.assert_array_equal, after, server)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fedprox(mu=-1.0), "algorithm.mu=-1.0"),
        (lambda: feddyn(alpha=0.0), "algorithm.alpha=0.0"),
        (lambda: afedpd(rho=0.0), "algorithm.rho=0.0"),
        (lambda: feddr(rho=1.0, relaxation=2.0), "algorithm.relaxation=2.0"),
    ],
)
def test_weights_out_of_range_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_broadcast_of_scaffold_holds_both_vectors():
    server = scaffold().init_server(X0, 2)
    assert len(jax.tree.leaves(scaffold().broadcast(server))) == 2
    assert len(jax.tree.leaves(fedavg().broadcast(fedavg().init_server(X0, 2)))) == 1
    assert isinstance(scaffold().broadcast(server), Broadcast)


def test_the_penalty_by_subgradient_is_a_step_of_every_client_and_not_of_the_server():
    """One step of FedAvg by hand: x0 - eta (mean gradient + gamma sign(x0)); and no exact zeros, where the prox has some."""
    federation = random_federation([20, 7, 13])
    runs = {}
    for by in ("prox", "subgradient"):
        problem = Problem(softmax(), penalties.l1(0.05), penalty_by=by)
        setup = Setup(problem, fedavg(), LocalPlan(1, 0, STEP))
        simulation = Simulation(setup, federation, Schedule(1, 3))
        x0 = np.asarray(simulation.model, np.float64)
        simulation.advance()
        runs[by] = simulation.model
    parts = zip(federation.features, federation.labels, federation.sizes, strict=True)
    mean = np.mean([gradient(x0, a[:n].astype(np.float64), y[:n]) for a, y, n in parts], axis=0)
    np.testing.assert_allclose(runs["subgradient"], x0 - STEP * (mean + 0.05 * np.sign(x0)), atol=1e-6)
    np.testing.assert_allclose(runs["prox"], shrink(x0 - STEP * mean, STEP * 0.05), atol=1e-6)
    assert (runs["prox"] == 0).any()
    assert (runs["subgradient"] != 0).all()
