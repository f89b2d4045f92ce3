"""Deployed members of a cohort: durable steps, policy, ledger before share, exact sums, sums that stay closed."""

import dataclasses

import numpy as np
import pytest
from flower_kit import COMPILED, give, spends

from fedpdm.config import load_config
from fedpdm.engines.flower.client.client import Node
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.cohort import demo
from fedpdm.engines.flower.cohort import node as cohort_node
from fedpdm.engines.flower.cohort.local import Processes
from fedpdm.engines.flower.cohort.node import Step, answer_step, public_key
from fedpdm.engines.flower.cohort.training import STEPS, CohortTraining
from fedpdm.engines.flower.init import job_from
from fedpdm.engines.flower.job import make_job
from fedpdm.engines.flower.protocol import REFUSALS, Refused
from fedpdm.privacy.sums import Cohort

SIZES = (20, 30, 25, 25, 25)
SETTINGS = [
    "data.name=own",
    "data.clients=5",
    "data.features=raw",
    "data.radius=1.0",
    "algorithm.rho=0.1",
    "local.batch_size=0",
    "local.steps=1",
    "local.step_size=4.0",
    "rounds.total=8",
    "rounds.participants=0",
    "rounds.all_first=false",
    "privacy.mechanism=sound",
    "privacy.epsilon=40.0",
    "privacy.mode=linearised",
    "privacy.trust=cohorts",
    "cohorts.colluding=1",
    "cohorts.dropouts=1",
]
POLICY = """
[budget]
epsilon = {epsilon}
delta = 1e-5

[limits]
noise_multiplier_min = 0.1

[cohort]
keys = [{keys}]
size = 5
colluding = 1
dropouts = 1
"""
assert COMPILED  # programs are compiled once for all tests


class Members:
    """Five nodes in one process, whose answers can be lost; every step opens what the node keeps anew."""

    def __init__(self, folder, epsilon=40.0):
        rng = np.random.default_rng(0)
        self.job = make_job(load_config("plain", SETTINGS), 30, ["no", "yes"], [f"x{j}" for j in range(4)])
        self.nodes, self.refusals = {}, []
        for client, size in enumerate(SIZES):
            x = rng.normal(size=(size, 4))
            x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
            path = folder / f"own-{client}.npz"
            np.savez(path, features=x.astype("float32"), labels=(x[:, 0] > 0).astype("int32"))
            self.nodes[client] = Node(NodeSource(client, path, None, None), folder / f"state-{client}", folder / "policy.toml")
            give(self.nodes[client], self.job)
        self.keys = {client: public_key(node.state_dir) for client, node in self.nodes.items()}
        text = POLICY.format(epsilon=epsilon, keys=", ".join(f'"{key}"' for key in self.keys.values()))
        (folder / "policy.toml").write_text(text)
        self.training = CohortTraining(self.job, self.keys)

    def exchange(self, dies):
        def ask(steps):
            answers = {}
            for client, step in steps.items():
                if STEPS.index(step.name) >= STEPS.index(dies.get(client, "reveal")) and client in dies:
                    continue
                try:
                    answers[client] = answer_step(self.nodes[client], step)
                except Refused as refused:
                    self.refusals.append((client, step.name, refused.name))
            return answers

        return ask

    def spent(self, client):
        return [row.round for row in spends(self.nodes[client])]


@pytest.fixture
def recorded(monkeypatch):
    """The words of every share that was made, by client and round: the very arrays that went under the masks."""
    made, real = {}, cohort_node._share

    def share(place, step, agreement):
        made[place.node.client, step.round] = real(place, step, agreement)
        return made[place.node.client, step.round]

    monkeypatch.setattr(cohort_node, "_share", share)
    return made


