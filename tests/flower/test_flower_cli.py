"""The commands `fedpdm flower ...`, the last of them with real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flower_kit import POLICY, coordinator, first_request, give, job_of, make_nodes, one_round, spends
from typer.testing import CliRunner

from fedpdm.cli.main import app
from fedpdm.engines.flower.client.client import answer
from fedpdm.engines.flower.client.held_jobs import held_digests
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.job import read_job
from fedpdm.engines.flower.processes.launch import QUIET
from fedpdm.engines.flower.server.app import ServerOptions
from fedpdm.errors import UserError

ROOT = Path(__file__).parents[2]


def fedpdm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "fedpdm"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def test_status_says_what_was_spent_and_what_was_refused(tmp_path: Path) -> None:
    job = job_of()
    nodes = make_nodes(tmp_path, job=job)
    server = coordinator(tmp_path / "run", job)
    one_round(server, nodes)
    answer(nodes[0], server.requests([0])[0]._replace(job="0" * 64))
    folder = str(nodes[0].state_dir)
    said = CliRunner().invoke(app, ["flower", "status", folder]).output
    assert "of 1 spent in 1 releases" in said
    assert f"Job {job.digest} (fedpdm): epsilon = 0.5483" in said
    assert "of at most 1 spent, 1 messages" in said
    assert "pending" in said
    assert "job: This client does not hold job 0000" in said, "the reason is for the node's eyes"
    report = json.loads(CliRunner().invoke(app, ["flower", "status", folder, "--json"]).output)
    assert report["budget"]["releases"] == 1


def test_mistakes_cost_one_line(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, words in (
        (["status", str(tmp_path / "nowhere")], "holds no client's state"),
        (["demo", "--data", "cifar"], "choose one of digits, mnist"),
        (["demo", "--out", str(tmp_path / "full")], "is not empty"),
        (["keys", str(tmp_path / "full")], "is not empty"),
    ):
        done = fedpdm("flower", *arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_keys_are_for_their_owners_eyes(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["flower", "keys", str(tmp_path / "keys"), "--host", "10.1.2.3", "--nodes", "2"]).output
    assert "--auth-supernode-private-key" in said
    for name in ("server.key", "node-0", "node-1"):
        assert (tmp_path / "keys" / name).stat().st_mode & 0o077 == 0
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate((tmp_path / "keys" / "server.pem").read_bytes())
    authority = x509.load_pem_x509_certificate((tmp_path / "keys" / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3"]


def test_a_job_is_made_explained_approved_and_kept_from_a_second_look(tmp_path: Path) -> None:
    """From a preset to a job that a client holds; data that do not fit are refused here, not to a server."""
    run = CliRunner().invoke
    settings = ["data.name=digits", "data.features=raw", "data.scaling=unit", "data.partition=iid", "data.clients=2"]
    chosen = [part for setting in [*settings, "rounds.participants=2", "rounds.total=3"] for part in ("--set", setting)]
    made = run(app, ["flower", "init", str(tmp_path / "job"), *chosen, "--evaluate", "0.5"])
    assert made.exit_code == 0, made.output
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"job.toml", "policy.toml", "app"}
    job = read_job(tmp_path / "job" / "job.toml")
    assert job.shape == (10, 65)
    assert "Learns a model of 10 classes" in made.output
    assert "Evaluations: 1, on 20% of the rows" in made.output
    approval = ["flower", "approve", str(tmp_path / "job" / "job.toml"), "--state-dir", str(tmp_path / "state")]
    approval += ["--policy", str(tmp_path / "job" / "policy.toml")]
    assert run(app, approval, input="n\n").exit_code == 1
    assert not (tmp_path / "state").exists()
    assert "Approved" in run(app, [*approval, "--yes"]).output
    assert held_digests(tmp_path / "state") == [job.digest]
    (tmp_path / "strict.toml").write_text(POLICY.replace("steps_max = 50", "steps_max = 1"))
    strict = run(app, [*approval[:-1], str(tmp_path / "strict.toml"), "--yes"])
    assert isinstance(strict.exception, UserError)
    assert "allows at most 1" in str(strict.exception)
    again = run(app, ["flower", "init", str(tmp_path / "job")])
    assert "is not empty" in str(again.exception)


def test_a_job_from_a_run_has_its_schema_and_more_rows_than_slots_are_refused_locally(tmp_path: Path) -> None:
    table, run = tmp_path / "all.csv", CliRunner().invoke
    schema = ROOT / "examples" / "hospital" / "hospital.schema.toml"
    subprocess.run([sys.executable, str(schema.parent / "make_table.py"), str(table)], check=True, timeout=900)
    trained = ["run", "--data", str(table), "--schema", str(schema), "--epsilon", "3", "--set", "rounds.total=2", "--out"]
    assert fedpdm(*trained, str(tmp_path / "run")).returncode == 0
    init = ["flower", "init", str(tmp_path / "job"), "--from", str(tmp_path / "run")]
    assert "--slots" in str(run(app, init).exception)
    assert "--slots 6O" in str(run(app, [*init, "--slots", "6O"]).exception)
    made = run(app, [*init, "--slots", "60"])
    assert made.exit_code == 0, made.exception
    job = read_job(tmp_path / "job" / "job.toml")
    assert job.table is not None
    assert job.config.data.clients > 1
    assert job.config.data.standardise, "a private table is deployed as it was simulated"
    assert "Means and deviations: one message" in made.output
    assert (tmp_path / "job" / "schema.toml").is_file()
    approval = [
        "flower",
        "approve",
        str(tmp_path / "job" / "job.toml"),
        "--yes",
        "--policy",
        str(tmp_path / "job" / "policy.toml"),
    ]
    few = tmp_path / "few.csv"
    few.write_text("\n".join(table.read_text().splitlines()[:50]) + "\n")
    for data, words in ((few, ""), (table, "rows are beyond its 60 slots")):
        own = ["--state-dir", str(tmp_path / data.stem), "--data-path", str(data), "--schema", str(schema)]
        said = run(app, [*approval, *own])
        assert words in str(said.exception) if words else said.exit_code == 0, said.exception


def test_a_job_for_bare_arrays_and_one_from_its_run(tmp_path: Path) -> None:
    """NPZ files of features and labels have no schema: their columns and classes are named, once."""
    run, settings = CliRunner().invoke, ["data.name=own", "data.features=raw", "data.basis=none", "data.clients=2"]
    chosen = [part for setting in [*settings, "rounds.participants=2"] for part in ("--set", setting)]
    init = ["flower", "init", str(tmp_path / "job"), *chosen, "--slots", "30"]
    assert "--columns and --classes instead" in str(run(app, init).exception)
    assert "go together" in str(run(app, [*init, "--columns", "4"]).exception)
    made = run(app, [*init, "--columns", "4", "--classes", "no,yes"])
    assert made.exit_code == 0, made.exception
    job = read_job(tmp_path / "job" / "job.toml")
    assert (job.classes, job.features, job.slots, job.table) == (["no", "yes"], ["x0", "x1", "x2", "x3"], 30, None)
    coordinator(tmp_path / "run", job)
    again = run(app, ["flower", "init", str(tmp_path / "again"), "--from", str(tmp_path / "run")])
    assert again.exit_code == 0, again.exception
    other = read_job(tmp_path / "again" / "job.toml")
    assert (other.classes, other.features, other.slots, other.config) == (job.classes, job.features, job.slots, job.config)
    assert other.digest != job.digest
    schema = tmp_path / "read-off.toml"
    schema.write_text(
        'label = "y"\nclasses = ["no", "yes"]\nfrom_rows = true\n[columns.x]\nkind = "number"\nlow = 0.0\nhigh = 1.0\n'
    )
    refused = run(app, ["flower", "init", str(tmp_path / "third"), *chosen, "--slots", "30", "--schema", str(schema)])
    assert "was inferred from rows" in str(refused.exception)
    assert not (tmp_path / "third").exists()


def test_a_job_that_is_removed_is_not_answered_and_stays_spent(tmp_path: Path) -> None:
    jobs = [job_of(), job_of("local.steps=3")]
    node = make_nodes(tmp_path, job=jobs[0])[0]
    give(node, jobs[1])
    request = first_request(tmp_path / "run", jobs[0])
    assert not answer(node, request).refused
    run, folder = CliRunner().invoke, ["--state-dir", str(node.state_dir)]
    for wrong in ("", "0000", "g"):
        assert "holds" in str(run(app, ["flower", "remove", wrong, *folder]).exception)
    before = spends(node)
    assert "stays in the ledger" in run(app, ["flower", "remove", jobs[0].digest[:12], *folder]).output
    assert held_digests(node.state_dir) == [jobs[1].digest]
    assert not list((node.state_dir / "examples").glob("*.npz"))
    assert answer(node, request).refused == "job"
    assert spends(node) == before
    status = json.loads(run(app, ["flower", "status", str(node.state_dir), "--json"]).output)
    removed = next(job for job in status["jobs"] if job["job"] == jobs[0].digest)
    assert not removed["approved"]
    assert removed["epsilon_spent"] > 0
    give(node, jobs[0])
    again = answer(node, request)
    assert not again.refused, "the same bytes again"
    assert spends(node) == before


def test_the_example_is_a_valid_app() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "examples/flower/pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]["flower"]
    options = ServerOptions.model_validate({key: value for key, value in config.items() if value != ""})
    assert options.job.endswith("job.toml")
    assert load_policy(ROOT / "examples/flower/policy.toml").allow.noise == ("secure",)
    assert load_policy(ROOT / "examples/flower/any-job.policy.toml").takes_offers
    for variable in QUIET:
        assert variable in (ROOT / "docs/operations.md").read_text()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_demo_trains_and_stops_everything(tmp_path: Path) -> None:
    done = fedpdm("flower", "demo", "--nodes", "2", "--rounds", "2", "--out", str(tmp_path / "demo"), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["epsilon"] == pytest.approx(1.0)
    assert summary["messages_used"] == 4
    assert {path.name for path in (tmp_path / "demo" / "run").iterdir()} >= {
        "manifest.json",
        "metrics.jsonl",
        "model.safetensors",
        "summary.json",
    }
    assert "round 2/2" in done.stderr
    stages = ["Loading", "Making the job", "Starting the server", "Client 1 of 2", "Client 2 of 2", "Submitting"]
    stages += ["server's process has begun", "shown their keys", "first message is on its ledger", "round 2/2"]
    assert sorted(map(done.stderr.index, stages)) == [done.stderr.index(stage) for stage in stages], "each stage, in its order"
    here = str(tmp_path / "demo").encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert here not in entry.read_bytes(), "a process was left behind"
        except OSError:
            continue


@pytest.mark.parametrize("watched", [True, False])
def test_a_client_process_ends_when_its_node_is_gone(watched: bool) -> None:
    """Its main thread waits in a lock, where it sees no signal that another thread raises. Unwatched it stays: the control."""
    child = f"""
