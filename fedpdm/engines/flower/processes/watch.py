"""A process that outlives `fedpdm flower demo` by a moment: when the demo is gone, however it ended, it stops what is left.

It runs by itself (`python watch.py MARK`), so it imports nothing of this package. Its standard input is a pipe that the demo
holds open: the end of the file is the end of the demo, also after kill -9. MARK is in the environment of all processes to stop.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["marked", "main"]

PATIENCE = 5.0  # seconds between SIGTERM and SIGKILL


def marked(mark: bytes) -> list[int]:
    """The ids of all other processes that have this entry in their environment.

    Parameters
    ----------
    mark : bytes
        NAME=VALUE.

    Returns
    -------
    list of int
        Process ids.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or belongs to another user
            if mark in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def main() -> None:
    """Wait for the end of standard input, then end what has the mark."""
    for name in ("SIGINT", "SIGHUP", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)  # they are for the demo
    mark = sys.argv[1].encode()
    while os.read(0, 4096):
        pass
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for process in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(process, sent)
        until = time.monotonic() + PATIENCE
        while marked(mark) and time.monotonic() < until:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
