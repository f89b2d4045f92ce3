"""A client's answer: the simulator's result, its own policy, its own ledger."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import polars
import pytest
from flower_kit import (
    CLASSES,
    FEATURES,
    PERMISSIVE,
    POLICY,
    configure,
    coordinator,
    first_request,
    give,
    job_of,
    make_nodes,
    one_round,
    own_arrays,
    refused,
    spends,
)
from hostile_kit import POLICY as ANY_JOB

from fedpdm.choices import ALGORITHMS
from fedpdm.data import federation_from_arrays
from fedpdm.data.basis_files import keep_public_rows
from fedpdm.engines.flower.client.app import node_of
from fedpdm.engines.flower.client.approve import explain
from fedpdm.engines.flower.client.client import ACCOUNT, Node, answer, introduce
from fedpdm.engines.flower.client.node_data import NodeSource, cut_norms
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.init import job_from
from fedpdm.engines.flower.job import job_toml, parse_job
from fedpdm.engines.flower.processes.status import client_status
from fedpdm.engines.flower.protocol import Meeting
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError, UserError
from fedpdm.privacy.accounting import compose_gdp, gdp_epsilon
from fedpdm.privacy.ledger import Ledger

SLOTS = 40


def federation():
    """The clients' rows in their slots: an empty one is zero."""
    padded = []
    for client in range(3):
        features, labels = own_arrays(client)
        more = SLOTS - len(labels)
        padded.append((np.pad(features, ((0, more), (0, 0))), np.pad(labels, (0, more))))
    return federation_from_arrays(padded, *own_arrays(0), class_names=[str(i) for i in range(CLASSES)])


SHARED = ["compression.kind=shared-randk", "compression.uplink=0.5"]
RANDOM = ["compression.kind=randk", "compression.uplink=0.5"]  # its indices travel


@pytest.mark.parametrize(
    ("algorithm", "settings"), [*((name, []) for name in ALGORITHMS), ("fedpdm", SHARED), ("fedpdm", RANDOM)]
)
def test_the_model_is_the_simulators(algorithm: str, settings: list[str], tmp_path: Path) -> None:
    uneven = ["rounds.participants=2", "rounds.sampling=uniform", "rounds.all_first=true"]
    config = configure(f"algorithm.name={algorithm}", "privacy.participations=3", *uneven, *settings)
    job = job_of(config=config, noise="simulation")
    nodes = make_nodes(tmp_path, PERMISSIVE, job=job)
    server = coordinator(tmp_path / "run", job)
    while not server.done:
        row, dropped = one_round(server, nodes)
        assert not dropped
    simulation = build_simulation(config, federation())
    rows = list(simulation.run())
    np.testing.assert_allclose(server.model, simulation.model, atol=2e-6)
    assert np.abs(simulation.model).max() > 0.05
    assert (row["uplink_bytes"], row["downlink_bytes"]) == (rows[-1]["uplink_bytes"], rows[-1]["downlink_bytes"])
    assert server.traffic() == simulation.traffic()


NO_MECHANISM = ["privacy.mechanism=none", "privacy.epsilon=", "privacy.clip="]


def test_mini_batches_are_the_simulators(tmp_path: Path) -> None:
    config = configure("local.batch_size=5", *NO_MECHANISM)
    job = job_of(config=config, noise="simulation")
    nodes = make_nodes(tmp_path, PERMISSIVE, job=job)
    server = coordinator(tmp_path / "run", job)
    while not server.done:
        one_round(server, nodes)
    simulation = build_simulation(config, federation())
    list(simulation.run())
    np.testing.assert_allclose(server.model, simulation.model, atol=2e-6)
    assert not spends(nodes[0])


def test_exact_noise_has_the_simulators_statistics(tmp_path: Path) -> None:
    """Messages of one model in many rounds: their mean is the noiseless message, their spread what the simulator says."""
    settings = ["rounds.total=400", "privacy.participations=40", "privacy.epsilon=2.0", "algorithm.name=fedavg"]
    job = job_of(*settings)
    nodes = make_nodes(tmp_path, PERMISSIVE, job=job)
    request = first_request(tmp_path / "run", job)
    messages, accepted = [], ""
    for t in range(30):
        reply = answer(nodes[0], request._replace(round=t, accepted=accepted))
        messages.append(_vector(reply))
        accepted = reply.message
    messages = np.stack(messages)
    simulation = build_simulation(configure(*settings), federation())
    assert simulation.plan is not None
    sigma = simulation.plan.noise_multiplier * simulation.plan.sensitivity(1.0, SLOTS)
    noise = messages - messages.mean(axis=0)
    count = noise.size - messages.shape[1]
    measured = np.sqrt((noise**2).sum() / count)
    assert measured == pytest.approx(sigma, rel=4 / np.sqrt(2 * count))
    assert len({message.tobytes() for message in messages}) == len(messages)


