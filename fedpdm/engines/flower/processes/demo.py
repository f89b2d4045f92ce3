"""A whole federation on one machine: SuperLink, SuperNodes, TLS, authentication, exact noise, policies and ledgers."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpdm.engines.flower.client.approve import approve
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.init import job_from, write_job
from fedpdm.engines.flower.processes.demo_data import DEMO_DATA, TABLES
from fedpdm.engines.flower.processes.demo_table import table_job, write_tables
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
    tables = write_tables(folder / "tables", nodes) if data == TABLES else []
    if tables:
        job = table_job(folder / "tables", nodes, rounds, epsilon)
    else:
        job = job_from("private-mapped", _settings(nodes, data, rounds, epsilon), slots=None, data_dir=data_dir)
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
            own |= {"data-path": str(tables[client]), "schema": str(folder / "tables" / "schema.toml")} if tables else {}
            federation.start_node(f"node-{client}", federation.register(f"node-{client}"), own)
        say("Submitting the run.")
        options = {"job": str(path), "out": str(folder / "run"), "wait": 300.0, "timeout": 300.0}
        run = federation.submit(options | ({"data_dir": str(data_dir.absolute())} if data_dir else {}))
        return _follow(federation, run, folder / "run", progress, Stages(folder, nodes, say))


def _settings(nodes: int, data: str, rounds: int, epsilon: float) -> list[str]:
    settings = {
        "data.name": data,
        "data.clients": nodes,
        "rounds.total": rounds,
        "privacy.epsilon": float(epsilon),
        "compression.values": "auto",
    } | DEMO_DATA[data]
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


class Stages:
    """Says once what each file of the demo tells, when it appears: what happens before the first round ends."""

    def __init__(self, folder: Path, nodes: int, say: Callable[[str], None]) -> None:
        self._say = say
        self._lines = {
            folder / "run" / "manifest.json": "The server's process has begun. It asks every node whether it takes part.",
            folder / "run" / "keys.json": "Clients have shown their keys. Each prepares its examples and compiles its part.",
        }
        for client in range(nodes):
            path = folder / "nodes" / f"client-{client}" / "ledger.sqlite"
            self._lines[path] = f"Client {client + 1} of {nodes}: its first message is on its ledger."

    def look(self) -> None:
        """Say the lines of files that are new."""
        for path in [path for path in self._lines if path.exists()]:
            self._say(self._lines.pop(path))


def _follow(federation: LocalFederation, run: int, out: Path, progress: Progress, stages: Stages) -> dict[str, Any]:
    """Show the run's rows as they come, until its summary exists."""
    seen, looked = 0, time.monotonic()
    while True:
        stages.look()
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
