"""Cohorts in the simulator: a virtual client of sums, the same arithmetic as a deployment, and what is refused."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.algorithms.local import Examples
from fedpdm.compression.sizes import HEADER_BYTES
from fedpdm.config import load_config
from fedpdm.data import federation_from_arrays
from fedpdm.engines.simulation.build import build_simulation, resolved_simulation
from fedpdm.errors import ConfigError
from fedpdm.participation import cohort_roster, cohort_table
from fedpdm.privacy.mechanism import Release
from fedpdm.privacy.sharing import from_words
from fedpdm.privacy.sums import HEADROOM, wrap_deviations
from fedpdm.rounds import client_key, client_round, cohort_round, solve_locally
from fedpdm.runs.simulated_ledger import SimulatedLedger
from fedpdm.setup.build import build_setup
from fedpdm.setup.resolve import resolve

BASE = (
    "data.name=digits",
    "data.partition=iid",
    "data.clients=8",
    "data.radius=1.0",
    "problem.gamma=0.0",
    "algorithm.rho=0.1",
    "algorithm.server_rule=dual-memory",
    "local.batch_size=0",
    "local.steps=1",
    "local.step_size=2.0",
    "rounds.total=6",
    "rounds.participants=0",
    "rounds.all_first=false",
    "rounds.sampling=cycle",
    "metrics.diagnose_every=0",
    "privacy.mechanism=sound",
    "privacy.epsilon=1.0",
    "privacy.mode=linearised",
    "privacy.trust=cohorts",
    "cohorts.size=4",
    "cohorts.colluding=1",
    "cohorts.dropouts=0",
)


def federation(clients=8, sizes=None, features=6, seed=0):
    rng = np.random.default_rng(seed)
    parts = []
    for size in sizes or [20] * clients:
        x = rng.normal(size=(size, features))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        parts.append((x.astype("float32"), (x[:, 0] + x[:, 1] > 0).astype("int32")))
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return federation_from_arrays(parts, x, y)


def settings(*more):
    return resolve(load_config("plain", [*BASE, *more]))


@pytest.mark.parametrize(
    ("clients", "members", "widest"), [(19, "fixed", 19), (20, "fixed", 10), (20, "new", 19), (29, "fixed", 15)]
)
def test_the_largest_cohort_has_the_room_that_is_promised_before_a_coordinate_wraps(clients, members, widest):
    """For every number of bits: the lattice is a power of two, so some of them leave hardly more than the promise."""
    name = ("algorithm.name=fedavg", "algorithm.server_rule=participants") if members == "new" else ()
    data, rooms = federation(clients), []
    for bits in range(18, 28):
        more = (f"data.clients={clients}", "cohorts.size=10", f"cohorts.bits={bits}", f"cohorts.members={members}", *name)
        config = settings(*more)
        _, plan = build_setup(config, data)
        reach = config.cohorts.reach * config.local.step_size * plan.clip  # of one linearised step
        rooms.append(wrap_deviations(reach, plan.shared.share_sigma, 12, widest, plan.shared.lattice))
    assert min(rooms) >= HEADROOM


def test_a_sum_is_the_weighted_mean_of_the_members_solutions_to_the_last_lattice_step():
    data = federation(sizes=[10, 20, 30, 40])
    config = settings("data.clients=4", "privacy.epsilon=1e9")
    setup, plan = build_setup(config, data)
    sums = setup.privacy.sums
    examples = Examples(jnp.asarray(data.features), jnp.asarray(data.labels), jnp.asarray(data.sizes), jnp.arange(4))
    x0 = jnp.asarray(np.random.default_rng(1).normal(size=(2, 6)), jnp.float32)
    algorithm = setup.algorithm
    state = algorithm.init_client(x0)._replace(dual=0.3 * x0)
    broadcast = algorithm.broadcast(algorithm.init_server(x0, 1))
    keys = jax.vmap(lambda c: client_key(0, 0, c))(jnp.arange(4))
    present = jnp.array([True, True, False, True])
    result = jax.jit(partial(cohort_round, setup))(examples, present, state, broadcast, 0, keys)
    alone = setup._replace(privacy=build_setup(resolve(load_config("plain", [*BASE[:13]])), data)[0].privacy)
    one = jax.jit(lambda i: client_round(alone, examples._replace(client=i), state, broadcast, 0, keys[0]).local_model)
    solutions = [one(jnp.int32(i)) for i in (0, 1, 3)]
    weights = np.array([10, 20, 40]) / 25
    expected = x0 + sum(w * (x - x0) for w, x in zip(weights, solutions, strict=True)) / weights.sum()
    noise = plan.shared.share_sigma * 2 / weights.sum()
    assert np.abs(np.asarray(result.local_model - expected)).max() < 6 * noise + 4 / sums.lattice.scale
    # The cohort's dual moves by the released mean alone.
    dual = state.dual + 0.1 * (x0 - result.local_model)
    np.testing.assert_allclose(result.state.dual, dual, atol=1e-6)


def test_simulated_shares_add_up_like_big_integers():
    data = federation(clients=4)
    setup, _ = build_setup(settings("data.clients=4", "cohorts.bits=12", "cohorts.scale=512"), data)
    sums = setup.privacy.sums
    rng = np.random.default_rng(0)
    words, exact = np.zeros(12, np.uint32), np.zeros(12, object)
    for i in range(4):
        release = Release(jnp.float32(2.0), jnp.float32(20.0), jnp.int32(1), jnp.float32(0.0), jax.random.key(i))
        share = np.asarray(sums.share(jnp.asarray(rng.normal(size=12), jnp.float32), release))
        assert share.max() < 2**12
        words = words + share
        exact = exact + share.astype(object)
    assert from_words(words, 12).tolist() == [(int(v) + 2**11) % 2**12 - 2**11 for v in exact]


def test_one_example_moves_a_contribution_by_no_more_than_the_sensitivity():
    """Brute force, for members of unequal size: without noise, what leaves differs by s + sqrt(D)/S at most."""
    rng = np.random.default_rng(0)
    data = federation(sizes=[5, 20, 9, 14])
    config = settings("data.clients=4", "cohorts.scale=4096")
    setup, plan = build_setup(config, data)
    sums, algorithm = setup.privacy.sums, setup.algorithm
    s = plan.sensitivity(2.0, 1.0)
    solve = jax.jit(
        lambda features, client, x0, dual: (
            client_round(
                setup._replace(privacy=build_setup(resolve(load_config("plain", [*BASE[:13]])), data)[0].privacy),
                Examples(features, jnp.asarray(data.labels), jnp.asarray(data.sizes), client),
                algorithm.init_client(x0)._replace(dual=dual),
                algorithm.broadcast(algorithm.init_server(x0, 1)),
                0,
                jax.random.key(0),
            ).local_model
        )
    )
    worst = 0.0
    for _ in range(60):
        client = int(rng.integers(4))
        x0, dual = (jnp.asarray(rng.normal(size=(2, 6)) * 3, jnp.float32) for _ in range(2))
        features = np.array(data.features)
        features[client, 0] /= np.linalg.norm(features[client, 0])
        weight = float(data.sizes[client]) / sums.mean_examples
        steps = []
        for row in (features[client, 0].copy(), np.zeros(6)):
            features[client, 0] = row
            x = np.asarray(solve(jnp.asarray(features), jnp.int32(client), x0, dual), np.float64)
            steps.append(np.rint(weight * (x - np.asarray(x0)) * sums.lattice.scale))
        worst = max(worst, np.linalg.norm(steps[0] - steps[1]) / (s * sums.lattice.scale + np.sqrt(12)))
    assert 0.3 < worst <= 1.0


def test_training_with_cohorts_learns_and_says_both_figures(tmp_path):
    simulation = build_simulation(settings("privacy.epsilon=20.0", "rounds.total=12"), federation())
    rows = list(simulation.run())
    assert rows[-1]["test_accuracy"] > 0.8
    assert rows[-1]["participants"] == 8
    assert len(simulation.state.clients.dual) == 2  # one state per cohort
    assert np.asarray(simulation.state.spent) == pytest.approx(np.full(8, 12 / simulation.plan.noise_multiplier**2), rel=1e-4)
    sentence = simulation.plan.sentence()
    assert "sums over at least 4 of 4 cohort members" in sentence
    assert "at most 1 of the others" in sentence
    assert f"own share of the noise guarantees epsilon = {simulation.plan.shared.own_epsilon:.4g}"[:60] in sentence


def test_a_cohort_with_too_few_members_stays_closed():
    class OneIsMissing(SimulatedLedger):
        def grant(self, start, roster):
            return [(who, np.arange(8) % 4 > 0) for who, _ in roster]

    ledger = partial(OneIsMissing, Path(), "job")
    simulation = resolved_simulation(settings(), federation(), ledger=ledger)
    before = simulation.model.copy()
    rows = list(simulation.run())
    assert rows[0]["participants"] == 6
    np.testing.assert_array_equal(simulation.model, before)
    assert np.asarray(simulation.state.clients.dual).any() == False  # noqa: E712


@pytest.mark.parametrize("kind", ["shared-randk", "public-topk"])
def test_a_common_support_goes_into_a_sum(kind):
    links = ["compression.uplink=0.5", f"compression.kind={kind}"]
    simulation = build_simulation(settings(*links, "rounds.total=1"), federation())
    first = simulation.model.copy()
    list(simulation.run())
    assert simulation.traffic()["uplink"] == 8 * (HEADER_BYTES + 4 * 6)
    assert (simulation.model != first).sum() == 6  # half of 12


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["compression.uplink=0.5", "compression.kind=noisy-topk"], "no common sum"),
        (["cohorts.members=new"], "remove noise"),
        (["cohorts.members=new", "algorithm.name=scaffold"], "remove noise"),
        (["cohorts.members=new", "algorithm.name=fedavg", "rounds.sampling=uniform"], "sampling=cycle"),
        (["privacy.mode=every-step"], "a secure sum in every step"),
        (["cohorts.size=9"], "more than the 8 clients"),
        (["cohorts.dropouts=3"], "no honest member"),
        (["cohorts.scale=16", "privacy.epsilon=1e9"], "raise it"),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused_with_the_reason(more, reason):
    with pytest.raises(ConfigError, match=reason):
        build_setup(settings(*more), federation())


def test_settings_of_cohorts_without_cohorts_are_refused():
    with pytest.raises(ConfigError, match=r"set privacy\.trust=cohorts"):
        load_config("plain", ["cohorts.size=5"])
    with pytest.raises(ConfigError, match=r"privacy\.trust=cohorts has no effect"):
        load_config("plain", ["privacy.trust=cohorts"])
    with pytest.raises(ConfigError, match="power of two"):
        settings("cohorts.scale=1000")


def test_new_cohorts_of_a_stateless_algorithm_take_part_evenly():
    config = settings("algorithm.name=fedavg", "cohorts.members=new", "rounds.participants=4", "rounds.total=4")
    simulation = build_simulation(config, federation())
    list(simulation.run())
    assert simulation.taken_part().tolist() == [2] * 8
    assert simulation.plan.participations == 2


def test_fixed_cohorts_keep_their_members_and_none_is_smaller_than_asked_for():
    table, real = cohort_table(23, 5, seed=3)
    assert real.sum() == 23
    assert (real.sum(axis=1) >= 5).all()
    how = {"rounds": 9, "clients": 23, "participants": 11, "seed": 3, "all_first": True}
    for t, (chosen, present) in enumerate(cohort_roster("uniform", size=5, fixed=True, **how)):
        groups = chosen.reshape(-1, table.shape[1])
        assert len(groups) == (4 if t == 0 else 2)
        assert all((table == group).all(axis=1).any() for group in groups)
        assert len(np.unique(chosen[present])) == present.sum()


CLIENTS = ("privacy.unit=client", "privacy.mode=auto", "privacy.clip=0.1")


def test_nothing_of_a_client_moves_a_sum_by_more_than_the_cut():
    """Brute force for the unit of a whole client: any rows, models and duals. Without the cut the bound does not hold."""
    rng = np.random.default_rng(0)
    data = federation(sizes=[1, 20, 9, 14])
    setup, plan = build_setup(settings("data.clients=4", "local.steps=3", *CLIENTS), data)
    sums, algorithm = setup.privacy.sums, setup.algorithm

    @jax.jit
    def solve(features, client, x0, dual):
        examples = Examples(features, jnp.asarray(data.labels), jnp.asarray(data.sizes), client)
        state, broadcast = algorithm.init_client(x0)._replace(dual=dual), algorithm.broadcast(algorithm.init_server(x0, 1))
        solved = solve_locally(setup, examples, state, broadcast, 0, jax.random.key(0), None)
        moved = solved.x - x0
        return moved, *sums.contribution(moved, examples.sizes[client], solved.release)

    limit, longest, uncut = plan.sensitivity(2.0, 1.0), 0.0, 0.0
    for _ in range(40):
        x0, dual = (jnp.asarray(rng.normal(size=(2, 6)), jnp.float32) for _ in range(2))
        moved, cut, weight = solve(jnp.asarray(data.features * rng.normal()), jnp.int32(rng.integers(4)), x0, dual)
        assert float(weight) == 1.0  # sizes do not count
        longest, uncut = max(longest, float(jnp.linalg.norm(cut))), max(uncut, float(jnp.linalg.norm(moved)))
    assert longest == pytest.approx(limit, rel=1e-5)
    assert uncut > 3 * limit


def test_a_guarantee_for_whole_clients_says_so_and_learns():
    data = federation(sizes=[4] * 120)
    config = settings("data.clients=120", "cohorts.size=120", "privacy.epsilon=30.0", "rounds.total=12", *CLIENTS)
    simulation = build_simulation(config, data)
    assert list(simulation.run())[-1]["test_accuracy"] > 0.8
    assert "for all examples of one client, under adding or removing them" in simulation.plan.sentence()
    assert simulation.plan.terms()["unit"] == "all examples of one client"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["privacy.trust=local", "cohorts.size=0", "cohorts.colluding=", "cohorts.dropouts="], "only a sum of many does"),
        (["privacy.mode=linearised"], 'leave privacy.mode on "auto"'),
    ],
)
def test_what_does_not_go_with_whole_clients_is_refused(more, reason):
    with pytest.raises(ConfigError, match=reason):
        build_setup(settings(*CLIENTS, *more), federation())