def _vector(reply) -> np.ndarray:
    from fedpdm.compression.wire import decode

    assert not reply.refused, reply.reason
    return decode(reply.vectors, dimensions=[CLASSES * FEATURES], limit=1e6)[0].values


def test_the_ledger_holds_the_budget_that_the_server_planned(tmp_path: Path) -> None:
    job = job_of()
    nodes = make_nodes(tmp_path, job=job)
    server = coordinator(tmp_path / "run", job)
    while not server.done:
        assert not one_round(server, nodes)[1]
    epsilons = []
    for node in nodes:
        rows = spends(node)
        assert [row.round for row in rows] == [0, 1, 2]
        epsilons.append(gdp_epsilon(compose_gdp(row.sigma / row.sensitivity for row in rows), 1e-5))
    assert max(epsilons) <= 1.0 + 1e-9
    assert min(epsilons) > 0.9999  # nothing is wasted either
    summary = server.finish()
    assert summary["epsilon"] == pytest.approx(1.0)
    assert "epsilon = 1 and delta = 1e-05" in summary["guarantee"]


def test_one_example_moves_the_solution_by_less_than_the_noise_was_made_for(tmp_path: Path) -> None:
    """The sensitivity on the ledger against real neighbours: a row more, and a row less. Client 1 has fewer rows than slots."""
    import fedpdm.engines.flower.client.work as work

    solutions = []

    def spy(*arguments):
        privacy = original(*arguments)

        def release(x, public):
            solutions.append(np.array(x))
            return privacy.release_solution(x, public)

        return privacy._replace(release_solution=release)

    original, work.secure = work.secure, spy
    job = job_of()
    try:
        for place in range(2):
            folder = tmp_path / str(place)
            folder.mkdir()
            nodes = make_nodes(folder, job=job)
            if place:
                features, labels = (np.delete(part, 7, axis=0) for part in own_arrays(1))
                np.savez(folder / "own-1.npz", features=features, labels=labels)
            assert not answer(nodes[1], first_request(folder / "run", job, 1)).refused
    finally:
        work.secure = original
    assert solutions[0].dtype == np.float64
    moved = np.linalg.norm(solutions[0] - solutions[1])
    bound = spends(nodes[1])[0].sensitivity
    assert 0.05 * bound < moved < bound


# Jobs that void the guarantee, held by a careless client nevertheless: each is refused by a code, and nothing is spent.
VOIDING = {
    "more noise-free epsilon": (["privacy.epsilon=40.0"], "noise"),
    "another clip": (["privacy.clip=1.4", "data.radius=3.0", "local.step_size=0.1"], "clip"),
    "a step size that expands": (["local.step_size=3.99", "problem.beta=0.1"], "settings"),
    "a step size beyond the policy": (["local.step_size=4.5"], "step-size"),
    "too many steps": (["local.steps=51"], "steps"),
    "more than one pass": (["local.batch_size=10", "local.steps=5"], "settings"),
    "data-dependent stopping": (["local.tolerance=1e-3", "privacy.mode=contractive"], "settings"),
    "no mechanism": (NO_MECHANISM, "mechanism"),
    "the paper's mechanism": (["privacy.mechanism=paper"], "mechanism"),
    "noise inside the solver": (["privacy.mode=every-step"], "mode"),
    "a radius beyond the policy": (["data.radius=200.0"], "radius"),
    "too many rounds": (["rounds.total=200000", "privacy.participations=3"], "rounds"),
}


@pytest.mark.parametrize("name", VOIDING)
def test_a_job_that_voids_the_guarantee_is_refused(name: str, tmp_path: Path) -> None:
    changes, code = VOIDING[name]
    job, honest = job_of(*changes), job_of()
    nodes = make_nodes(tmp_path, job=honest)
    give(nodes[0], job)
    request = first_request(tmp_path / "run", honest)
    assert refused(answer(nodes[0], request._replace(job=job.digest))) == code
    assert introduce(nodes[0], Meeting(job.digest)).refused == code
    assert not spends(nodes[0])
    assert not refused(answer(nodes[0], request)), "the honest job is answered"


