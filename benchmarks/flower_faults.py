"""kill -9 at random moments, again and again, in a federation of real Flower processes; then all records are checked.

    python benchmarks/flower_faults.py --kills 50 --nodes 3 --out docs/results/benchmarks/flower_faults.json

A kill hits a client's process while it works on a message, a SuperNode, the server's process, or the SuperLink. After every
kill, and at the end, for every client: no round of a job was spent twice, every message on disk was paid for, and the whole
spend is within the budget. At the end of every job: each round is there once, and the dual that the server keeps for a client
is the client's own.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, load_file

from fedpdm.engines.flower.client.approve import approve
from fedpdm.engines.flower.client.client import ACCOUNT
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.init import job_from
from fedpdm.engines.flower.job import job_toml
from fedpdm.engines.flower.processes.launch import LocalFederation, leave_on_sigterm
from fedpdm.errors import UserError
from fedpdm.privacy.ledger import Ledger

EPSILON = 8.0
POLICY = f"""
[budget]
epsilon = {EPSILON}
delta = 1e-5

[limits]
noise_multiplier_min = 0.5
"""
KINDS = ("client", "client", "client", "node", "node", "server", "superlink")


class Trial:
    """A federation, a job under way, and a count of what was done to it."""

    def __init__(self, folder: Path, nodes: int, rounds: int, seed: int) -> None:
        self.folder, self.nodes, self.rounds = folder, nodes, rounds
        self.random = random.Random(seed)
        (folder / "policy.toml").write_text(POLICY)
        cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
        self.flower = LocalFederation(folder / "flower", cache)
        self.kills: Counter[str] = Counter()
        self.jobs, self.paid, self.seen_working = 0, 0, time.monotonic()
        self.keys: list[Path] = []

    def start(self) -> None:
        self.flower.start_superlink()
        for client in range(self.nodes):
            self.keys.append(self.flower.register(f"node-{client}"))
            self.start_node(client)

    def start_node(self, client: int) -> None:
        own = {"client": client, "state-dir": str(self.state(client)), "policy": str(self.folder / "policy.toml")}
        self.flower.start_node(f"node-{client}", self.keys[client], own)

    def state(self, client: int) -> Path:
        return self.folder / f"client-{client}"

    @property
    def out(self) -> Path:
        return self.folder / f"run-{self.jobs}"

    def submit(self) -> None:
        options = {"job": str(self.job()), "out": str(self.out), "nodes": 1, "wait": 300.0, "timeout": 10.0}
        for _ in range(5):
            with suppress(UserError):
                self.flower.submit(options)
                return
            time.sleep(2.0)
        raise RuntimeError("The SuperLink does not take the run.")

    def job(self) -> Path:
        """The file of the present job, which all clients hold; it is made once."""
        path = self.folder / f"job-{self.jobs}.toml"
        if path.exists():
            return path
        settings: dict[str, Any] = {
            "data.name": "digits",
            "data.features": "raw",
            "data.basis": "none",
            "data.clients": self.nodes,
            "data.partition": "iid",
            "data.scaling": "unit",
            "algorithm.rho": 0.1,
            "algorithm.server_rule": "dual-memory",
            "local.steps": 5,
            "local.step_size": 1.0,
            "rounds.total": self.rounds,
            "rounds.participants": self.nodes,
            "privacy.epsilon": 1.0,
            "compression.values": "float32",  # a client's dual follows from what it sent before rounding
            "seed": self.jobs,
        }
        made = job_from("demo", [f"{key}={json.dumps(value)}" for key, value in settings.items()], slots=None)
        for client in range(self.nodes):
            approve(self.state(client), made, load_policy(self.folder / "policy.toml"))
        path.write_text(job_toml(made))
        return path

    def resubmit_if_nobody_works(self) -> None:
        """A run that was submitted just before a kill may have gone down with it."""
        self.flower.revive()
        if self.flower.find("superlink", "flwr-serverapp"):
            self.seen_working = time.monotonic()
        elif time.monotonic() - self.seen_working > 30.0 and not self.done():
            self.submit()
            self.seen_working = time.monotonic()

    def done(self) -> bool:
        return (self.out / "summary.json").exists()

    def kill(self) -> None:
        """Kill one of the running processes with SIGKILL."""
        paid = self._paid()
        if paid == self.paid:  # nothing has moved since the last kill; else nothing would ever be under way
            return
        kind = min(KINDS, key=lambda kind: self.kills[kind] + self.random.uniform(0, 4))  # random, and none neglected
        if kind == "client" and not self._kill_client():
            return
        if kind == "node":
            client = self.random.randrange(self.nodes)
            self.flower.kill(f"node-{client}")
            time.sleep(self.random.uniform(0, 3))
            self.start_node(client)
        if kind == "server" and not self._kill_server():
            return
        if kind == "superlink":
            self.flower.kill("superlink")
            time.sleep(self.random.uniform(0, 3))
            self.flower.start_superlink()
            self.submit()
        self.kills[kind] += 1
        self.paid = paid

    def _paid(self) -> int:
        """Messages whose cost the clients have recorded so far."""
        return sum(count for _, count in self.spent())

    def spent(self) -> list[tuple[float, int]]:
        """Epsilon and number of releases of every client that was ever asked."""
        found = []
        for path in (self.state(client) / "ledger.sqlite" for client in range(self.nodes)):
            if path.exists():
                with suppress(UserError), Ledger(path) as ledger:  # it may not have a budget yet
                    found.append(ledger.spent(ACCOUNT))
        return found

    def _kill_client(self) -> bool:
        """A process that works on a message; its node would wait a minute for it, so the node is restarted too."""
        until = time.monotonic() + 15.0
        while time.monotonic() < until and not self.done():
            client = self.random.randrange(self.nodes)
            for process in self.flower.find(f"node-{client}", "flwr-clientapp"):
                time.sleep(self.random.uniform(0, 2.5))
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    self.flower.kill(f"node-{client}")
                    self.start_node(client)
                    return True
            self.flower.revive()
            time.sleep(0.1)
        return False

    def _kill_server(self) -> bool:
        processes = self.flower.find("superlink", "flwr-serverapp")
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if processes:
            time.sleep(1.0)
            self.submit()
        return bool(processes)

    def check(self) -> None:
        """Check the records of every client."""
        for client in range(self.nodes):
            if not (self.state(client) / "ledger.sqlite").exists():
                continue
            with open_store(self.state(client)) as store, Ledger(self.state(client) / "ledger.sqlite") as ledger:
                paid = [(row.job, row.round) for row in ledger.rows()]
                assert len(paid) == len(set(paid)), f"client {client} spent a round twice"
                made = {(message.job, message.round) for message in store.messages()}
                assert made <= set(paid), f"client {client} made a message that was not paid for"

        assert all(epsilon <= EPSILON * (1 + 1e-9) for epsilon, _ in self.spent())

    def check_job(self) -> dict[str, Any]:
        """A finished job: the rounds, the model, and the two sides' duals."""
        rows = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        assert [row["round"] for row in rows] == list(range(1, self.rounds + 1)), rows
        assert np.isfinite(load_file(self.out / "model.safetensors")["model"]).all()
        checkpoint = load_file(self.out / "checkpoint.safetensors")
        leaves = [checkpoint[name] for name in sorted(checkpoint)]
        memory = next(leaf for leaf in leaves if leaf.ndim == 3)
        names = next(leaf for leaf in leaves if leaf.dtype == np.uint8)
        job = json.loads((self.out / "manifest.json").read_bytes())["job"]
        for client in range(self.nodes):
            self._check_dual(client, job, bytes(names[client]).hex(), memory[client])
        return json.loads((self.out / "summary.json").read_bytes())

    def _check_dual(self, client: int, job: str, accepted: str, memory: np.ndarray) -> None:
        with open_store(self.state(client)) as store:
            row = (
                store._connection.execute(
                    "SELECT next_state FROM messages WHERE job = ? AND message = ? AND status = 'pending'", (job, accepted)
                ).fetchone()
                or store._connection.execute("SELECT state FROM jobs WHERE job = ?", (job,)).fetchone()
            )
        dual = load(row[0])["000"] if row else np.zeros_like(memory)
        np.testing.assert_allclose(dual, memory, atol=1e-4 * (1 + np.abs(memory).max()))


