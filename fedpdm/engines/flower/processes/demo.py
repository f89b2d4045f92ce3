"""A whole federation on one machine: SuperLink, SuperNodes, TLS, authentication, exact noise, policies and ledgers."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpdm.engines.flower.client.approve import approve
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.init import job_from, write_job
from fedpdm.engines.flower.processes.demo_data import DEMO_DATA
from fedpdm.engines.flower.processes.launch import LocalFederation, leave_on_sigterm
from fedpdm.errors import UserError
from fedpdm.runs.progress import Progress

__all__ = ["run_demo"]

LOOK_SECONDS = 10.0


def run_demo(
    folder: Path,
    *,
    nodes: int,
    data: str,
    rounds: int,
    epsilon: float,
    data_dir: Path | None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train a federation in a folder, and stop everything that was started.

    The steps are those of an operator: make the job (`fedpdm flower init`), approve it at every client, start the nodes, submit
    the run.

    Parameters
    ----------
    folder : Path
        The folder of the demo.
    nodes, data, rounds, epsilon
        Number of clients, data set, number of rounds, and every client's budget.
    data_dir : Path or None
        The folder of data files.
    say : callable
        Is told in a line which stage begins.

    Returns
    -------
    dict
        The summary.
    """
    leave_on_sigterm()
    folder = folder.absolute()
    say(f"Making the job: {nodes} clients, {data}, {rounds} rounds.")
    job = job_from("demo", _settings(nodes, data, rounds, epsilon), slots=None, data_dir=data_dir)
    path = write_job(folder / "job", job, out=str(folder / "run"), data_dir=data_dir)
    policy = path.parent / "policy.toml"
    with LocalFederation(folder / "federation") as federation, Progress(rounds) as progress:
        say("Starting the server (SuperLink), with TLS.")
        federation.start_superlink()
        for client in range(nodes):
            say(f"Client {client + 1} of {nodes}: approves the job, registers its key, starts its node.")
            state = folder / "nodes" / f"client-{client}"
            approve(state, job, load_policy(policy))
            own = {"client": client, "state-dir": str(state), "policy": str(policy)}
            own |= {"data-dir": str(data_dir.absolute())} if data_dir else {}
            federation.start_node(f"node-{client}", federation.register(f"node-{client}"), own)
        say("Submitting the run. The first round begins when all nodes have compiled their part; rounds follow as they end.")
        options = {"job": str(path), "out": str(folder / "run"), "wait": 300.0, "timeout": 300.0}
        run = federation.submit(options | ({"data_dir": str(data_dir.absolute())} if data_dir else {}))
        return _follow(federation, run, folder / "run", progress)


def _settings(nodes: int, data: str, rounds: int, epsilon: float) -> list[str]:
    settings = {
        "data.name": data,
        "data.features": "raw",
        "data.basis": "none",
        "data.clients": nodes,
        "data.radius": 1.0,
        "algorithm.name": "fedpdm",
        "algorithm.server_rule": "dual-memory",
        "local.steps": 20,
        "local.batch_size": 0,
        "local.step_size": 3.0,
        "rounds.total": rounds,
        "rounds.participants": nodes,
        "rounds.all_first": False,
        "privacy.mechanism": "sound",
        "privacy.epsilon": float(epsilon),
        "privacy.clip": 0.5,
    } | DEMO_DATA[data]
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def _follow(federation: LocalFederation, run: int, out: Path, progress: Progress) -> dict[str, Any]:
    """Show the run's rows as they come, until its summary exists."""
    seen, looked = 0, time.monotonic()
    while True:
        over = (out / "summary.json").exists()  # check before reading the rows: it is written after the last of them
        lines = (out / "metrics.jsonl").read_text().splitlines() if (out / "metrics.jsonl").exists() else []
        rows = [json.loads(line) for line in lines[seen:] if line.endswith("}")]
        if rows:
            progress.update(rows)
            seen += len(rows)
        if over:
            return json.loads((out / "summary.json").read_bytes())
        if time.monotonic() - looked > LOOK_SECONDS:  # a question to Flower needs a separate process
            state, words = federation.status(run)
            if state.startswith("finished") and not (out / "summary.json").exists():
                raise UserError(f"The run ended early ({state}). {words} The logs are in {federation.folder / 'logs'}.")
            looked = time.monotonic()
        time.sleep(0.3)
