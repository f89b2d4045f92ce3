"""Sparse links end to end: the dense limit, held coordinates, counted bytes, and the effect of one example on a support."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_federation

from fedpdm.algorithms import Broadcast, Examples, LocalPlan, Reports, feddyn, fedpdm, scaffold
from fedpdm.choices.words import COORDINATES
from fedpdm.compression.indices import entropy_bits
from fedpdm.compression.links import Links, first_downlink, send_down, shared_support, support_radius
from fedpdm.compression.messages import encode_message, receive
from fedpdm.compression.sparsify import coordinate_count
from fedpdm.compression.wire import decode, encode, make_part
from fedpdm.config import load_config, validate
from fedpdm.data import federation_from_arrays
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.measures import add_traffic, traffic_totals
from fedpdm.engines.simulation.simulation import Schedule, Simulation
from fedpdm.errors import ConfigError
from fedpdm.privacy.mechanism import no_privacy, paper
from fedpdm.problem import Problem, penalties, softmax
from fedpdm.rounds import Setup, client_round, server_round
from fedpdm.setup.build import build_setup

SIZES = [20, 7, 13, 30, 9, 11]
KEY = jax.random.key(0)


def simulate(links=Links(), algorithm=None, privacy=no_privacy(), rounds=9, penalty=None) -> Simulation:
    problem = Problem(softmax(), penalty or penalties.l1(0.005))
    setup = Setup(problem, algorithm or fedpdm(rho=1.0), LocalPlan(4, 1, 0.3), privacy, links)
    simulation = Simulation(setup, random_federation(SIZES, features=8), Schedule(rounds, 3))
    list(simulation.run())
    return simulation


def examples_of(federation, client=0) -> Examples:
    data = [jnp.asarray(a) for a in (federation.features, federation.labels, federation.sizes)]
    return Examples(data[0], data[1], data[2], jnp.int32(client))


# --- P4: with both ratios 1, BSDP-FedPDM is DP-FedPDM, bit for bit. ---


def test_ratios_of_one_are_dp_fedpdm_bit_for_bit():
    noisy = paper(rho=1.0, clip=1.0, epsilon=5.0, delta=1e-5, batch_size=1, share=0.5, rounds=9)
    plain = simulate(privacy=noisy)
    for kind in COORDINATES:
        np.testing.assert_array_equal(simulate(Links(kind, 1.0, "model", 1.0), privacy=noisy).model, plain.model)


@pytest.mark.parametrize("rule", ["participants", "cached", "dual-memory"])
def test_masks_that_are_full_change_nothing_at_the_server(rule):
    algorithm = fedpdm(rho=0.7, server_rule=rule)
    setup = Setup(Problem(softmax(), penalties.l1(0.1)), algorithm, LocalPlan(1, 0, 0.1))
    x0 = jax.random.normal(KEY, (3, 8))
    y = jax.random.normal(jax.random.key(1), (5, 3, 8))
    state, who = algorithm.init_server(x0, 9), (jnp.array([1, 3, 4, 6, 8]), jnp.array([True, True, False, True, True]))
    dense = server_round(setup, state, Broadcast(x0), Reports(y, *who))
    masked = server_round(setup, state, Broadcast(x0), Reports(y, *who, jnp.ones(y.shape, bool)))
    jax.tree.map(np.testing.assert_array_equal, dense, masked)


def test_all_coordinates_in_a_support_change_next_to_nothing():
    """The restricted local problem with everything in it, and a radius that cuts nothing, is the local problem."""
    federation = random_federation(SIZES, features=8)
    setup = Setup(Problem(softmax(), penalties.none()), fedpdm(rho=1.0), LocalPlan(4, 5, 0.3), links=Links(radius=100.0))
    x0 = jax.random.normal(KEY, (3, 8))
    state = setup.algorithm.init_client(x0)
    whole = client_round(setup, examples_of(federation), state, Broadcast(x0), 0, KEY)
    support = jnp.ones((3, 8), bool)
    masked = client_round(setup, examples_of(federation), state, Broadcast(x0), 0, KEY, support)
    np.testing.assert_allclose(masked.message, whole.message, atol=1e-5)


# --- The element-wise mean, and coordinates that nobody sent. ---


def test_mean_is_over_those_who_sent_the_coordinate():
    algorithm = fedpdm(rho=1.0)
    setup = Setup(Problem(softmax(), penalties.l1(0.25)), algorithm, LocalPlan(1, 0, 0.1), links=Links("topk", 0.5))
    x0 = jnp.array([[7.0, 7.0, 7.0, 7.0]])
    y = jnp.array([[[4.0, 0.0, 0.0, 2.0]], [[2.0, 0.0, -1.0, 0.0]], [[9.0, 9.0, 9.0, 9.0]]])
    sent = jnp.array([[[True, False, False, True]], [[True, False, True, False]], [[True, True, True, True]]])
    present = jnp.array([True, True, False])
    reports = Reports(y, jnp.arange(3), present, sent)
    server = server_round(setup, algorithm.init_server(x0, 4), Broadcast(x0), reports)
    np.testing.assert_allclose(server.x0, [[2.75, 0.0, -0.75, 1.75]])  # Algorithm 2: the prox of zero where nobody sent
    held = setup._replace(links=Links("noisy-topk", 0.5))
    server = server_round(held, algorithm.init_server(x0, 4), Broadcast(x0), reports)
    np.testing.assert_allclose(server.x0, [[2.75, 7.0, -0.75, 1.75]])  # the sound kinds: it stays


@pytest.mark.parametrize("kind", ["shared-randk", "public-topk"])
@pytest.mark.parametrize("algorithm", [fedpdm(rho=1.0, server_rule="dual-memory"), scaffold()], ids=lambda a: a.name)
def test_nothing_moves_outside_of_a_support(kind, algorithm):
    links = Links(kind, 0.25)
    setup = Setup(Problem(softmax(), penalties.none()), algorithm, LocalPlan(4, 5, 0.3), links=links)
    federation = random_federation(SIZES, features=8)
    simulation = Simulation(setup, federation, Schedule(3, 3, all_first=False, diagnose_every=1))
    for t in range(3):
        before, clients = simulation.model, jax.tree.map(np.asarray, simulation.state.clients)
        support = np.asarray(shared_support(links, 0, t, jnp.asarray(before)))
        assert support.sum() == coordinate_count(0.25, 24) == 6
        simulation.advance()
        np.testing.assert_array_equal(simulation.model[~support], before[~support])
        assert (simulation.model[support] != before[support]).any()
        if algorithm.name == "fedpdm":
            np.testing.assert_array_equal(np.asarray(simulation.state.clients.dual)[:, ~support], clients.dual[:, ~support])


@pytest.mark.parametrize("kind", ["topk", "shared-randk", "noisy-topk"])
@pytest.mark.parametrize(
    ("algorithm", "own", "common"), [(scaffold(), "control", "control"), (feddyn(alpha=0.7), "slope", "slope")]
)
def test_what_the_server_sums_up_is_the_mean_of_what_the_clients_keep(algorithm, own, common, kind):
    """Also if only some coordinates are sent: a change that is not sent must not stay in the state."""
    simulation = simulate(Links(kind, 0.3), algorithm, rounds=12, penalty=penalties.none())
    kept_by_clients = np.asarray(getattr(simulation.state.clients, own))
    np.testing.assert_allclose(np.asarray(getattr(simulation.state.server, common)), kept_by_clients.mean(axis=0), atol=1e-5)
    assert np.abs(kept_by_clients).max() > 0.01
    assert simulation.diagnose()["objective"] < 10  # ln 3 at the start; a thousand when the two drift apart


def test_supports_change_with_the_round_and_are_uniform():
    counts = sum(np.asarray(shared_support(Links("shared-randk", 0.25), 3, t, jnp.zeros((3, 8)))) for t in range(400))
    assert counts.sum() == 400 * 6
    assert abs(counts - 100).max() < 5 * np.sqrt(400 * 0.25 * 0.75)
    public = shared_support(Links("public-topk", 0.25), 3, 0, jnp.arange(24.0).reshape(3, 8))
    assert public.ravel()[-3:].all()  # half of them are the largest
    assert public.sum() == 6


# --- The counted bytes are those that are sent. ---


@pytest.mark.parametrize("values", ["float32", "float16", "int8"])
@pytest.mark.parametrize("kind", COORDINATES)
def test_counted_bytes_are_those_of_the_encoded_message(kind, values):
    links = Links(kind, 0.3, values=values)
    federation = random_federation(SIZES, features=8)
    setup = Setup(Problem(softmax(), penalties.none()), scaffold(), LocalPlan(4, 5, 0.3), links=links)
    x0 = jax.random.normal(KEY, (3, 8))
    broadcast = Broadcast(x0, 0.1 * x0)
    support = shared_support(links, 0, 0, x0)
    result = client_round(setup, examples_of(federation), setup.algorithm.init_client(x0), broadcast, 0, KEY, support)
    leaves, masks = jax.tree.leaves(result.message), jax.tree.leaves(result.packed.sent)
    parts = [make_part(np.asarray(v), np.asarray(m), shared=links.has_support) for v, m in zip(leaves, masks, strict=True)]
    assert len(parts) == 2
    assert all(part.values.size == coordinate_count(0.3, 24) for part in parts)
    assert int(result.packed.bytes) == len(encode(parts, values))


@pytest.mark.parametrize("algorithm", [fedpdm(rho=1.0, server_rule="dual-memory"), scaffold()], ids=lambda a: a.name)
@pytest.mark.parametrize(
    "links", [Links(), Links("topk", 0.3), Links("shared-randk", 0.3, values="int8")], ids=lambda x: x.kind
)
def test_a_round_through_bytes_is_the_round(algorithm, links):
    """Messages that are malformed, too large or not as agreed are left out by name, and the round continues."""
    federation = random_federation(SIZES, features=8)
    setup = Setup(Problem(softmax(), penalties.none()), algorithm, LocalPlan(4, 1, 0.3), links=links)
    x0 = jax.random.normal(KEY, (3, 8))
    state = algorithm.init_server(x0, 6)
    broadcast = algorithm.broadcast(state)
    support = shared_support(links, 0, 0, x0)
    work = functools.partial(client_round, setup)
    results = [
        work(examples_of(federation, i), algorithm.init_client(x0), broadcast, 0, jax.random.key(i), support) for i in range(3)
    ]
    messages = {i: encode_message(links, result.packed) for i, result in enumerate(results)}
    assert [len(m) for m in messages.values()] == [int(r.packed.bytes) for r in results]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[(r.packed.message, r.packed.sent) for r in results])
    direct = Reports(stacked[0], jnp.arange(3), jnp.ones(3, bool), stacked[1], 1.2)
    received = receive(links, algorithm.silent(broadcast), messages, support, travel=1.2)
    assert received.refused == {}
    expected = server_round(setup, state, broadcast, direct)
    jax.tree.map(np.testing.assert_array_equal, server_round(setup, state, broadcast, received.reports), expected)

    dimension = 24
    whole = encode([make_part(np.full(dimension, 2.0), np.ones(dimension, bool))] * len(jax.tree.leaves(results[0].message)))
    hostile = {3: messages[0][:-1], 4: b"", 5: whole if links.uplink < 1 else messages[0] + b"x"}
    both = receive(links, algorithm.silent(broadcast), messages | hostile, support, travel=1.2)
    assert both.refused.keys() == {3, 4, 5}
    assert all(": " in reason for reason in both.refused.values())
    jax.tree.map(np.testing.assert_allclose, server_round(setup, state, broadcast, both.reports), expected)


def test_totals_add_up_over_rounds_and_survive_many_mebibytes():
    simulation = simulate(Links("topk", 0.25), rounds=4)
    assert simulation.traffic()["uplink"] > 0
    traffic = jnp.zeros((3, 2), jnp.int32)
    sizes = jnp.full((3, 1000), 40_000_017, jnp.int32)
    for _ in range(3):
        traffic = add_traffic(traffic, sizes)
    assert traffic_totals(np.asarray(traffic)) == dict.fromkeys(("uplink", "downlink", "index"), 3 * 1000 * 40_000_017)


def test_p2_one_vector_instead_of_two_halves_the_uplink():
    """Against a variant that sends x and the dual, as primal-dual methods without the combined vector do."""
    one = fedpdm(rho=1.0)

    def client_update(state, broadcast, x, travel):
        after, _ = one.client_update(state, broadcast, x, travel)
        return after, (x, after.dual)

    def server_update(state, reports, penalty):
        x, dual = reports.messages
        return one.server_update(state, reports._replace(messages=x - dual / 1.0, sent=None), penalty)

    two = one._replace(client_update=client_update, server_update=server_update, gain=lambda travel: (1.0, 1.0))
    silent = two._replace(silent=lambda broadcast: (broadcast.x0, 0 * broadcast.x0))
    both = simulate(algorithm=silent)
    combined = simulate(algorithm=one)
    np.testing.assert_allclose(both.model, combined.model, atol=1e-6)
    messages = int(combined.taken_part().sum())
    assert both.traffic()["uplink"] == 2 * combined.traffic()["uplink"] - 12 * messages  # one header instead of two
    sparse = simulate(Links("topk", 0.25), algorithm=one)
    assert sparse.traffic()["uplink"] < 0.5 * both.traffic()["uplink"]


# --- The downlink. ---


def down(links, downlink, x0, clients, t, noise=0.0):
    everybody = jnp.ones(len(clients), bool)
    return send_down(links, downlink, Broadcast(x0), jnp.array(clients), everybody, jnp.int32(t), jnp.float32(noise))


def test_downlink_of_models_sends_the_largest_and_the_rest_is_zero():
    x0 = jnp.array([[3.0, -5.0, 0.5, 1.0]])
    received, _, sizes = down(Links(downlink=0.5), first_downlink(Broadcast(x0), 3), x0, [0, 2], 0)
    np.testing.assert_array_equal(received.x0, [[3.0, -5.0, 0.0, 0.0]])
    expected = len(encode([make_part(np.asarray(x0), np.array([True, True, False, False]))]))
    assert sizes.tolist() == [expected, expected]


def test_zeros_of_a_sparse_model_are_not_sent():
    x0 = jnp.zeros((10, 50)).at[3, 7].set(2.0)
    _, _, sizes = down(Links(), first_downlink(Broadcast(x0), 3), x0, [0], 0)
    assert int(sizes[0]) < 30


@pytest.mark.parametrize("values", ["float32", "float16", "int8", "auto"])
def test_downlink_of_differences_keeps_everybody_s_copy_right(values):
    """Clients that miss rounds, replayed from messages as long as counted: all end with the server's copy, bit for bit."""
    links, rng = Links(downlink=0.25, downlink_kind="difference", values=values), np.random.default_rng(0)
    x0 = rng.normal(size=(2, 8)).astype(np.float32)
    downlink = first_downlink(Broadcast(jnp.asarray(x0)), 4)
    copies = np.zeros((4, 16), np.float32)
    kinds = set()
    for t in range(12):
        x0 = x0 + rng.normal(size=x0.shape).astype(np.float32) * 0.1
        who = rng.choice(4, 2, replace=False).tolist()
        heard = np.asarray(downlink.heard)
        noise = 0.01 if t % 3 else 1e-6  # "auto" changes its mind
        received, downlink, sizes = down(links, downlink, jnp.asarray(x0), who, t, noise)
        for place, client in enumerate(who):
            news = (np.asarray(downlink.changed.x0) > heard[client]).ravel()
            model = np.asarray(received.x0).ravel()
            kind = "float16" if (np.asarray(downlink.width.x0).ravel()[news] == 2).all() else "float32"
            kinds.add(kind)
            sparse = encode([make_part(model, news)], kind)
            assert int(sizes[place]) == min(len(sparse), len(encode([make_part(model, np.ones(16, bool))], kind)))
            (part,) = decode(sparse, dimensions=[16], limit=1e6)
            copies[client][part.indices] = part.values
            np.testing.assert_array_equal(copies[client], model)
    assert kinds == ({"float32"} if values == "float32" else {"float16", "float32"} if values == "auto" else {"float16"})
    assert np.abs(np.asarray(received.x0) - x0).max() < 1.0