def test_a_cohort_trains_and_every_sum_is_exact_whoever_dies(tmp_path, recorded):
    members = Members(tmp_path)
    for victim, step in enumerate(STEPS):
        before = members.training.model.copy()
        outcome = members.training.one_round(members.exchange({victim: step}))
        there = [c for c in range(5) if c != victim or step in ("agree", "reveal")]
        assert list(outcome.survivors) == there
        total = sum(recorded[c, victim].astype(object) for c in there)
        assert outcome.words.tolist() == [int(v) % 2**32 for v in total]
        assert (members.training.model != before).any()
    assert members.refusals == []
    assert members.spent(1) == [0, 2, 3, 4]  # it died before its share of round 1 was made
    assert members.spent(4) == [0, 1, 2, 3, 4]  # it died after its share of round 4 had left


def test_below_the_threshold_a_round_fails_closed_and_the_ledger_has_what_left(tmp_path):
    members = Members(tmp_path)
    before = members.training.model.copy()
    outcome = members.training.one_round(members.exchange({0: "agree", 3: "agree"}))
    assert outcome.survivors == ()
    assert "stays closed" in outcome.closed
    np.testing.assert_array_equal(members.training.model, before)
    assert members.spent(0) == members.spent(1) == [0]
    assert members.training.one_round(members.exchange({})).survivors == (0, 1, 2, 3, 4)


def test_no_share_leaves_beyond_the_budget_of_the_policy(tmp_path):
    members = Members(tmp_path, epsilon=1.0)  # far below what the job asks for
    outcome = members.training.one_round(members.exchange({}))
    assert "0 members sent shares" in outcome.closed
    assert sorted(members.refusals) == [(client, "masked", "budget") for client in range(5)]
    assert members.spent(0) == []


def test_a_member_refuses_what_its_policy_or_its_own_arithmetic_does_not_allow(tmp_path):
    members = Members(tmp_path)
    terms = members.training.terms()
    first = Step("advertise", members.job.digest, 0, terms.encode())

    def refused(step=first, **change):
        with pytest.raises(Refused) as found:
            answer_step(members.nodes[0], step._replace(message=dataclasses.replace(terms, **change).encode()))
        assert found.value.reason == REFUSALS[found.value.name]  # the server is told a constant text
        return found.value.name

    assert refused(sigma=terms.sigma / 2) == "sum"
    assert refused(settings="other") == "sum"
    assert refused(scale=2**8) == "sum"
    assert refused(round=3) == "sum"
    assert refused(roster=tuple(sorted([*terms.roster[1:], "ab" * 32]))) == "roster"
    assert refused(first._replace(job="0" * 64)) == "job"
    answer_step(members.nodes[0], first)
    assert refused() == "sum"  # there is one sum per round
    assert refused(first._replace(name="reveal")) == "sum"
    (tmp_path / "policy.toml").write_text((tmp_path / "policy.toml").read_text().split("[cohort]")[0])
    assert refused() == "roster"


def test_secrets_of_a_member_are_for_its_owner_alone(tmp_path):
    members = Members(tmp_path)
    members.training.one_round(members.exchange({}))
    for name in ("cohort.key", "sums.sqlite"):
        assert (members.nodes[0].state_dir / name).stat().st_mode & 0o077 == 0


def test_real_processes_take_a_sum_without_the_one_that_is_killed(tmp_path):
    """A process per member, on loopback; one is killed (-9) when it is asked for its share."""
    cohort = Cohort(4, 1, 1).check()
    job = job_from("plain", demo._settings(cohort, 2, 3.0), slots=None, data_dir=None)
    nodes = demo._nodes(tmp_path, cohort, 3.0, job, None)
    training = CohortTraining(job, {client: public_key(node.state_dir) for client, node in nodes.items()})
    with Processes(nodes) as processes:
        processes.start()
        processes.victims = {2: "masked"}
        assert training.one_round(processes.exchange).survivors == (0, 1, 3)
        assert (
            "2 members sent keys" in training.one_round(lambda steps: processes.exchange({c: steps[c] for c in (0, 1)})).closed
        )
    assert processes.refusals == []
    assert [row.round for row in spends(nodes[0])] == [0]