def run(folder: Path, kills: int, nodes: int, rounds: int, seed: int) -> dict[str, Any]:
    """Jobs one after another until there were enough kills and the last job is finished."""
    trial = Trial(folder, nodes, rounds, seed)
    summaries: list[dict[str, Any]] = []
    began = time.monotonic()
    with trial.flower:
        trial.start()
        while trial.kills.total() < kills:
            trial.jobs += 1
            trial.submit()
            while not trial.done():
                time.sleep(trial.random.uniform(0.2, 4.0))
                trial.resubmit_if_nobody_works()
                if trial.kills.total() < kills and not trial.done():
                    trial.kill()
                    trial.check()
                    print(f"{time.monotonic() - began:7.1f} s  job {trial.jobs}  kills {dict(trial.kills)}", flush=True)
            summaries.append(trial.check_job())
        trial.check()
    spent = trial.spent()
    return {
        "kills": dict(trial.kills),
        "jobs": trial.jobs,
        "rounds": trial.jobs * rounds,
        "messages_asked_for": sum(summary["messages_asked_for"] for summary in summaries),
        "messages_used": sum(summary["messages_used"] for summary in summaries),
        "releases": sum(count for _, count in spent),
        "largest_epsilon_spent": max(epsilon for epsilon, _ in spent),
        "budget": EPSILON,
        "test_accuracies": [summary["test_accuracy"] for summary in summaries],
        "seconds": round(time.monotonic() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    leave_on_sigterm()
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), options.kills, options.nodes, options.rounds, options.seed)
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
