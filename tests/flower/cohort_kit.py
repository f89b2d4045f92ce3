"""Nodes that are members of cohorts, in one process: real policies, ledgers and steps; answers can be lost or changed."""

import numpy as np
from flower_kit import COMPILED, give, refused, spends

from fedpdm.config import load_config
from fedpdm.engines.flower.client.client import Node, answer
from fedpdm.engines.flower.client.identity import public_key
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.cohort.coordinator import CohortCoordinator
from fedpdm.engines.flower.job import make_job
from fedpdm.engines.flower.protocol import STEPS
from fedpdm.engines.flower.server.run_folder import open_run

__all__ = ["POLICY", "SETTINGS", "SIZES", "Members"]

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
standard_noise_multiplier_min = 0.1

[cohort]
keys = [{keys}]
size = {size}
colluding = {colluding}
dropouts = 1
"""
assert COMPILED  # programs are compiled once for all tests


class Members:
    """Nodes in one process, five if nothing else is said; every step opens what the node keeps anew."""

    def __init__(self, folder, epsilon=40.0, job=None, write=None, sizes=SIZES):
        self.rng = np.random.default_rng(0)
        self.folder, self.refusals, self.now = folder, [], -1  # `now`: who is at work
        self.job = job or make_job(load_config("plain", SETTINGS), 30, ["no", "yes"], [f"x{j}" for j in range(4)])
        self.nodes = {}
        for client, size in enumerate(sizes):
            path = (write or self.write)(folder, client, size)
            self.nodes[client] = Node(NodeSource(client, path, None, None), folder / f"state-{client}", folder / "policy.toml")
            give(self.nodes[client], self.job)
        self.keys = {client: public_key(node.state_dir) for client, node in self.nodes.items()}
        cohort = self.job.setup[1].shared.cohort
        text = POLICY.format(
            epsilon=epsilon,
            keys=", ".join(f'"{key}"' for key in self.keys.values()),
            size=cohort.members,
            colluding=cohort.colluding,
        )
        (folder / "policy.toml").write_text(text)
        self.begin()

    def write(self, folder, client, size):
        """A member's rows."""
        x, path = self.rng.normal(size=(size, 4)), folder / f"own-{client}.npz"
        x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
        np.savez(path, features=x.astype("float32"), labels=(x[:, 0] > 0).astype("int32"))
        return path

    def begin(self):
        """A server's process, from what the run folder holds."""
        run = open_run(self.folder / "run", self.job, {})
        run.close()
        self.server = CohortCoordinator(self.job, run, None)
        self.server.meet(self.keys)

    def one_round(self, dies=()):
        """Row, and why the sum stayed closed; `dies` says before which step members fall silent."""
        dies = dict(dies)

        def ask(requests):
            for client, request in requests.items():
                if client in dies and STEPS.index(request.task) >= STEPS.index(dies[client]):
                    continue
                self.now = client
                reply = answer(self.nodes[client], request)
                if refused(reply):
                    self.refusals.append((client, request.task, reply.refused))
                yield client, reply

        row, _, closed = self.server.one_round(ask, self.nodes)
        return row, closed

    def sum_moments(self, dies=()):
        """The sums before training; members in `dies` never answer."""

        def ask(requests):
            return [(client, answer(self.nodes[client], request)) for client, request in requests.items() if client not in dies]

        return self.server.sum_moments(ask, self.nodes)

    def spent(self, client):
        return [row.round for row in spends(self.nodes[client])]
