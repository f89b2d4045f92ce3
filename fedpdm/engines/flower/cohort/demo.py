"""A cohort of processes on this machine: one member is killed in every step, once too many are, and training continues."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from fedpdm.data.prepare import build_federation
from fedpdm.engines.flower.client.client import Node
from fedpdm.engines.flower.client.held_jobs import hold
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.cohort.local import Processes
from fedpdm.engines.flower.cohort.node import public_key
from fedpdm.engines.flower.cohort.training import STEPS, CohortTraining
from fedpdm.engines.flower.init import job_from
from fedpdm.engines.flower.job import Job
from fedpdm.privacy.ledger import Ledger
from fedpdm.privacy.sums import Cohort
from fedpdm.problem.objective import accuracy
from fedpdm.runs.folder import atomic_write

__all__ = ["run_cohort_demo"]

POLICY = """# The terms of this member; a request beyond them is refused.
[budget]
epsilon = {epsilon}
delta = 1e-5
relation = "add-remove"

[limits]
noise_multiplier_min = 0.1

[cohort]
keys = [{keys}]
size = {members}
colluding = {colluding}
dropouts = {dropouts}
"""
Say = Callable[[str], None]


def run_cohort_demo(folder: Path, *, members: int, epsilon: float, data_dir: Path | None, say: Say) -> dict[str, Any]:
    """Train on digits: a round for every step in which a member is killed, one in which too many are, and a complete one.

    Parameters
    ----------
    folder : Path
        The folder of the demo.
    members, epsilon
        Members of the cohort, and every client's budget.
    data_dir : Path or None
        The folder of data files.
    say : callable
        Called with lines of progress.

    Returns
    -------
    dict
        The summary.
    """
    folder, cohort = folder.absolute(), Cohort(members, 1, 1).check()
    rounds = len(STEPS) + 2
    job = job_from("plain", _settings(cohort, rounds, epsilon), slots=None, data_dir=data_dir)
    nodes = _nodes(folder, cohort, epsilon, job, data_dir)
    training = CohortTraining(job, {client: public_key(node.state_dir) for client, node in nodes.items()})
    test = build_federation(job.config, data_dir, progress=False)
    rows: list[dict[str, Any]] = []
    with Processes(nodes) as processes:
        for number in range(rounds):
            victims = _victims(number, cohort)
            say(f"round {number + 1}: members are started; killed (-9): {victims or 'nobody'}")
            processes.start()
            processes.victims = victims
            outcome = training.one_round(processes.exchange)
            model, problem = jnp.asarray(training.model), training.agreement.setup.problem
            found = accuracy(problem, model, jnp.asarray(test.test_features), jnp.asarray(test.test_labels))
            rows.append({"round": number + 1, "survivors": outcome.survivors, "closed": outcome.closed, "victims": victims})
            rows[-1] |= {"test_accuracy": round(float(found), 4)}
            say(f"  {outcome.closed or f'the sum of members {outcome.survivors} is open'}; accuracy {float(found):.4f}")
    plan = training.agreement.plan
    summary = {
        "rounds": rows,
        "opened": sum(not row["closed"] for row in rows),
        "test_accuracy": rows[-1]["test_accuracy"],
        "refusals": processes.refusals,
        "releases": {client: _releases(node) for client, node in nodes.items()},
        "guarantee": plan.sentence(),
    }
    atomic_write(folder / "summary.json", json.dumps(summary, indent=2).encode())
    return summary


def _victims(number: int, cohort: Cohort) -> dict[int, str]:
    """Return the members that are killed in a round: one in each step, then one more than may be missing, then nobody."""
    if number < len(STEPS):
        return {number % cohort.members: STEPS[number]}
    return dict.fromkeys(range(cohort.dropouts + 1), "masked") if number == len(STEPS) else {}


def _nodes(folder: Path, cohort: Cohort, epsilon: float, job: Job, data_dir: Path | None) -> dict[int, Node]:
    """Make members with an identity, a policy that lists all of them, and the job."""
    policy = folder / "policy.toml"
    nodes = {
        client: Node(NodeSource(client, None, None, data_dir), folder / "nodes" / f"client-{client}", policy)
        for client in range(cohort.members)
    }
    keys = ", ".join(f'"{public_key(node.state_dir)}"' for node in nodes.values())
    sizes = {"members": cohort.members, "colluding": cohort.colluding, "dropouts": cohort.dropouts}
    policy.write_text(POLICY.format(epsilon=float(epsilon), keys=keys, **sizes), encoding="utf-8")
    for node in nodes.values():
        hold(node.state_dir, job, load_policy(policy))
    return nodes


def _releases(node: Node) -> int:
    with Ledger(node.state_dir / "ledger.sqlite") as ledger:
        return len(ledger.rows())


def _settings(cohort: Cohort, rounds: int, epsilon: float) -> list[str]:
    settings = {
        "data.name": "digits",
        "data.clients": cohort.members,
        "data.features": "raw",
        "data.scaling": "unit",
        "data.partition": "iid",
        "data.radius": 1.0,
        "problem.gamma": 0.0,
        "algorithm.name": "fedpdm",
        "algorithm.rho": 0.02,
        "local.steps": 1,
        "local.batch_size": 0,
        "local.step_size": 12.0,
        "rounds.total": rounds,
        "rounds.participants": 0,
        "rounds.all_first": "false",
        "privacy.mechanism": "sound",
        "privacy.epsilon": float(epsilon),
        "privacy.clip": 0.5,
        "privacy.mode": "linearised",
        "privacy.trust": "cohorts",
        "cohorts.colluding": cohort.colluding,
        "cohorts.dropouts": cohort.dropouts,
    }
    return [f"{key}={value}" for key, value in settings.items()]
