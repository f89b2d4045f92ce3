"""Several cohorts in one deployed job: exact sums side by side, and a lying member spoils the sum of its own cohort only."""

import jax
import numpy as np
import pytest
from cohort_kit import POLICY, SETTINGS, Members

from fedpdm.config import load_config
from fedpdm.data import federation_from_arrays
from fedpdm.engines.flower.cohort import node as cohort_node
from fedpdm.engines.flower.cohort import share as cohort_share
from fedpdm.engines.flower.cohort.agreement import agree_on
from fedpdm.engines.flower.job import make_job
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError, UserError

NINE = ["data.clients=9", "cohorts.size=3", "cohorts.colluding=0", "rounds.total=6", "privacy.epsilon=200.0"]
FEDAVG = ["algorithm.name=fedavg", "algorithm.server_rule=participants", "cohorts.members=new", "rounds.sampling=cycle"]


def members_of(folder, *settings, clients=9, budget=500.0, write=None):
    config = load_config("plain", [*SETTINGS, *NINE, f"data.clients={clients}", *settings])
    job = make_job(config, 30, ["no", "yes"], [f"x{j}" for j in range(4)])
    return Members(folder, epsilon=budget, job=job, sizes=(25,) * clients, write=write)


@pytest.fixture
def lies(monkeypatch):
    """`lies(members, {client: function of its contribution})`: these members change what they contribute to a sum."""

    def begin(members, of):
        real = cohort_share.member_contribution

        def contribution(*arguments):
            return of.get(members.now, lambda honest: honest)(real(*arguments))

        monkeypatch.setattr(cohort_share, "member_contribution", contribution)

    return begin


def flipped(honest):
    return -4 * honest


def test_every_cohort_has_an_exact_sum_and_a_state_of_its_own(tmp_path, monkeypatch):
    """Ten clients are cohorts of four, three and three; one of each dies, in another step each."""
    made, real = {}, cohort_node.make_share

    def share(*arguments):
        made[members.now] = real(*arguments)
        return made[members.now]

    monkeypatch.setattr(cohort_node, "make_share", share)
    members = members_of(tmp_path, clients=10)
    cohorts = members.server.cohorts
    assert sorted(len(cohort) for cohort in cohorts) == [3, 3, 4]
    assert sorted(client for cohort in cohorts for client in cohort) == list(range(10))
    row, closed = members.one_round({cohorts[0][0]: "pieces", cohorts[1][0]: "masked", cohorts[2][0]: "reveal"})
    assert (row["participants"], row["missing"], row["refused"], closed) == (8, 2, 0, "")
    for number, cohort in enumerate(cohorts):
        total = sum(made[client].astype(object) for client in cohort if client in made)
        assert members.server.sums[number].tolist() == [int(value) % 2**32 for value in total]
    (duals,) = jax.tree.leaves(members.server.state.cohort)
    assert len({dual.tobytes() for dual in np.asarray(duals)}) == 3, "each has its own dual"
    assert members.refusals == []
    assert [len(members.spent(client)) for client in range(10)] == [int(client in made) for client in range(10)]
    members.begin()  # a new process of the server goes on from the checkpoint
    assert members.one_round()[0]["participants"] == 10


def test_the_deployed_model_is_the_simulated_one_up_to_noise(tmp_path):
    """The same cohorts, states and median, with next to no noise; one cohort of all is another model."""

    def one_class(folder, client, size):
        rows = np.random.default_rng(client).normal(size=(size, 4)).astype("float32")
        rows /= 1.001 * np.linalg.norm(rows, axis=1, keepdims=True)
        np.savez(folder / f"own-{client}.npz", features=rows, labels=np.full(size, client < 4, "int32"))
        return folder / f"own-{client}.npz"

    settings = ["privacy.epsilon=9000.0", "rounds.total=3", "algorithm.aggregate=median"]
    members = members_of(tmp_path, *settings, budget=9500.0, write=one_class)
    policy = tmp_path / "policy.toml"
    policy.write_text(policy.read_text().replace("noise_multiplier_min = 0.1", "noise_multiplier_min = 1e-4"))
    parts = [np.load(tmp_path / f"own-{client}.npz") for client in range(9)]
    arrays = [(part["features"], part["labels"]) for part in parts]
    for _ in range(3):
        assert members.one_round()[0]["participants"] == 9

    def distance(size):
        config = members.job.config
        config = config.model_copy(update={"cohorts": config.cohorts.model_copy(update={"size": size})})
        federation = federation_from_arrays(arrays, *arrays[0])
        simulation = build_simulation(config, federation._replace(sizes=np.full_like(federation.sizes, 30)))
        list(simulation.run())
        return float(np.abs(members.server.model - simulation.model).max())

    same, other = distance(3), distance(9)
    noise = members.job.setup[1].shared.share_sigma / np.sqrt(3)  # a deviation of a cohort's mean
    # Two models with noise of three rounds each: one coordinate's difference has a deviation of about 3.5 of these.
    assert same < 32 * noise < other / 3, (same, noise, other)


