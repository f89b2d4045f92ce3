"""A cohort of SuperNodes on this machine: one member's process is killed in every step, and once too many are."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpdm.engines.flower.client.approve import approve
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.cohort.killer import Death, Killer
from fedpdm.engines.flower.cohort.node import public_key
from fedpdm.engines.flower.init import job_from, policy_for, write_job
from fedpdm.engines.flower.processes.launch import LocalFederation, leave_on_sigterm
from fedpdm.engines.flower.protocol import STEPS
from fedpdm.errors import UserError
from fedpdm.privacy.ledger import Ledger
from fedpdm.privacy.sums import Cohort
from fedpdm.runs.folder import RunFolder

__all__ = ["run_cohort_demo"]

LOOK_SECONDS = 10.0
Say = Callable[[str], None]


def deaths(cohort: Cohort) -> list[Death]:
    """One member in each step, then one more than may be missing, then nobody."""
    # the first message of all is the introduction, so the first step's turn is in a later round
    one = [Death(t, t % cohort.members, step) for t, step in enumerate((*STEPS[1:], STEPS[0]))]
    return one + [Death(len(STEPS), client, "masked") for client in range(cohort.dropouts + 1)]


def run_cohort_demo(
    folder: Path, *, members: int, epsilon: float, data_dir: Path | None, say: Say, timeout: float = 45.0
) -> dict[str, Any]:
    """Train on digits in `folder`; everything that is started is stopped again.

    Parameters
    ----------
    folder
        For the run, the members' states, keys and logs.
    members, epsilon, data_dir
        Of the cohort; one member may collude, one may be missing.
    say
        Is told what happens.
    timeout
        Seconds that the server waits for an answer, also of members that are killed.

    Returns
    -------
    dict
        The run's summary, and the releases in every member's ledger.
    """
    leave_on_sigterm()
    folder, cohort = folder.absolute(), Cohort(members, 1, 1).check()
    planned = deaths(cohort)
    job = job_from("plain", _settings(cohort, planned[-1].round + 2, epsilon), slots=None, data_dir=data_dir)
    path = write_job(folder / "job", job, out=str(folder / "run"), data_dir=data_dir)
    states = [folder / "nodes" / f"client-{client}" for client in range(members)]
    policy = path.parent / "policy.toml"
    policy.write_text(policy_for(job, [public_key(state) for state in states]), encoding="utf-8")
    with LocalFederation(folder / "federation") as federation:
        federation.start_superlink()
        for client, state in enumerate(states):
            approve(state, job, load_policy(policy))
            own = {"client": client, "state-dir": str(state), "policy": str(policy)}
            own |= {"data-dir": str(data_dir.absolute())} if data_dir else {}
            federation.start_node(f"node-{client}", federation.register(f"node-{client}"), own)
        options = {"job": str(path), "out": str(folder / "run"), "wait": 300.0, "timeout": timeout}
        run = federation.submit(options | ({"data_dir": str(data_dir.absolute())} if data_dir else {}))
        killer = Killer(federation, job.digest, states, planned)
        summary = _follow(federation, run, folder / "run", killer, say)
    return summary | {"releases": [_releases(state) for state in states]}


def _follow(federation: LocalFederation, run: int, out: Path, killer: Killer, say: Say) -> dict[str, Any]:
    """Kill whose turn it is, and tell how the rounds go, until the summary is there."""
    seen, looked = 0, time.monotonic()
    while True:
        over = (out / "summary.json").exists()  # before the rows are read: it is written after the last of them
        rows = RunFolder(out).rows()
        for row in rows[seen:]:
            how = f"the sum of {row['participants']} members is open" if row["participants"] else "the sum stays closed"
            say(f"round {row['round']}: {how}; accuracy {row['test_accuracy']:.4f}")
        seen = len(rows)
        if over:
            return json.loads((out / "summary.json").read_bytes())
        for death in killer.look(seen):
            say(f"  member {death.client} is killed (-9) in step {death.step!r}")
        if time.monotonic() - looked > LOOK_SECONDS:  # asking Flower takes a process of its own
            state, words = federation.status(run)
            if state.startswith("finished") and not (out / "summary.json").exists():
                raise UserError(f"The run ended early ({state}). {words} The logs are in {federation.folder / 'logs'}.")
            looked = time.monotonic()
        time.sleep(0.1)


def _releases(state: Path) -> int:
    with Ledger(state / "ledger.sqlite") as ledger:
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
