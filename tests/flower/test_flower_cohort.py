"""Deployed members of a cohort: durable steps, policy, ledger before share, exact sums, sums that stay closed."""

import contextlib
import dataclasses
import math
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cohort_kit import POLICY, SETTINGS, Members
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_kit import give, refused, spends
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpdm.config import load_config
from fedpdm.data.schema import Number, Schema
from fedpdm.engines.flower.client.client import Node, answer, introduce
from fedpdm.engines.flower.client.identity import public_key
from fedpdm.engines.flower.client.node_data import ClientExamples, NodeSource
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.cohort import node as cohort_node
from fedpdm.engines.flower.cohort.agreement import agree_on
from fedpdm.engines.flower.cohort.killer import Death, Killer
from fedpdm.engines.flower.cohort.share import first_contribution, member_contribution
from fedpdm.engines.flower.job import make_job
from fedpdm.engines.flower.processes.status import client_status
from fedpdm.engines.flower.protocol import STEPS, Meeting, Request
from fedpdm.errors import UserError
from fedpdm.report.html import write_report
from fedpdm.runs.saved import load_model
from fedpdm.runs.spent import read_accounts
from fedpdm.secure_sums.keys import public_text
from fedpdm.secure_sums.member import Member
from fedpdm.secure_sums.messages import ProtocolError, pack
from fedpdm.secure_sums.server import SumServer
from fedpdm.secure_sums.terms import Approval


@pytest.fixture
def recorded(monkeypatch):
    """The words of every share that was made, by round, in the order of the members: the arrays that went under the masks."""
    made, real = {}, cohort_node.make_share

    def share(agreement, own, broadcast, state, round_index, spend):
        words = real(agreement, own, broadcast, state, round_index, spend)
        made.setdefault(round_index, []).append(words)
        return words

    monkeypatch.setattr(cohort_node, "make_share", share)
    return made


def test_a_cohort_trains_and_every_sum_is_exact_whoever_dies(tmp_path, recorded):
    members = Members(tmp_path)
    for victim, step in enumerate(STEPS):
        before = members.server.model.copy()
        row, _ = members.one_round({victim: step})
        there = [c for c in range(5) if c != victim or step in ("agree", "reveal")]
        assert (row["participants"], row["missing"]) == (len(there), 5 - len(there))
        assert len(recorded[victim]) == len(there)
        total = sum(words.astype(object) for words in recorded[victim])
        assert members.server.sums[0].tolist() == [int(v) % 2**32 for v in total]
        assert (members.server.model != before).any()
    assert members.refusals == []
    assert members.spent(1) == [0, 2, 3, 4]  # it died before its share of round 1 was made
    assert members.spent(4) == [0, 1, 2, 3, 4]  # it died after its share of round 4 had left
    assert members.server.taken_part().tolist() == [4, 4, 4, 5, 5]
    for _ in range(3):
        members.one_round()
    summary = members.server.finish()
    assert summary["messages_used"] == 37
    assert summary["epsilon"] == pytest.approx(40.0, rel=1e-4)
    assert "against a server that sees only sums over at least 4 of 5 cohort members" in summary["guarantee"]
    source, accounts = read_accounts(tmp_path / "run")
    assert source == "asked"
    assert [account["releases"] for account in accounts] == [7, 7, 8, 8, 8]  # two were once not asked for a share
    assert load_model(tmp_path / "run").class_names == ("no", "yes")
    assert "secure" in write_report([tmp_path / "run"]).read_text()
    status = client_status(members.nodes[4].state_dir)
    (job,) = status["jobs"]
    assert (job["messages"], job["releases"], job["accepted"]) == (8, 8, 7)  # of the last one it has not heard yet
    assert status["trouble"] is None