def test_one_closed_sum_leaves_the_others_open(tmp_path):
    members = members_of(tmp_path)
    first, second, _ = members.server.cohorts
    row, closed = members.one_round({first[0]: "agree", first[1]: "agree"})
    assert (row["participants"], row["missing"]) == (6, 3)
    assert f"cohort 1 (clients {', '.join(map(str, first))}): " in closed
    assert "stays closed" in closed
    assert members.spent(first[0]) == members.spent(second[0]) == [0], "what had left stays on the ledger"
    (duals,) = jax.tree.leaves(members.server.state.cohort)
    assert not np.asarray(duals[0]).any()
    assert np.asarray(duals[1]).any()
    assert members.one_round()[0]["participants"] == 9


def test_a_lying_member_spoils_its_own_cohort_and_nothing_else(tmp_path, lies):
    """Its sum is refused, the model is that of the other sums; after three refusals its cohort is not invited again."""
    members = members_of(tmp_path)
    bad, *others = members.server.cohorts
    lies(members, {bad[1]: lambda honest: honest + 1e3})
    for _ in range(3):
        before = members.server.state
        row, closed = members.one_round()
        assert (row["participants"], row["refused"]) == (6, 1)
        assert "The sum is refused (far:" in closed
        (old,), (new,) = jax.tree.leaves(before.cohort), jax.tree.leaves(members.server.state.cohort)
        np.testing.assert_array_equal(new[0], old[0])
        assert (np.asarray(members.server.model) != np.asarray(before.server.x0)).any()
        assert np.abs(members.server.model).max() < 10
    assert members.server.left_out() == bad
    row, closed = members.one_round()
    assert (row["participants"], closed) == (6, "")
    assert members.spent(bad[0]) == [0, 1, 2], "honest members of a spoilt cohort spend no more"
    assert members.spent(others[0][0]) == [0, 1, 2, 3]
    members.one_round()
    members.one_round()
    summary = members.server.finish()
    assert (summary["left_out"], summary["messages_refused"]) == (bad, 9)


def test_a_lie_within_the_limits_is_found_by_the_other_sums(tmp_path, lies):
    """Four times the update with the sign flipped is within the limits of a sum; the others of the round contradict it."""
    for name, settings in {"plain": [], "compared": ["cohorts.compare=true"]}.items():
        folder = tmp_path / name
        folder.mkdir()
        members = members_of(folder, *settings)
        bad = members.server.cohorts[1]
        lies(members, {bad[0]: flipped})
        row, closed = members.one_round()
        assert row["refused"] == (name == "compared")
        assert ("compared: the other sums of the round contradict it" in closed) == (name == "compared")


def test_an_aggregate_between_cohorts_withstands_what_the_mean_does_not(tmp_path, lies):
    models = {}
    for aggregate, liar in (("mean", False), ("mean", True), ("median", True), ("geometric-median", True)):
        folder = tmp_path / f"{aggregate}-{liar}"
        folder.mkdir()
        members = members_of(folder, f"algorithm.aggregate={aggregate}")
        lies(members, {members.server.cohorts[2][0]: flipped} if liar else {})
        first = members.server.model.copy()
        for _ in range(2):
            assert members.one_round()[0]["participants"] == 9
        models[aggregate, liar] = members.server.model - first
    honest = models["mean", False]

    def along(key):
        return float(np.vdot(models[key], honest) / np.vdot(honest, honest))

    assert along(("mean", True)) < 0.7, "the control: one member of nine takes half of the mean"
    assert along(("median", True)) > 0.85
    assert along(("geometric-median", True)) > 0.85


