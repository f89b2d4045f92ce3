"""Aggregates combine what arrived by weight, withstand their share of hostile clients, and serve every algorithm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.algorithms import Reports, fedpdm, scaffold
from fedpdm.algorithms.aggregate import element_wise_mean, geometric_median, median, trimmed_mean
from fedpdm.choices import AGGREGATES, ALGORITHMS
from fedpdm.config import load_config
from fedpdm.errors import ConfigError
from fedpdm.problem import penalties
from fedpdm.setup.build import build_algorithm

RNG = np.random.default_rng(0)
ROBUST = [name for name in AGGREGATES if name != "mean"]
OPTIONS = {
    "fedprox": {"mu": 0.5},
    "feddyn": {"alpha": 1.0},
    "fedpdm": {"rho": 1.0},
    "feddr": {"rho": 1.0},
    "afedpd": {"rho": 1.0},
}


def made(name):
    return AGGREGATES.row(name).build()


def test_trimmed_mean_and_median_are_those_of_numpy():
    values = RNG.normal(size=(20, 3, 4)).astype(np.float32)
    here = jnp.ones(20, bool)
    trimmed = np.sort(values, axis=0)[2:-2].mean(axis=0)
    np.testing.assert_allclose(trimmed_mean(trim=0.1)(values, here), trimmed, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(median()(values, here), np.median(values, axis=0), rtol=1e-6)
    np.testing.assert_allclose(median()(values[:7], here[:7]), np.median(values[:7], axis=0), rtol=1e-6)


def test_the_geometric_median_has_the_least_sum_of_distances():
    values = RNG.normal(size=(9, 5)).astype(np.float32)
    shares = RNG.uniform(0.5, 2.0, 9).astype(np.float32)

    def total(point):
        return float(np.sum(shares * np.linalg.norm(values - point, axis=1)))

    best = np.asarray(geometric_median()(values, jnp.ones(9, bool), shares))
    others = best + 10.0 ** RNG.uniform(-3, 0, (200, 1)) * RNG.normal(size=(200, 5))
    assert total(best) <= min(map(total, others)) + 1e-5


@pytest.mark.parametrize("name", AGGREGATES)
def test_a_weight_is_a_number_of_copies_and_what_is_absent_does_not_count(name):
    aggregate, values = made(name), RNG.normal(size=(4, 6)).astype(np.float32)
    copies = np.repeat(values, [1, 3, 2, 1], axis=0)
    once = aggregate(values, jnp.ones(4, bool), jnp.array([1.0, 3.0, 2.0, 1.0]))
    np.testing.assert_allclose(once, aggregate(copies, jnp.ones(7, bool)), rtol=1e-4, atol=1e-5)
    more = np.concatenate([values, np.full((2, 6), 1e6, np.float32)])
    here = jnp.array([True] * 4 + [False] * 2)
    np.testing.assert_allclose(aggregate(more, here), aggregate(values, jnp.ones(4, bool)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", AGGREGATES)
def test_sparse_messages_are_combined_coordinate_by_coordinate(name):
    aggregate, values = made(name), np.full((5, 3), 2.0, np.float32)
    sent = jnp.array([[True, True, False]] * 3 + [[True, False, False]] * 2)
    found = aggregate(jnp.where(sent, values, 7e5), sent)
    np.testing.assert_allclose(found, [2.0, 2.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("name", ROBUST)
def test_hostile_clients_below_the_share_cannot_move_it_out_of_the_others(name):
    aggregate, honest = made(name), RNG.normal(size=(27, 8)).astype(np.float32)
    for size in (1.0, 1e3, 1e6):
        values = np.concatenate([honest, np.full((3, 8), size, np.float32)])
        found = np.asarray(aggregate(values, jnp.ones(30, bool)))
        np.testing.assert_array_equal(found, np.clip(found, honest.min(axis=0), honest.max(axis=0)))
    moved = np.abs(np.asarray(element_wise_mean(values, jnp.ones(30, bool))))  # the control
    assert np.all(moved > 1e4)


RULES = [*((name, {}) for name in ALGORITHMS), *(("fedpdm", {"server_rule": rule}) for rule in ("cached", "dual-memory"))]


@pytest.mark.parametrize(("name", "more"), RULES)
def test_a_trim_of_zero_is_the_mean_through_the_tables_of_what_every_client_last_said(name, more):
    models = []
    for aggregate in (element_wise_mean, trimmed_mean(trim=0.0)):
        algorithm = ALGORITHMS.row(name).factory()(**OPTIONS.get(name, {}), **more, aggregate=aggregate)
        server = algorithm.init_server(jnp.zeros((2, 3)), 5)
        rng = np.random.default_rng(0)
        for clients in ([0, 1, 2, 3, 4], [1, 3], [0, 4], [2, 3]):
            tree = jax.tree.structure(algorithm.silent(algorithm.broadcast(server)))
            drawn = rng.normal(size=(tree.num_leaves, len(clients), 2, 3)).astype(np.float32)
            shares = jnp.array([0.3, 0.1, 0.2, 0.15, 0.25])[np.array(clients)]
            reports = Reports(
                jax.tree.unflatten(tree, list(map(jnp.asarray, drawn))),
                jnp.array(clients),
                jnp.ones(len(clients), bool),
                shares=shares,
            )
            server = algorithm.server_update(server, reports, penalties.l1(0.01))
        models.append(np.asarray(server.x0))
    np.testing.assert_allclose(models[0], models[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_three_hostile_clients_of_thirty_do_not_carry_a_robust_server_away(name):
    make = ALGORITHMS.row(name).factory()
    x0 = jnp.zeros((2, 3))
    reach = {}
    for aggregate in ("mean", "median"):
        algorithm = make(**OPTIONS.get(name, {}), aggregate=made(aggregate))
        server = algorithm.init_server(x0, 30)
        _, message = algorithm.client_update(algorithm.init_client(x0), algorithm.broadcast(server), x0 + 0.1, jnp.float32(1.0))
        scale = jnp.where(jnp.arange(30) < 3, -1e4, 1.0)
        messages = jax.tree.map(lambda leaf, scale=scale: scale[:, None, None] * leaf, message)
        reports = Reports(messages, jnp.arange(30), jnp.ones(30, bool))
        served = algorithm.server_update(server, reports, penalties.none())
        reach[aggregate] = float(max(jnp.max(jnp.abs(served.x0)), jnp.max(jnp.abs(algorithm.broadcast(served).x0))))
    assert reach["median"] < 1.0 < 50 < reach["mean"]


def test_settings_choose_the_aggregate_and_its_option():
    config = load_config("demo", ["algorithm.aggregate=trimmed-mean", "algorithm.trim=0.2", "algorithm.name=scaffold"])
    algorithm = build_algorithm(config)
    assert (algorithm.whole_table, algorithm.server_table) == (True, "memory")
    assert not any(one.whole_table for one in (scaffold(), fedpdm(rho=1.0, aggregate=median())))
    for wrong in ("algorithm.aggregate=krum", "algorithm.trim=0.5"):
        with pytest.raises(ConfigError, match=wrong.partition("=")[0]):
            load_config("demo", [wrong])