def test_below_the_threshold_a_round_fails_closed_and_the_ledger_has_what_left(tmp_path):
    members = Members(tmp_path)
    before = members.server.model.copy()
    row, closed = members.one_round({0: "agree", 3: "agree"})
    assert row["participants"] == 0
    assert "stays closed" in closed
    np.testing.assert_array_equal(members.server.model, before)
    assert members.spent(0) == members.spent(1) == [0]
    row, closed = members.one_round()
    assert (row["participants"], closed) == (5, "")


def test_a_member_that_spoils_every_sum_ends_the_run_before_all_budgets_are_spent(tmp_path, monkeypatch):
    members, real = Members(tmp_path), cohort_node.make_share
    before = members.server.model.copy()

    def spoilt(*arguments):
        return real(*arguments) + np.uint32(2**28)

    monkeypatch.setattr(cohort_node, "make_share", spoilt)
    for _ in range(2):
        row, closed = members.one_round()
        assert row["participants"] == 0
        assert "The sum is refused (far:" in closed
    with pytest.raises(UserError, match=r"^3 sums in a row were refused\. .* begin a new job without it") as stopped:
        members.one_round()
    assert "\n" not in str(stopped.value)
    assert (members.server.model == before).all()
    assert members.spent(0) == [0, 1, 2]
    members.begin()  # who runs again goes on with the next round
    assert members.server.round == 3
    monkeypatch.setattr(cohort_node, "make_share", real)
    assert members.one_round()[1] == ""


def test_the_demonstration_kills_who_waits_in_its_step_and_nobody_else(tmp_path):
    """A real process that waits for the member's folder, as the node's does."""
    members = Members(tmp_path)
    members.one_round({0: "masked"})
    states = [node.state_dir for node in members.nodes.values()]
    code = "import fcntl, sys; lock = open(sys.argv[1], 'w'); print(flush=True); fcntl.flock(lock, 2); print(flush=True)"
    deaths = [Death(0, 0, "agree"), Death(0, 0, "masked"), Death(0, 1, "masked")]
    waiting: list[subprocess.Popen[bytes]] = []
    federation = SimpleNamespace(find=lambda name, _: [one.pid for one in waiting if name == "node-0"])
    with Killer(federation, members.job.digest, states, deaths) as killer:
        assert killer.look(0) == []  # the folder is held, and nobody waits yet
        waiting.append(subprocess.Popen([sys.executable, "-c", code, str(states[0] / ".lock")], stdout=subprocess.PIPE))
        assert waiting[0].stdout.readline()
        assert killer.look(0) == [Death(0, 0, "masked")]
        assert waiting[0].communicate(timeout=60) == (b"", None)  # it never got the folder
        assert waiting[0].returncode == -signal.SIGKILL


def test_a_server_that_died_in_a_sum_goes_on_with_the_next_round(tmp_path):
    """Members take part in one sum per round: what was under way stays closed, and what had left stays on the ledgers."""
    members = Members(tmp_path)
    members.one_round()
    model = members.server.model.copy()
    taken = []

    def dies(requests):
        if "masked" in taken:
            raise KeyboardInterrupt
        taken.append(next(iter(requests.values())).task)
        return [(client, answer(members.nodes[client], request)) for client, request in requests.items()]

    with pytest.raises(KeyboardInterrupt):
        members.server.one_round(dies, members.nodes)
    members.begin()
    assert members.server.round == 2
    np.testing.assert_array_equal(members.server.model, model)
    row, closed = members.one_round()
    assert (row["round"], row["participants"], closed) == (3, 5, "")
    assert [row["participants"] for row in members.server.folder.rows()] == [5, 0, 5]
    assert members.spent(0) == [0, 1, 2]
    assert members.refusals == []


def test_a_member_that_comes_back_with_another_key_ends_the_run(tmp_path):
    members = Members(tmp_path)
    with pytest.raises(UserError, match="Client 2 has another key than before"):
        members.server.meet({2: "ab" * 32})