def test_new_cohorts_find_the_member_that_spoils_sums(tmp_path, lies):
    rounds = 16
    members = members_of(
        tmp_path, *FEDAVG, "cohorts.compare=true", f"rounds.total={rounds}", "cohorts.size=2", "cohorts.dropouts=0"
    )
    lies(members, {4: flipped})
    rosters = set()
    for _ in range(rounds):
        rosters |= {tuple(one.members) for one in members.server.begin_sums(range(9))}
        members.one_round()
        if members.server.left_out():
            break
    assert members.server.left_out() == [4]
    assert len(rosters) > 12, "cohorts were drawn again in every round"
    members.begin()
    assert members.server.left_out() == [4], "the evidence is in the checkpoint"
    if not members.server.done:
        paid = members.spent(4)
        row, _ = members.one_round()
        assert row["participants"] in (7, 8)
        assert row["refused"] == 0
        assert members.spent(4) == paid, "it is not invited any more"
    assert members.refusals == []


def test_a_server_that_makes_other_cohorts_gets_nothing_from_members_who_list_their_own(tmp_path):
    """At most t of the keys that a member lists collude, whichever rosters a server makes of them."""
    members = members_of(tmp_path)
    first, second, _ = members.server.cohorts
    for client, node in members.nodes.items():
        own = next(cohort for cohort in members.server.cohorts if client in cohort)
        keys = ", ".join(f'"{members.keys[member]}"' for member in own)
        policy = tmp_path / f"policy-{client}.toml"
        policy.write_text(POLICY.format(epsilon=500.0, keys=keys, size=3, colluding=0))
        members.nodes[client] = node._replace(policy=policy)
    assert members.one_round()[0]["participants"] == 9
    first[0], second[0] = second[0], first[0]
    row, closed = members.one_round()
    assert row["participants"] == 3
    assert "0 members sent keys" in closed
    assert {code for _, _, code in members.refusals} == {"roster"}
    assert members.spent(first[1]) == [0]


def test_terms_of_larger_cohorts_keep_the_honest_members_that_the_noise_is_made_for(tmp_path):
    config = load_config("plain", [*SETTINGS, *NINE, "data.clients=11", "cohorts.size=4", "cohorts.colluding=1"])
    agreement = agree_on(make_job(config, 30, ["no", "yes"], [f"x{j}" for j in range(4)]))
    keys = [f"{number:064x}" for number in range(11)]
    for invited in range(4, 12):
        terms = agreement.terms(0, tuple(keys[:invited]))
        terms.check()
        assert terms.cohort.honest >= agreement.sums.cohort.honest
        assert terms.cohort.dropouts == agreement.sums.cohort.dropouts
        assert terms.sigma == agreement.terms(0, tuple(keys[:4])).sigma


def test_an_old_checkpoint_that_was_put_back_is_not_a_run_of_empty_rounds(tmp_path):
    members = members_of(tmp_path)
    members.one_round()
    kept = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    for _ in range(4):
        members.one_round()
    for path, content in kept.items():
        path.write_bytes(content)
    members.begin()
    for _ in range(2):
        assert members.one_round()[0]["participants"] == 0
    with pytest.raises(UserError, match=r"^3 rounds in a row ended without a sum.* 9 clients have begun these su") as stopped:
        members.one_round()
    assert "\n" not in str(stopped.value)
    assert members.spent(0) == [0, 1, 2, 3, 4], "nothing was spent twice"


def test_sums_are_compared_only_where_there_are_several(tmp_path):
    with pytest.raises(
        ConfigError, match=r"^cohorts\.compare=true holds the sums of a round against each other, and a round has 1"
    ):
        members_of(tmp_path, "cohorts.size=9", "cohorts.colluding=1", "cohorts.compare=true")


def test_several_cohorts_find_one_basis(tmp_path):
    """Each cohort has its sum of second moments; a cohort whose sum stays closed is left out of the mean."""
    basis = ("data.basis=private", "data.basis_size=3", "data.scaling=unit")
    members = members_of(tmp_path, *basis)
    away = members.server.cohorts[0][:2]
    count, dropped = members.sum_moments(dies=away)
    assert (count, len(dropped)) == (6, 1)
    a, there = agree_on(members.job), [c for cohort in members.server.cohorts[1:] for c in cohort]
    rows = [np.load(tmp_path / f"own-{client}.npz")["features"].astype(float) for client in there]
    exact, noise = np.mean([a.first.release.mean(own, 30, None) for own in rows], axis=0), a.sigma(6) / 6**0.5
    assert np.abs(members.server.standards._moments.means - exact).max() < 6 * noise < 0.1
    row, closed = members.one_round()
    assert (row["participants"], members.refusals, closed) == (9, [], "")
