"""Shared pieces of the tests of the Flower engine."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.config import Config, load_config
from fedpdm.engines.flower.client.client import Node, answer
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.compile_cache import use_compile_cache
from fedpdm.engines.flower.job import Job, job_toml, make_job
from fedpdm.engines.flower.protocol import REFUSALS, Reply, Request
from fedpdm.engines.flower.server.coordinator import Coordinator
from fedpdm.engines.flower.server.run_folder import open_run
from fedpdm.engines.simulation.measures import TestSet
from fedpdm.privacy.ledger import Ledger, Spend

# Every answer compiles its two programs, as a process of its own would; this makes it a matter of reading them.
COMPILED = Path(tempfile.gettempdir()) / f"fedpdm-tests-{os.getuid()}"
use_compile_cache(COMPILED)

CLIENTS, FEATURES, CLASSES = 3, 6, 3
SIZES = (40, 25, 31)

POLICY = """
[budget]
epsilon = 1.0
delta = 1e-5

[limits]
noise_multiplier_min = 2.0
participations_max = 8
steps_max = 50
step_size_max = 4.0
clip_max = 1.0
"""
PERMISSIVE = """
[budget]
epsilon = 50.0
delta = 1e-5

[allow]
mechanisms = ["sound", "none"]
noise = ["secure", "simulation"]

[limits]
noise_multiplier_min = 0.1
evaluation_noise_multiplier_min = 0.1
"""
SETTINGS = [
    f"data.clients={CLIENTS}",
    "data.features=raw",
    "data.name=own",
    "data.basis=none",
    "compression.values=float32",
    "rounds.total=3",
    f"rounds.participants={CLIENTS}",
    "rounds.sampling=cycle",
    "rounds.all_first=false",
    "local.steps=4",
    "local.step_size=1.0",
    "algorithm.rho=0.1",
    "problem.gamma=0.001",
    "metrics.diagnose_every=3",
]


def configure(*settings: str) -> Config:
    return load_config("demo", [*SETTINGS, *settings])


def own_arrays(client: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(100 + client)
    features = rng.normal(size=(SIZES[client], FEATURES)).astype(np.float32)
    features /= 1.001 * np.linalg.norm(features, axis=1, keepdims=True)
    return features, rng.integers(0, CLASSES, SIZES[client]).astype(np.int32)


def job_of(*settings: str, config: Config | None = None, slots: int = 40, **others: Any) -> Job:
    """A job of the kit's data; `settings` as on the command line."""
    config = config or configure(*settings)
    classes, features = [f"class {k}" for k in range(CLASSES)], [f"x{j}" for j in range(FEATURES)]
    return make_job(config, slots, classes, features, **others)


def make_nodes(folder: Path, policy: str = POLICY, clients: int = CLIENTS, job: Job | None = None) -> list[Node]:
    """Nodes with data of their own; they hold `job`."""
    (folder / "policy.toml").write_text(policy)
    nodes = []
    for client in range(clients):
        features, labels = own_arrays(client)
        path = folder / f"own-{client}.npz"
        np.savez(path, features=features, labels=labels)
        nodes.append(Node(NodeSource(client, path, None, None), folder / f"client-{client}", folder / "policy.toml"))
        if job is not None:
            give(nodes[-1], job)
    return nodes


def give(node: Node, *jobs: Job) -> None:
    """Let a node hold jobs that its policy may forbid: it decides at the request."""
    for job in jobs:
        path = node.state_dir / "jobs" / f"{job.digest}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(job_toml(job))


def coordinator(folder: Path, job: Job, test: TestSet | None = None) -> Coordinator:
    run = open_run(folder, job, {})
    run.close()  # a test may open the same folder again, as a server does after a crash
    return Coordinator(job, run, test, least=1)  # most tests are about other things than a round that few answered


def one_round(server: Coordinator, nodes: list[Node]) -> tuple[dict[str, Any], list[str]]:
    asked = server.requests(server.chosen())
    return server.take(asked, [(i, answer(nodes[i], request)) for i, request in asked.items()])


def first_request(folder: Path, job: Job, client: int = 0) -> Request:
    return coordinator(folder, job).requests([client])[client]


def spends(node: Node) -> list[Spend]:
    path = node.state_dir / "ledger.sqlite"
    if not path.exists():
        return []
    with Ledger(path) as ledger:
        return ledger.rows()


def refused(reply: Reply) -> str:
    assert not (reply.refused and reply.vectors), "a refusal carries nothing"
    assert reply.reason == (REFUSALS[reply.refused] if reply.refused else ""), "the texts are constant"
    return reply.refused
