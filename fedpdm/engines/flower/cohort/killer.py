"""Kill -9 of members' processes in chosen steps of chosen sums: for the demonstration, and for tests."""

import fcntl
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from fedpdm.engines.flower.cohort.node import progress
from fedpdm.engines.flower.processes.launch import LocalFederation
from fedpdm.engines.flower.protocol import STEPS

__all__ = ["Death", "Killer"]


class Death(NamedTuple):
    """Whose process is killed while it answers which step, in which round (from 0)."""

    round: int
    client: int
    step: str


class Killer:
    """Kills the processes whose turn it is, each time that it looks.

    Flower starts a process for every message, and starts it again if it ends before it has taken the message. So the member's
    folder is locked before the step, and the process is killed once it has read its message and waits for the folder. At the
    end of a `with` block the folders are free again.

    Parameters
    ----------
    federation
        Its nodes are called node-0, node-1, ...
    job
        Digest of the job.
    states
        The members' state folders.
    deaths
        Whom to kill when.
    """

    def __init__(self, federation: LocalFederation, job: str, states: Sequence[Path], deaths: Sequence[Death]) -> None:
        self._federation, self._job, self._states = federation, job, states
        self._planned = list(deaths)
        self._held: dict[Death, IO[str]] = {}

    def __enter__(self) -> "Killer":
        return self

    def __exit__(self, *_: object) -> None:
        while self._held:
            self._held.popitem()[1].close()

    def look(self, rounds: int) -> list[Death]:
        """Kill the members that wait in their steps, and return them; `rounds` are over."""
        for death in [death for death in self._planned if self._due(death, rounds)]:
            lock = self._lock_of(death).open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._held[death] = lock
            self._planned.remove(death)
        killed = [death for death in self._held if self._kill(death)]
        for death in killed:
            self._held.pop(death).close()
        return killed

    def _lock_of(self, death: Death) -> Path:
        return self._states[death.client] / ".lock"

    def _due(self, death: Death, rounds: int) -> bool:
        """Whether the next message to this member is the step in which it dies."""
        before = STEPS.index(death.step)
        return progress(self._states[death.client], self._job) == (death.round, before) if before else rounds == death.round

    def _kill(self, death: Death) -> bool:
        path = self._lock_of(death)
        for process in self._federation.find(f"node-{death.client}", "flwr-clientapp"):
            if _has_open(process, path):
                os.kill(process, signal.SIGKILL)
                return True
        return False


def _has_open(process: int, path: Path) -> bool:
    with suppress(OSError):  # it has ended meanwhile
        return any(entry.readlink() == path for entry in Path(f"/proc/{process}/fd").iterdir())
    return False