def test_no_share_leaves_beyond_the_budget_of_the_policy(tmp_path):
    members = Members(tmp_path, epsilon=1.0)  # far below what the job asks for
    _, closed = members.one_round()
    assert "0 members sent shares" in closed
    assert sorted(members.refusals) == [(client, "masked", "budget") for client in range(5)]
    assert members.spent(0) == []


def test_a_member_refuses_what_its_policy_or_its_own_arithmetic_does_not_allow(tmp_path):
    members = Members(tmp_path)
    terms, job = members.server.agreement.terms(0, tuple(sorted(members.keys.values()))), members.job.digest
    node = members.nodes[0]

    def asked(task="advertise", job=job, t=0, **change):
        content = pack("step", [dataclasses.replace(terms, **change).encode(), b""])
        return refused(answer(node, Request(task, job, t, 0, "", content)))

    assert asked(sigma=terms.sigma / 2) == "sum"
    assert asked(settings="other") == "sum"
    assert asked(scale=2**8) == "sum"
    assert asked(round=3) == "sum"
    assert asked(roster=tuple(sorted([*terms.roster[1:], "ab" * 32]))) == "roster"
    assert asked(job="0" * 64) == "job"
    assert asked(t=8) == "participations"
    assert asked("train") == "settings"  # no message of a single client leaves in such a job
    assert asked() == ""
    assert asked() == "sum"  # there is one sum per round
    assert asked("reveal") == "sum"
    assert introduce(node, Meeting(job)).key == members.keys[0]
    (tmp_path / "policy.toml").write_text((tmp_path / "policy.toml").read_text().split("[cohort]")[0])
    assert asked() == introduce(node, Meeting(job)).refused == "roster"


def test_secrets_of_a_member_are_for_its_owner_alone(tmp_path):
    members = Members(tmp_path)
    members.one_round()
    for name in ("identity.key", "sums.sqlite"):
        assert (members.nodes[0].state_dir / name).stat().st_mode & 0o077 == 0


def test_the_disk_of_a_member_opens_no_sum_of_the_past(tmp_path):
    """Neither one that was opened nor one that stayed closed; the sum that is under way needs its secrets."""
    members = Members(tmp_path)
    members.one_round()
    folder = members.nodes[0].state_dir

    def secrets() -> int:
        return sum(path.read_bytes().count(b'"secrets"') for path in folder.glob("sums.sqlite*"))

    assert secrets() == 0
    members.one_round(dies={1: "masked", 2: "masked", 3: "masked"})
    members.one_round()
    assert b'"pieces"' not in (folder / "sums.sqlite").read_bytes()
    assert secrets() == 0