def test_a_client_answers_jobs_that_it_holds_and_no_others(tmp_path: Path) -> None:
    """A request carries no settings: a job that nobody approved, or whose file was changed, is not answered."""
    job, other = job_of(), job_of("local.steps=5")
    assert job.digest != job_of().digest, "a job is made once"
    assert parse_job(job_toml(job)).digest == job.digest
    nodes = make_nodes(tmp_path, job=job)
    request = first_request(tmp_path / "run", job)
    for name in (other.digest, "0" * 64):
        assert refused(answer(nodes[0], request._replace(job=name))) == "job"
        assert introduce(nodes[0], Meeting(name, job_toml(other))).refused == "job"
    path = nodes[0].state_dir / "jobs" / f"{job.digest}.toml"
    path.write_text(path.read_text().replace("steps = 4", "steps = 5"))
    assert refused(answer(nodes[0], request)) == "job"
    assert not spends(nodes[0])


def test_seeded_noise_is_refused_unless_the_policy_allows_it(tmp_path: Path) -> None:
    job = job_of(noise="simulation")
    nodes = make_nodes(tmp_path, job=job)
    request = first_request(tmp_path / "run", job)
    assert refused(answer(nodes[0], request)) == "noise"
    (tmp_path / "policy.toml").write_text(POLICY + '[allow]\nnoise = ["simulation"]\n')
    assert not refused(answer(nodes[0], request))


def test_more_rounds_are_refused_by_the_job_then_by_the_budget_whatever_the_job_is_called(tmp_path: Path) -> None:
    job, another, longer = job_of("rounds.total=6", "privacy.participations=3"), job_of(), job_of("rounds.total=10")
    nodes = make_nodes(tmp_path, job=job)
    give(nodes[0], another, longer)
    request = first_request(tmp_path / "run", job)
    for t in range(3):
        reply = answer(nodes[0], request._replace(round=t))
        assert not reply.refused, reply.reason
        request = request._replace(accepted=reply.message)
    for t in (3, 6, 2**31 - 2):
        assert refused(answer(nodes[0], request._replace(round=t))) == "participations"
    fresh = request._replace(accepted="")
    assert refused(answer(nodes[0], fresh._replace(job=another.digest, round=0))) == "budget"
    replies = [refused(answer(nodes[0], fresh._replace(job=longer.digest, round=t))) for t in range(10)]
    assert set(replies) <= {"budget", "participations"}, "less noise per round does not bring the budget back"
    assert len(spends(nodes[0])) == 3


def test_the_budget_holds_over_many_small_jobs(tmp_path: Path) -> None:
    jobs = [job_of("rounds.total=8") for _ in range(12)]
    nodes = make_nodes(tmp_path, job=jobs[0])
    give(nodes[0], *jobs)
    request = first_request(tmp_path / "run", jobs[0])
    granted = sum(not refused(answer(nodes[0], request._replace(job=job.digest))) for job in jobs)
    assert granted == 8
    with Ledger(nodes[0].state_dir / "ledger.sqlite") as ledger:
        assert ledger.spent(ACCOUNT)[0] <= 1.0 + 1e-9