import os, threading
from fedpdm.engines.flower.processes.guard import end_with_parent
if {watched}:
    end_with_parent(0.2, 0.05)
print(os.getpid(), flush=True)
threading.Event().wait()
"""
    parent = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=-1, stderr=-3); "
        "print(child.stdout.readline().decode(), flush=True)"
    )
    command = [sys.executable, "-c", parent, child]
    process = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=900).stdout)
    cmdline = Path(f"/proc/{process}/cmdline")
    until = time.monotonic() + (300.0 if watched else 2.0)
    while cmdline.is_file() and cmdline.read_bytes() and time.monotonic() < until:
        time.sleep(0.05)
    try:
        alive = bool(cmdline.read_bytes())
    except OSError:
        alive = False
    if alive:
        os.kill(process, signal.SIGKILL)
    assert alive is not watched


def test_nodes_that_start_at_the_same_moment_do_not_disturb_one_another(tmp_path: Path) -> None:
    """They share the folder that keeps an app from outside away."""
    program = (
        "import os; from fedpdm.engines.flower.processes.guard import guarded; print('ready', flush=True); input(); "
        "print(guarded(dict(os.environ))['PATH'].split(os.pathsep)[0])"
    )
    for attempt in range(3):
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / str(attempt))}
        command, pipes = [sys.executable, "-c", program], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        nodes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(8)]
        assert [node.stdout.readline() for node in nodes] == ["ready\n"] * 8
        for node in nodes:
            node.stdin.write("go\n")
            node.stdin.flush()
        folders = {node.communicate()[0].strip() for node in nodes}
        assert [node.returncode for node in nodes] == [0] * 8
        (folder,) = folders
        assert os.access(Path(folder) / "flwr-clientapp", os.X_OK)
        assert not [path for path in Path(folder).iterdir() if path.name.startswith(".")]