def test_differences_with_everything_sent_are_the_model():
    whole, differences = simulate(), simulate(Links(downlink_kind="difference"))
    np.testing.assert_array_equal(whole.model, differences.model)


# --- Privacy on a support. ---


def test_one_example_moves_the_solution_on_a_support_no_further_than_its_bound():
    """Neighbours that differ in one slot, features on few coordinates: as bad as can be for the cut to the support's radius."""
    rng = np.random.default_rng(0)
    config = validate(
        {
            "data": {"name": "digits", "clients": 2, "partition": "iid"},
            "algorithm": {"rho": 0.05},
            "local": {"steps": 6, "batch_size": 0, "step_size": 5.0},
            "rounds": {"total": 5, "participants": 2},
            "privacy": {"mechanism": "sound", "epsilon": 1.0, "clip": 0.5},
            "compression": {"uplink": 0.25, "kind": "shared-randk"},
        }
    )
    worst, uncut = 0.0, 0.0
    for trial in range(60):
        x = rng.normal(size=(12, 8)) * (rng.random((12, 8)) < 0.4)
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
        y = np.concatenate([np.arange(3), rng.integers(0, 3, 9)])
        federation = federation_from_arrays([(x, y), (x, y)], x, y)
        setup, plan = build_setup(config, federation)
        assert plan is not None
        assert setup.links.radius == support_radius("shared-randk", 0.25, 1.0) == pytest.approx(0.625)
        x0 = jnp.asarray(rng.normal(size=(3, 8)), jnp.float32) * 3
        support = shared_support(setup.links, trial, 0, x0)
        solve = functools.partial(solution, setup, x0, support)
        bound = plan.sensitivity(5.0, 12.0)
        slot = int(rng.integers(12))
        worst = max(worst, difference(solve, x, y, slot) / bound)
        wrong = setup._replace(links=setup.links._replace(radius=1.0))  # the features are not cut to what the bound assumes
        uncut = max(uncut, difference(functools.partial(solution, wrong, x0, support), x, y, slot) / bound)
    assert 0.3 < worst <= 1.0001
    assert uncut > 1.05


