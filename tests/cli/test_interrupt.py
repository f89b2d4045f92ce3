"""Ctrl-C ends a command with one line and code 130, wherever the command is."""

import os
import pty
import signal
import subprocess
import sys
import textwrap

import pytest

FORGOTTEN = """
    try:
        {interrupt}
        time.sleep(60)
    except BaseException:
        time.sleep(60)
"""
IN_A_CALLBACK = """
    class Freed:
        def __del__(self):
            {interrupt}
            time.sleep(60)

    Freed()
"""
HALF_SAID = """
    print("half")
    with interrupt.when_interrupted("interrupted. Go on."):
        {interrupt}
        time.sleep(60)
"""


@pytest.mark.parametrize(
    ("where", "said", "line"),
    [(FORGOTTEN, "", "interrupted."), (IN_A_CALLBACK, "", "interrupted."), (HALF_SAID, "half\n", "interrupted. Go on.")],
)
def test_an_interrupt_ends_the_process_wherever_it_comes(where, said, line):
    """A library that swallows all exceptions, a callback of which Python ignores them, and work with words of its own."""
    begin = "import os, signal, time\nfrom fedpdm.cli import interrupt\ninterrupt.heed_interrupts()\n"
    code = begin + textwrap.dedent(where).format(interrupt="os.kill(os.getpid(), signal.SIGINT)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, said, f"fedpdm: {line}")


def test_a_module_that_is_being_imported_cannot_turn_an_interrupt_into_an_error(tmp_path):
    """As JAX's do; the command is that of the installed script."""
    (tmp_path / "typer.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from fedpdm.cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "fedpdm: interrupted.")


def test_a_terminal_that_was_closed_changes_nothing_about_the_end():
    code = "import os; os.close(2); from fedpdm.cli.interrupt import interrupted; interrupted('stopped.')"
    assert subprocess.run([sys.executable, "-c", code], timeout=600).returncode == 130


def closed_terminal(code: str) -> int:
    """The exit code of a script whose terminal is closed as soon as it is ready."""
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", code])
    while b"ready" not in os.read(terminal, 1024):
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


WAITS = """
import os, signal, sys, time
from fedpdm.cli.terminal import outlive_the_terminal
signal.signal(signal.SIGHUP, {on_hangup})
outlive_the_terminal()
print("ready", flush=True)
while os.isatty(1):  # until the terminal is gone
    print("progress", flush=True)
    time.sleep(0.01)
"""


def test_a_command_that_ignores_hangups_goes_on_without_its_terminal(tmp_path):
    end = f"print('more'); print('error', file=sys.stderr, flush=True); open({str(tmp_path / 'report')!r}, 'w').write('whole')"
    assert closed_terminal(WAITS.format(on_hangup="signal.SIG_IGN") + end) == 0
    assert (tmp_path / "report").read_text() == "whole"


def test_a_command_that_was_not_told_to_go_on_ends_by_the_hangup():
    assert closed_terminal(WAITS.format(on_hangup="signal.SIG_DFL") + "time.sleep(600)") == -signal.SIGHUP


def test_a_demo_whose_terminal_is_closed_stops_what_it_started_and_ends_with_the_code_of_the_signal(tmp_path):
    """Its progress is written to the closed terminal while it cleans up."""
    code = f"""
import os, time
import fedpdm.engines.flower.processes.demo as demo
from fedpdm.engines.flower.processes.launch import leave_on_sigterm
def run_demo(*_, **__):
    leave_on_sigterm()
    try:
        print("ready", flush=True)
        time.sleep(600)
    finally:
        while os.isatty(1):
            time.sleep(0.01)
        print("stopping", flush=True)
        open({str(tmp_path / "stopped")!r}, "w").write("all")
demo.run_demo = run_demo
import sys, signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under `nohup`
sys.argv = ["fedpdm", "flower", "demo", "--out", {str(tmp_path / "out")!r}]
from fedpdm.cli.__main__ import main
main()
"""
    assert closed_terminal(code) == 128 + signal.SIGHUP
    assert (tmp_path / "stopped").read_text() == "all"