class Neighbour:
    """A member whose four peers are honest, and whose server is not: it changes what it sends in a step, or sends it twice."""

    def __init__(self, folder, number, rows, identity):
        self.folder = folder / str(number)
        self.folder.mkdir()
        features = np.array([row for row, _ in rows], np.float32).reshape(len(rows), 4)
        np.savez(self.folder / "rows.npz", features=features, labels=np.array([label for _, label in rows], np.float64))
        source = NodeSource(0, self.folder / "rows.npz", None, None)
        self.node = Node(source, self.folder / "state", self.folder / "policy.toml")
        (self.folder / "state").mkdir()
        (self.folder / "state" / "identity.key").write_bytes(identity.private_bytes_raw())

    def hold(self, job, policy):
        give(self.node, job)
        self.node.policy.write_text(policy)
        with open_store(self.node.state_dir):  # as `approve` does: from here on the folder is private
            pass

    def sum(self, terms, peers, approval, changes, vectors):
        """All that the server sees of the member's answers but the numbers themselves; `changes` by step."""
        server = SumServer(terms)
        members = {terms.number_of(public_text(key)): Member(key, approval, terms) for key in peers}
        own, seen = terms.number_of(public_key(self.node.state_dir)), []
        makes = (server.invitation, server.all_keys, lambda: server.pieces_for(own), server.survivors_list, server.agreements)
        takes = (server.take_keys, server.take_pieces, server.take_masked, server.take_agreement, server.take_reveal)
        for step, name in enumerate(STEPS):
            try:
                message = makes[step]()
            except (ProtocolError, KeyError):  # too few members are left, or this one is not among them
                message = b""
            for place in changes.get(name, [None]):
                changed = bytearray(message or b"nothing")
                if place is not None:
                    changed[place % len(changed)] ^= 1 + place % 255
                content = pack("step", [bytes(changed), vectors if name == "masked" else b""])
                reply = answer(self.node, Request(name, terms.job, terms.round, 0, "", content))
                seen.append((name, refused(reply), len(reply.vectors)))
                if reply.vectors:
                    with contextlib.suppress(ProtocolError):
                        takes[step](own, reply.vectors)
            self._peers(step, name, server, members, takes, terms)
        return seen

    def _peers(self, step, name, server, members, takes, terms):
        for number, member in members.items():
            with contextlib.suppress(ProtocolError, KeyError):
                if name == "advertise":
                    said = member.advertise()
                elif name == "masked":
                    said = member.masked(server.pieces_for(number), lambda: np.zeros(terms.words, np.uint32))
                else:
                    made = {"pieces": server.all_keys, "agree": server.survivors_list, "reveal": server.agreements}[name]()
                    said = getattr(member, name)(made)
                takes[step](number, said)


@pytest.fixture(scope="module")
def cohort_of_five():
    job = make_job(load_config("plain", SETTINGS), 30, ["no", "yes"], [f"x{j}" for j in range(4)])
    identities = [Ed25519PrivateKey.generate() for _ in range(5)]
    keys = sorted(public_text(identity) for identity in identities)
    policy = POLICY.format(epsilon=40.0, keys=", ".join(f'"{key}"' for key in keys), size=5, colluding=1)
    return job, identities, policy, agree_on(job).terms(0, tuple(keys)), Approval(frozenset(keys), 5, 1, 1)


NUMBERS = st.sampled_from([0.0, 0.3, -1.0, 1e-42, 3e38, -3e38, math.inf, math.nan])
MODELS = st.sampled_from([0.0, 0.1, 9e5, 1e7, 3e38, math.inf, math.nan])