def solution(setup, x0, support, features, labels):
    examples = Examples(jnp.asarray(features, jnp.float32)[None], jnp.asarray(labels)[None], jnp.array([12]), jnp.int32(0))
    quiet = setup._replace(privacy=no_privacy())
    state = setup.algorithm.init_client(x0)
    return client_round(quiet, examples, state, Broadcast(x0), 0, KEY, support).local_model


def difference(solve, x, y, slot) -> float:
    emptied = x.copy()
    emptied[slot] = 0.0  # an empty slot has no gradient
    return float(jnp.linalg.norm(solve(x, y) - solve(emptied, y)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fedavg", "shared-randk"),
        ("fedprox", "public-topk"),
        ("scaffold", "noisy-topk"),
        ("feddyn", "randk"),
        ("fedpdm", "shared-randk"),
    ],
)
def test_every_algorithm_runs_privately_over_thin_links(name, kind):
    config = load_config(
        "plain",
        [
            *("data.name=digits", "data.clients=10", "rounds.participants=4", "rounds.total=4", "local.batch_size=0"),
            *("privacy.mechanism=sound", "privacy.epsilon=2.0", f"algorithm.name={name}", f"compression.kind={kind}"),
            *("compression.uplink=0.2", "compression.downlink=0.5", "compression.values=auto", "metrics.diagnose_every=4"),
        ],
    )
    simulation = build_simulation(config, build_federation(config, progress=False))
    rows = list(simulation.run())
    assert np.isfinite(rows[-1]["objective"])
    assert 0 < rows[-1]["uplink_bytes"] < 0.5 * 4 * 650 * simulation.taken_part().sum() * (2 if name == "scaffold" else 1)


def test_the_sound_mechanism_refuses_a_support_chosen_from_the_data():
    with pytest.raises(ConfigError, match=r"not noised.*shared-randk"):
        load_config("demo", ["compression.uplink=0.5", "compression.kind=topk"])


def test_entropy_of_a_support():
    assert entropy_bits(4, 2) == pytest.approx(np.log2(6))
