"""A cohort of SuperNodes on this machine: one member's process is killed in every step, and once too many are."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from fedpdm.engines.flower.client.approve import approve
from fedpdm.engines.flower.client.identity import public_key
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.cohort.killer import Death, Killer
from fedpdm.engines.flower.init import job_from, policy_for, write_job
from fedpdm.engines.flower.processes.launch import LocalFederation, leave_on_sigterm
from fedpdm.engines.flower.protocol import STEPS
from fedpdm.errors import UserError
from fedpdm.privacy.ledger import Ledger
from fedpdm.privacy.sums import Cohort
from fedpdm.runs.folder import RunFolder

__all__ = ["run_cohort_demo"]

LOOK_SECONDS = 10.0
TIMEOUT, PATIENCE = 900.0, 4.0  # the server waits four times as long as the others took
Say = Callable[[str], None]


def deaths(cohort: Cohort) -> list[Death]:
    """One member in each step, then one more than may be missing, then nobody."""
    # the first message of all is the introduction, so the first step's turn is in a later round
    one = [Death(t, t % cohort.members, step) for t, step in enumerate((*STEPS[1:], STEPS[0]))]
    return one + [Death(len(STEPS), client, "masked") for client in range(cohort.dropouts + 1)]


def run_cohort_demo(folder: Path, *, members: int, epsilon: float, data_dir: Path | None, say: Say) -> dict[str, Any]:
    """Train on digits in `folder`; everything that is started is stopped again.

    Parameters
    ----------
    folder
        For the run, the members' states, keys and logs.
    members, epsilon, data_dir
        Of the cohort; one member may collude, one may be missing.
    say
        Is told what happens.

    Returns
    -------
    dict
        The run's summary; "killed", the deaths that happened; and "releases", the rounds on every member's ledger.
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
        say(f"starting a SuperLink and {members} SuperNodes; all of it takes about {planned[-1].round + 3} minutes")
        federation.start_superlink()
        for client, state in enumerate(states):
            approve(state, job, load_policy(policy))
            own = {"client": client, "state-dir": str(state), "policy": str(policy)}
            own |= {"data-dir": str(data_dir.absolute())} if data_dir else {}
            federation.start_node(f"node-{client}", federation.register(f"node-{client}"), own)
            say(f"member {client} is started")
        options = {"job": str(path), "out": str(folder / "run"), "wait": 2 * TIMEOUT, "timeout": TIMEOUT, "patience": PATIENCE}
        run = federation.submit(options | ({"data_dir": str(data_dir.absolute())} if data_dir else {}))
        say("the server begins; it waits until all members are connected")
        with Killer(federation, job.digest, states, planned) as killer:
            summary, killed = _follow(federation, run, folder / "run", killer, say)
    for line in closing_lines(cohort, [row["participants"] for row in RunFolder(folder / "run").rows()], len(killed)):
        say(line)
    releases = [_releases(state) for state in states]
    counts = ", ".join(str(len(rounds)) for rounds in releases)
    say(f"releases on the members' ledgers: {counts}; a share is entered before it is made, also if its sum stays closed")
    return summary | {"killed": [death._asdict() for death in killed], "releases": releases}


def closing_lines(cohort: Cohort, used: Sequence[int], killed: int) -> list[str]:
    """Return what the demonstration has shown; `used` are the members in every round's sum, 0 where it stayed closed."""
    planned, closed = len(deaths(cohort)), sum(not members for members in used)
    lines = [f"{killed} processes were killed; {len(used) - closed} sums were opened, {closed} stayed closed"]
    if killed < planned or closed != 1:
        lines.append(f"expected were {planned} and 1: this machine had no time for some processes; try again when it has")
    return lines


def _follow(federation: LocalFederation, run: int, out: Path, killer: Killer, say: Say) -> tuple[dict[str, Any], list[Death]]:
    """Kill whose turn it is, and tell how the rounds go, until the summary is there; return it, and who was killed."""
    seen, killed, ended, stop = 0, [], [], Event()
    Thread(target=_watch, args=(federation, run, ended, stop), daemon=True).start()
    try:
        while True:
            failed = ended[-1:]  # both before the rows are read: the summary is written after the last of them
            over = (out / "summary.json").exists()
            rows = RunFolder(out).rows()
            for row in rows[seen:]:
                how = f"the sum of {row['participants']} members is open" if row["participants"] else "the sum stays closed"
                say(f"round {row['round']}: {how}; accuracy {row['test_accuracy']:.4f}")
            seen = len(rows)
            if over:
                return json.loads((out / "summary.json").read_bytes()), killed
            if failed:
                raise UserError(f"The run ended early ({failed[0]}). The logs are in {federation.folder / 'logs'}.")
            for death in killer.look(seen):
                killed.append(death)
                say(f"  member {death.client} is killed (-9) in step {death.step!r}")
            time.sleep(0.1)
    finally:
        stop.set()


def _watch(federation: LocalFederation, run: int, ended: list[str], stop: Event) -> None:
    """Ask Flower now and then how a run has ended. It takes seconds, in which a member's turn could pass: so it is a thread."""
    while not ended and not stop.wait(LOOK_SECONDS):
        with suppress(UserError):  # the federation is being stopped
            state, words = federation.status(run)
            ended += [f"{state}: {words}"] if state.startswith("finished") else []


def _releases(state: Path) -> list[int]:
    with Ledger(state / "ledger.sqlite") as ledger:
        return [row.round for row in ledger.rows()]


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