@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_neighbours_in_a_secure_sum_cannot_be_told_apart(data, cohort_of_five):
    """One lacks a row of the other; a hostile server changes bytes of steps, repeats them, and sends odd models."""
    job, identities, policy, terms, approval = cohort_of_five
    rows = data.draw(
        st.lists(st.tuples(st.lists(NUMBERS, min_size=4, max_size=4), st.sampled_from([0.0, 1.0, 7.0])), min_size=2)
    )
    place = st.one_of(st.none(), st.none(), st.integers(0, 10**6))
    changes = data.draw(st.dictionaries(st.sampled_from(STEPS), st.lists(place, min_size=1, max_size=2)))
    width = 4 * (job.shape[0] * job.shape[1]) * 2 + data.draw(st.sampled_from([0, 0, 0, 4]))
    vectors = np.full(width // 4, data.draw(MODELS), "<f4").tobytes()
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        pair = [Neighbour(Path(folder), i, rows[: len(rows) - i], identities[0]) for i in range(2)]
        for one in pair:
            one.hold(job, policy)
        seen = [one.sum(terms, identities[1:], approval, changes, vectors) for one in pair]
        assert seen[0] == seen[1]
        assert [spends(one.node) != [] for one in pair] in ([True, True], [False, False])


PERSONS = Schema(
    label="y", classes=["no", "yes"], unit_column="who", columns={f"x{j}": Number(low=0, high=1) for j in range(4)}
)


def persons_job(*more):
    config = load_config("plain", [*SETTINGS, "data.scaling=bounded", *more])
    return make_job(config, 30, PERSONS.outputs, PERSONS.feature_names, table=PERSONS.model_dump(), unit_rows=3)


@pytest.mark.parametrize("counts_rows", [False, True])
@pytest.mark.parametrize(
    "mode", [["privacy.mode=linearised"], ["privacy.mode=contractive", "local.steps=4", "local.step_size=0.5"]]
)
def test_a_person_moves_a_share_by_the_bound_at_most(mode, counts_rows):
    """All rows of one person are empty or filled. If every row counts by itself, the search finds pairs beyond the bound."""
    a, rng, worst = agree_on(persons_job(*mode)), np.random.default_rng(0), 0.0
    algorithm, shape = a.setup.algorithm, a.job.shape
    for trial in range(40):
        x0 = np.asarray(rng.normal(size=shape) * rng.choice([0.1, 3.0]), np.float32)
        broadcast = algorithm.broadcast(algorithm.init_server(x0, 1))
        state = algorithm.init_client(x0)
        features = rng.normal(size=(a.places, shape[1])).astype(np.float32)
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        labels = rng.integers(0, 2, a.places).astype(np.int32)
        rows = 1 + trial % 3  # of the person in the first slot: alike, and against the model
        features[:rows] = features[0]
        labels[:rows] = np.argmin(x0 @ features[0])
        filled = rng.random(a.places) < 0.7
        filled[:3] = np.arange(3) < rows
        of_slot = np.maximum(filled.reshape(-1, 3).sum(axis=1), 1).repeat(3)
        weights = np.where(filled, 1.0 if counts_rows else 1 / of_slot, 0).astype(np.float32)
        features[~filled] = 0

        def solution(weights, features=features, labels=labels, filled=filled, broadcast=broadcast, state=state):
            own = ClientExamples(features, labels, filled, np.zeros(a.places, bool), weights, np.array(0))
            return member_contribution(a, own, broadcast, state, 0)

        without = solution(np.where(np.arange(a.places) < 3, np.float32(0), weights))
        worst = max(worst, float(np.linalg.norm(solution(weights) - without)) / a.sensitivity(0))
    assert worst > 1.5 if counts_rows else 0.9 < worst <= 1


def test_a_cohort_protects_persons(tmp_path):
    rng = np.random.default_rng(0)

    def write(folder, client, size):
        x, path = rng.random((size, 4)), folder / f"own-{client}.csv"
        lines = [f"p{row // 2},{','.join(f'{v:.3f}' for v in r)},{'yes' if r[0] > 0.5 else 'no'}" for row, r in enumerate(x)]
        path.write_text("\n".join(["who,x0,x1,x2,x3,y", *lines]) + "\n")
        return path

    members = Members(tmp_path, job=persons_job(), write=write)
    row, _ = members.one_round()
    assert (members.refusals, row["participants"]) == ([], 5)
    assert "all rows of one who" in members.server.finish()["guarantee"]
    with pytest.raises(UserError, match="clients_per_unit=2"):
        agree_on(persons_job("privacy.clients_per_unit=2"))


BASED = ["data.basis=private", "data.basis_size=3", "data.scaling=unit"]


def based_job(*more):
    return make_job(load_config("plain", [*SETTINGS, *BASED, *more]), 30, ["no", "yes"], [f"x{j}" for j in range(4)])


def test_a_cohort_trains_on_a_basis_of_its_second_moments(tmp_path):
    """The released mean is that of the members' rows up to the noise; the ledger has it; one member is away."""
    members = Members(tmp_path, job=based_job())
    assert members.server.standards.due
    count, dropped = members.sum_moments(dies=(2,))
    assert (count, len(dropped), members.server.standards.due) == (4, 0, False)
    a = agree_on(members.job)
    files = [np.load(tmp_path / f"own-{client}.npz")["features"].astype(float) for client in (0, 1, 3, 4)]
    moments = [a.first.release.mean(rows, 30, None) for rows in files]
    noise = a.sigma(8) / 2
    assert np.abs(members.server.standards._moments.means - np.mean(moments, axis=0)).max() < 6 * noise < 0.1
    row, _ = members.one_round()
    assert (members.refusals, row["participants"]) == ([], 5)
    assert members.server.model.shape == (2, 3)
    (first, *others) = spends(members.nodes[0])
    assert (first.job, first.round, first.mechanism_note) == (
        f"{members.job.digest}:standard",
        0,
        "second moment of the features, secure sum of 5 members",
    )
    assert first.sigma / first.sensitivity == pytest.approx(a.plan.standard_multiplier)
    assert [other.round for other in others] == [0]
    assert [spend.round for spend in spends(members.nodes[2])] == [0], "it was away in the first sum"
    members.begin()  # a server that begins again has the basis, and asks nobody for it
    assert not members.server.standards.due
    members.one_round()
    summary = members.server.finish()
    assert summary["epsilon"] < 40, "two rounds of eight, and the basis"
    assert load_model(tmp_path / "run").weights.shape == (2, 4), "the saved model is for the features before the basis"


def test_a_first_sum_that_stays_closed_ends_the_job_and_is_paid_for_once(tmp_path):
    members = Members(tmp_path, job=based_job())
    for _ in range(2):  # nobody takes part in it a second time
        with pytest.raises(UserError, match="begin a new job"):
            members.sum_moments(dies=(1, 2))
    assert [len(spends(members.nodes[client])) for client in range(5)] == [0, 0, 0, 0, 0]
    with pytest.raises(UserError, match=r'cohorts\.budget="sum"'):
        agree_on(based_job("cohorts.budget=own-share"))


def test_without_the_released_basis_no_share_is_made(tmp_path):
    members = Members(tmp_path, job=based_job())
    members.one_round()
    assert {(task, code) for _, task, code in members.refusals} == {("masked", "standard")}
    assert all(spends(node) == [] for node in members.nodes.values())


@pytest.mark.parametrize("cuts", [True, False])
def test_a_row_moves_a_second_moment_by_the_bound_at_most(cuts, monkeypatch):
    """One row is empty or filled. Where rows are not cut to norm 1, the search finds pairs beyond the bound."""
    from fedpdm.privacy import basis_release

    if not cuts:
        monkeypatch.setattr(basis_release, "cut_rows", lambda rows, radius=1.0: rows)
    a, rng, worst = agree_on(based_job()), np.random.default_rng(0), 0.0
    for _ in range(200):
        features = rng.normal(size=(30, a.job.width)).astype(np.float32) * np.float32(rng.choice([0.3, 1.0, 5.0]))
        filled = rng.random(30) < 0.7
        filled[0] = True
        weights = filled.astype(np.float32)

        def moment(weights, features=features, filled=filled):
            own = ClientExamples(features, np.zeros(30, np.int32), filled, np.zeros(30, bool), weights, np.array(0))
            return first_contribution(a, a.first, own)

        without = moment(np.where(np.arange(30) < 1, np.float32(0), weights))
        worst = max(worst, float(np.linalg.norm(moment(weights) - without)) / a.first.bound)
    assert 0.99 < worst <= 1 if cuts else worst > 1.5


def test_the_own_share_alone_counts_the_first_sum():
    with_basis, without = agree_on(based_job()).shared, agree_on(based_job("data.basis=none")).shared
    assert with_basis.own_epsilon == pytest.approx(without.own_epsilon, rel=0.05), "both spend the same budget in all"
    less = with_basis._replace(own_epsilon=20.0)
    found = [less.with_own_release(z, 1e-5, "add-remove").own_epsilon for z in (0.0, 0.5, 2.0, 1e6)]
    assert found[0] == math.inf
    assert found[0] > found[1] > found[2] > found[3] == pytest.approx(20.0, rel=1e-6)
