"""Ctrl-C ends a command with code 130, also where Python forgets the exception."""

import subprocess
import sys
import textwrap

FORGETFUL = textwrap.dedent("""
    import os, signal, sys, time
    from fedpdm.cli import interrupt
    interrupt.PATIENCE = 0.3
    interrupt.heed_interrupts()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    except KeyboardInterrupt:
        {handler}
    time.sleep(60)
""")


def ended(handler: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", FORGETFUL.format(handler=handler)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_an_interrupt_that_a_library_forgets_still_ends_the_process():
    done = ended("pass")
    assert (done.returncode, done.stderr.strip()) == (130, "fedpdm: interrupted.")


def test_an_interrupted_command_skips_the_clean_up_and_flushes_what_it_said():
    done = ended('print("half"); interrupt.interrupted("interrupted. Go on.")')
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "half\n", "fedpdm: interrupted. Go on.")