def test_a_basis_named_by_its_digest_is_taken_if_it_was_approved_or_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator sees the digest when approving; a client that takes any job within limits lists it."""
    monkeypatch.setenv("FEDPDM_CACHE", str(tmp_path / "cache"))
    name = keep_public_rows(np.random.default_rng(0).uniform(size=(50, FEATURES)).astype(np.float32))
    settings = ["data.features=fourier", "data.fourier_count=6", f"data.basis={name}", "data.basis_size=3", "data.scaling="]
    job = job_of(*settings)
    assert any(name in line for line in explain(job))
    node = make_nodes(tmp_path, job=job)[0]
    assert not refused(answer(node, first_request(tmp_path / "run", job)))
    for bases, code in (('"none"', "map"), (f'"{name}"', "")):
        policy = ANY_JOB.replace('bases = ["none", "private"]', f"bases = [{bases}]").replace(
            "slots_max = 10", "slots_max = 40"
        )
        node.policy.write_text(policy.replace("basis_size_max = 2", "basis_size_max = 3"))
        assert introduce(node, Meeting(job.digest)).refused == code, bases
    node.policy.write_text(ANY_JOB.replace('bases = ["none", "private"]', 'bases = ["sha256:12"]'))
    with pytest.raises(ConfigError, match="sha256:12 is not a basis"):
        load_policy(node.policy)


def test_a_changed_policy_does_not_reset_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, next_job = job_of(), job_of()
    nodes = make_nodes(tmp_path, job=job)
    give(nodes[0], next_job)
    request = first_request(tmp_path / "run", job)
    assert not refused(answer(nodes[0], request))
    (tmp_path / "policy.toml").write_text(POLICY.replace("epsilon = 1.0", "epsilon = 9.0"))
    assert refused(answer(nodes[0], request._replace(job=next_job.digest))) == "budget"
    assert "stay within" in capsys.readouterr().err
    (tmp_path / "policy.toml").write_text(POLICY.replace("epsilon = 1.0", "epsilon = 0.2"))
    assert refused(answer(nodes[0], request._replace(job=next_job.digest))) == "budget", "a tighter one takes effect"
    assert client_status(nodes[0].state_dir)["budget"]["epsilon"] == 0.2


def test_a_repeat_is_answered_with_the_same_bytes_and_spends_nothing(tmp_path: Path) -> None:
    job = job_of()
    nodes = make_nodes(tmp_path, job=job)
    request = first_request(tmp_path / "run", job)
    first = answer(nodes[0], request)
    assert answer(nodes[0], request) == first
    assert len(spends(nodes[0])) == 1


@pytest.mark.parametrize("change", ["model", "accepted"])
def test_another_request_for_an_answered_round_is_refused(change: str, tmp_path: Path) -> None:
    job = job_of()
    nodes = make_nodes(tmp_path, PERMISSIVE, job=job)
    request = first_request(tmp_path / "run", job)
    assert not refused(answer(nodes[0], request))
    other = {
        "model": request._replace(vectors=first_request(tmp_path / "other", job_of("seed=5")).vectors),
        "accepted": request._replace(accepted="0" * 32),
    }[change]
    assert refused(answer(nodes[0], other)) == "repeat"
    assert len(spends(nodes[0])) == 1


def test_rounds_do_not_go_back(tmp_path: Path) -> None:
    job = job_of()
    nodes = make_nodes(tmp_path, job=job)
    request = first_request(tmp_path / "run", job)
    assert not refused(answer(nodes[0], request._replace(round=2)))
    assert refused(answer(nodes[0], request._replace(round=1))) == "order"


@pytest.mark.parametrize("bad", [b"", b"fp", b"pickle" * 20], ids=["nothing", "cut", "foreign"])
def test_a_broken_model_is_refused_and_costs_nothing(bad: bytes, tmp_path: Path) -> None:
    job = job_of()
    nodes = make_nodes(tmp_path, job=job)
    request = first_request(tmp_path / "run", job)
    assert refused(answer(nodes[0], request._replace(vectors=bad))) == "model"
    assert not spends(nodes[0])


def test_a_huge_model_is_refused_whatever_the_data(tmp_path: Path) -> None:
    from fedpdm.compression.wire import encode, make_part

    for size, name in ((2e6, "model"), (9e5, "")):
        job = job_of("algorithm.rho=0.5")
        (tmp_path / str(size)).mkdir()
        nodes = make_nodes(tmp_path / str(size), job=job)
        values = np.full((CLASSES, FEATURES), size, np.float32)
        vectors = encode([make_part(values, np.ones_like(values, bool))])
        request = first_request(tmp_path / str(size) / "run", job)
        assert refused(answer(nodes[0], request._replace(vectors=vectors))) == name


def test_a_dual_moves_only_with_messages_that_the_server_used(tmp_path: Path) -> None:
    job = job_of("rounds.total=4", "algorithm.server_rule=dual-memory")
    nodes = make_nodes(tmp_path, job=job)
    server = coordinator(tmp_path / "run", job)
    for lost in (False, True, False, False):
        asked = server.requests(server.chosen())
        replies = [(i, answer(nodes[i], request)) for i, request in asked.items()]
        server.take(asked, replies[lost:])  # client 0 worked and spent, but its reply was lost
    with open_store(nodes[0].state_dir) as store:
        assert [message.status for message in store.messages()] == ["accepted", "dropped", "accepted", "pending"]
    memory = np.asarray(server.state.server.memory[0])
    with open_store(nodes[0].state_dir) as store:
        last = store._connection.execute("SELECT next_state FROM messages WHERE status = 'pending'").fetchone()[0]
    from safetensors.numpy import load

    np.testing.assert_allclose(load(last)["000"], memory, atol=1e-5)


def test_an_old_copy_of_the_folder_is_noticed(tmp_path: Path) -> None:
    job = job_of()
    nodes = make_nodes(tmp_path, job=job)
    server = coordinator(tmp_path / "run", job)
    one_round(server, nodes)
    for file in nodes[0].state_dir.glob("state.sqlite*"):
        file.unlink()
    _, dropped = one_round(server, nodes)
    assert len(dropped) == 1
    assert dropped[0].startswith("client 0: state: ")
    assert server.round == 2, "the run goes on"


KILL = """
import os, pickle, signal, sys
from pathlib import Path
import fedpdm.engines.flower.client.client as client
from fedpdm.engines.flower.client.store import Store
from fedpdm.privacy.ledger import Ledger

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def then_die(function):
    def wrapped(*arguments, **named):
        function(*arguments, **named)
        die()
    return wrapped

