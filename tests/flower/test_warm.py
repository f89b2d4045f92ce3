"""Messages are answered by forks of one process that has loaded the code: each with noise of its own, in one thread."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpdm.engines.flower.processes.warm import PROGRAM, Starter

WARM = """
import json, os, secrets, socket, sys, threading
from pathlib import Path
from fedpdm.engines.flower.processes.warm import load, serve

def real():
    global generator, draw, np
    load()
    import numpy as np
    from fedpdm.privacy.noise import add_discrete_gaussian
    draw = lambda: add_discrete_gaussian(np.zeros(4, np.int64), 2.0**40).tolist()
    generator = np.random.default_rng()
    draw()  # even a generator that has been used before the fork

def threads():
    threading.Thread(target=threading.Event().wait, daemon=True).start()

name, out = serve(socket.socket(fileno=int(sys.argv[1])), {"real": real, "threads": threads}[sys.argv[2]])
said = {"noise": draw(), "key": secrets.token_hex(8), "numpy": np.random.randint(2**60), "copied": generator.integers(2**60)}
said |= {"process": os.getpid(), "threads": len(os.listdir("/proc/self/task")), "name": Path("/proc/self/comm").read_text()}
Path(out + ".part").write_text(json.dumps(said, default=int))
Path(out + ".part").rename(out)
"""


def start(load: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far:
        command = [sys.executable, "-c", WARM, str(far.fileno()), load]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        return subprocess.Popen(command, pass_fds=[far.fileno()], env=environment), near


def wait(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_forks_share_the_code_and_no_randomness(tmp_path: Path) -> None:
    process, near = start("real")
    starter, files = Starter(near), [tmp_path / "0", tmp_path / "1"]
    for file in files:
        starter.Popen([PROGRAM, str(file)])
        wait(file.exists)
    near.close()
    assert process.wait(60) == 0, "it ends with the process that asks it"
    first, second = (json.loads(file.read_text()) for file in files)
    assert (first["threads"], first["name"]) == (1, f"{PROGRAM}\n")
    for drawn in ("process", "noise", "key", "numpy"):
        assert first[drawn] != second[drawn], drawn
    assert first["copied"] == second["copied"], "the control: what a fork copies would be seen"


@pytest.mark.parametrize("trouble", ["threads", "killed"])
def test_without_a_warm_process_messages_get_new_ones(trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing forks while a second thread runs."""
    process, near = start("threads")
    if trouble == "killed":
        process.kill()
    program = tmp_path / PROGRAM
    program.write_text('#!/bin/sh\ntouch "$1"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    starter = Starter(near)
    for name in ("a", "b"):
        started = starter.Popen([PROGRAM, str(tmp_path / name)])
        assert started is not None
        assert started.wait(60) == 0
        assert (tmp_path / name).exists()
    assert process.wait(60) == (1 if trouble == "threads" else -9)
    near.close()
