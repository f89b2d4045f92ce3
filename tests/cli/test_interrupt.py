"""Ctrl-C ends a command with one line and code 130, wherever the command is."""

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
