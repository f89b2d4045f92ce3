"""Quick starts of a node's processes: one process loads the code once, and every message is answered by a fork of it.

Flower's SuperExec starts a process for every message, which first loads Python, Flower, JAX and this package: more than two CPU
seconds. Here SuperExec forks a *warm* process before it begins. The warm process loads the code and then only forks: it
answers nothing, opens no file of a node and draws no random number. So each message still has a process of its own, which
nothing outlives, and the locks, the ledger and the records on disk are used as before.

A fork copies one thread, and the state of generators of random numbers. Hence two rules. The warm process has one thread when
it forks; otherwise it ends, and messages get processes in Flower's own way. And two forks never draw the same noise or keys:
`secrets` asks the operating system at every draw, OpenDP's generator (OpenSSL) notices a fork and asks it anew, and NumPy's
global generator, which no noise uses, gets a new seed.
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Starter", "load", "serve", "superexec"]

PROGRAM = "flwr-clientapp"
_MODULES = (
    *("flwr.supernode.cli", "flwr.supernode.runtime", "opendp.domains", "opendp.measurements", "opendp.metrics"),
    *("fedpdm.engines.flower.client.app", "fedpdm.engines.flower.client.client", "fedpdm.engines.flower.compile_cache"),
)
_LONGEST = 2**16  # bytes of a command
_THREADS = Path("/proc/self/task")


def superexec(clientapp: Callable[[], None]) -> None:
    """Run Flower's SuperExec; its processes for messages are forks of a warm one.

    Parameters
    ----------
    clientapp : callable
        Answers one message, by the command in `sys.argv`.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads would start with the import of NumPy
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    if _THREADS.is_dir() and hasattr(subprocess_executor, "subprocess"):
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            near.close()
            sys.argv = serve(far, load)
            return clientapp()
        far.close()
        subprocess_executor.subprocess = Starter(near)  # type: ignore[assignment]
    return flower_superexec()


def load() -> None:
    """Import all that the answer to a message needs."""
    for name in _MODULES:
        importlib.import_module(name)


def serve(requests: socket.socket, load: Callable[[], None]) -> list[str]:
    """Be the warm process: load, then fork for every command. It returns in the forks alone.

    Parameters
    ----------
    requests : socket
        Commands come from here. The process ends when the other end is closed.
    load : callable
        Imports what the forks need.

    Returns
    -------
    list of str
        The command, in the fork that carries it out.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    load()
    if len(list(_THREADS.iterdir())) > 1:
        os._exit(1)
    gc.collect()
    gc.freeze()  # the forks share this memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    requests.send(b"ready")
    while command := requests.recv(_LONGEST):
        if os.fork() == 0:
            requests.close()
            _begin()
            return json.loads(command)
    os._exit(0)


def _begin() -> None:
    """Make the fork what a new process is."""
    import numpy as np

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    np.random.seed()
    Path("/proc/self/comm").write_text(PROGRAM)  # its name in lists of processes


class Starter:
    """Stands in for what Flower's executor uses of `subprocess`.

    Parameters
    ----------
    warm : socket
        To the warm process.
    """

    DEVNULL = subprocess.DEVNULL

    def __init__(self, warm: socket.socket) -> None:
        self._warm: socket.socket | None = warm
        self._ready = False

    def Popen(self, command: list[str], **options: Any) -> subprocess.Popen[Any] | None:
        """Start a process: a fork of the warm one, or a new one if there is none."""
        if command[0] == PROGRAM and not options and self._forked(command):
            return None
        return subprocess.Popen(command, **options)

    def _forked(self, command: list[str]) -> bool:
        if self._warm is None:
            return False
        try:
            self._ready = self._ready or bool(self._warm.recv(16))  # it waits until everything is loaded
            if self._ready:
                self._warm.send(json.dumps(command).encode())
                return True
        except OSError:
            pass
        self._warm = None  # it has ended
        return False