node, request = pickle.loads(Path(sys.argv[1]).read_bytes())
if sys.argv[2] == "solving":
    client.Work.make = die
elif sys.argv[2] == "spent":
    Ledger.spend = then_die(Ledger.spend)
elif sys.argv[2] == "kept":
    Store.keep = then_die(Store.keep)
elif sys.argv[2] == "full":
    import resource
    node.state_dir.mkdir(exist_ok=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
reply = client.answer(node, request)
sys.stdout.write(reply.refused or "answered " + reply.message)
"""


def run_answer(tmp_path: Path, node: Node, request, *how: str) -> subprocess.CompletedProcess:
    import pickle

    (tmp_path / "case").write_bytes(pickle.dumps((node, request)))
    command = [sys.executable, "-c", textwrap.dedent(KILL), str(tmp_path / "case"), *how]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize(
    ("where", "spent", "then"), [("solving", 0, "answered"), ("spent", 1, "spent"), ("kept", 1, "answered")]
)
def test_kill_minus_nine_of_the_clients_process(where: str, spent: int, then: str, tmp_path: Path) -> None:
    job = job_of()
    nodes = make_nodes(tmp_path, job=job)
    request = first_request(tmp_path / "run", job)
    assert run_answer(tmp_path, nodes[0], request, where).returncode == -9
    assert len(spends(nodes[0])) == spent
    again = run_answer(tmp_path, nodes[0], request, "unhurt").stdout
    assert again.startswith(then)
    assert len(spends(nodes[0])) == 1, "never twice"
    if then == "answered":
        assert run_answer(tmp_path, nodes[0], request, "unhurt").stdout == again


def test_a_full_disk_releases_nothing_and_the_next_try_is_honest(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: it fails at every point of the step, one limit after another."""
    job = job_of()
    request = first_request(tmp_path / "run", job)
    outcomes = set()
    for limit in (0, 4_096, 24_000, 40_000, 60_000):
        folder = tmp_path / str(limit)
        folder.mkdir()
        node = make_nodes(folder, job=job)[0]
        said = run_answer(folder, node, request, "full", str(limit))
        assert said.returncode == 0, said.stderr
        assert "Traceback" not in said.stderr
        outcomes.add(said.stdout.split()[0])
        if said.stdout.startswith("answered"):
            assert len(spends(node)) == 1
            continue
        after = answer(node, request)
        assert len(spends(node)) == 1
        assert after.refused in ("", "spent")
    assert "node" in outcomes


def test_two_processes_at_once_make_one_release(tmp_path: Path) -> None:
    import pickle

    job = job_of()
    node = make_nodes(tmp_path, job=job)[0]
    request = first_request(tmp_path / "run", job)
    (tmp_path / "case").write_bytes(pickle.dumps((node, request)))
    command = [sys.executable, "-c", textwrap.dedent(KILL), str(tmp_path / "case"), "unhurt"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate(timeout=900)[0] for process in both}
    assert len(said) == 1
    assert said.pop().startswith("answered")
    assert len(spends(node)) == 1


def test_the_status_tells_budget_rounds_and_last_message(tmp_path: Path) -> None:
    job = job_of()
    nodes = make_nodes(tmp_path, job=job)
    server = coordinator(tmp_path / "run", job)
    one_round(server, nodes)
    one_round(server, nodes)
    answer(nodes[0], server.requests([0])[0]._replace(accepted="0" * 32))
    report = client_status(nodes[0].state_dir)
    assert report["budget"]["releases"] == 2
    assert 0 < report["budget"]["epsilon_spent"] < 1
    assert report["jobs"][0]["rounds"] == [0, 1]
    assert report["last_message"]["status"] == "pending"
    assert report["refusals"][-1]["name"] == "state"
    assert report["jobs"][0]["epsilon_spent"] == pytest.approx(report["budget"]["epsilon_spent"])
    assert report["jobs"][0]["epsilon_most"] == pytest.approx(1.0)
    assert report["today"] == {"introductions": 0, "requests": 3, "refusals": 1, "jobs": 0, "bytes": report["today"]["bytes"]}
    with pytest.raises(UserError, match="holds no client's state"):
        client_status(tmp_path / "nowhere")


def test_a_node_needs_a_state_folder_and_a_policy(tmp_path: Path) -> None:
    for missing in ("client", "state-dir", "policy"):
        settings = {"client": 0, "state-dir": str(tmp_path / "s"), "policy": str(tmp_path / "p.toml")}
        del settings[missing]
        with pytest.raises(ConfigError, match=missing):
            node_of(settings)
    job = job_of()
    node = make_nodes(tmp_path, job=job)[0]
    request = first_request(tmp_path / "run", job)
    (tmp_path / "policy.toml").unlink()
    assert refused(answer(node, request)) == "node"
    for text in ("[budget]\nepsilon = 0\ndelta = 1e-5", "[budget", "[limits]\nsteps_max = 3", '[budget]\nepsilon="1"'):
        (tmp_path / "policy.toml").write_text(text)
        with pytest.raises(ConfigError, match=r"policy\.toml"):
            load_policy(tmp_path / "policy.toml")


def test_norms_are_cut_in_full_precision() -> None:
    features = np.random.default_rng(0).normal(size=(500, 7)).astype(np.float32)
    exact = cut_norms(features, 0.5)
    norms = np.sqrt((exact.astype(np.longdouble) ** 2).sum(axis=1))
    assert norms.max() <= 0.5
    assert norms.max() > 0.5 * (1 - 1e-11)
    inside = features * np.float32(0.01)
    assert np.array_equal(cut_norms(inside, 0.5), inside.astype(np.float64))


def test_a_table_is_encoded_by_the_jobs_schema_whatever_rows_a_node_has(tmp_path: Path) -> None:
    """Two nodes with different rows, levels and labels have the same features; another schema is refused by digest."""
    schema = Path(__file__).parents[2] / "examples" / "hospital" / "hospital.schema.toml"
    make_table = schema.parent / "make_table.py"
    subprocess.run([sys.executable, str(make_table), str(tmp_path / "all.csv")], check=True, timeout=900)
    header, *rows = (tmp_path / "all.csv").read_text().splitlines()
    for client in range(2):
        (tmp_path / f"{client}.csv").write_text("\n".join([header, *rows[client * 40 : client * 40 + 40]]) + "\n")
    polars.read_csv(tmp_path / "1.csv").write_parquet(tmp_path / "1.parquet")
    (tmp_path / "policy.toml").write_text(PERMISSIVE)
    settings = ["data.features=raw", "data.scaling=bounded", "data.name=own", "data.clients=2", "rounds.participants=0"]
    settings += ["data.partition=iid", "rounds.all_first=false", "local.batch_size=0", "local.steps=5", "local.step_size=1.0"]
    job = job_from(
        "plain", [*settings, "rounds.total=3", "privacy.mechanism=sound", "privacy.epsilon=1"], slots=[50], schema=schema
    )
    nodes = [
        Node(NodeSource(i, tmp_path / name, schema, None), tmp_path / f"client-{i}", tmp_path / "policy.toml")
        for i, name in enumerate(("0.csv", "1.parquet"))
    ]
    for node in nodes:
        give(node, job)
        assert not introduce(node, Meeting(job.digest)).refused
    server = coordinator(tmp_path / "run", job)
    assert not one_round(server, nodes)[1]
    text = schema.read_text()
    swapped = tmp_path / "swapped.toml"
    for old, new in (('classes = ["no", "yes"]', 'classes = ["yes", "no"]'), ("high = 100", "high = 130")):
        assert old in text
        swapped.write_text(text.replace(old, new))
        node = Node(nodes[0].source._replace(schema=swapped), tmp_path / "other", tmp_path / "policy.toml")
        give(node, job)
        assert introduce(node, Meeting(job.digest)).refused == "schema"
        assert refused(answer(node, server.requests([0])[0])) in ("schema", "state")


def test_a_job_cannot_name_a_file_of_the_node() -> None:
    for name in ("/etc/passwd", "../secret.csv", "sklearn:wine"):
        with pytest.raises(ConfigError, match="reads only its own data-path"):
            job_of(config=configure().model_copy(update={"data": configure().data.model_copy(update={"name": name})}))
