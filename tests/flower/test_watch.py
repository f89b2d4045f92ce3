"""Nothing that `fedpdm flower demo` has started outlives it, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedpdm.engines.flower.processes.watch import marked

# What the demo does first, with a process that stands for a SuperLink and ignores polite signals.
DEMO = """
import signal, subprocess, sys, time
from pathlib import Path
from fedpdm.engines.flower.processes.launch import LocalFederation

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under `nohup`
site = LocalFederation(Path(sys.argv[1]))
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(3600)"
child = subprocess.Popen([sys.executable, "-c", stubborn], env=site.environment, stdout=subprocess.PIPE, start_new_session=True)
child.stdout.read(1)
print("up", flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGHUP])
def test_no_process_outlives_the_demo(sent: signal.Signals, tmp_path: Path) -> None:
    mark = f"FLWR_HOME={tmp_path / 'flwr'}".encode()
    with subprocess.Popen([sys.executable, "-c", DEMO, str(tmp_path)], stdout=subprocess.PIPE) as demo:
        assert demo.stdout
        assert demo.stdout.read(2) == b"up"
        assert len(marked(mark)) == 1
        os.kill(demo.pid, sent)
    until = time.monotonic() + 900
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.1)
    assert not marked(mark)
