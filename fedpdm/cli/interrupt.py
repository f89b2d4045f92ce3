"""The end of a command that was interrupted from the keyboard."""

import os
import signal
import sys
import threading
from typing import NoReturn

__all__ = ["INTERRUPTED", "heed_interrupts", "interrupted"]

INTERRUPTED = 130  # 128 + SIGINT, as shells count
PATIENCE = 5.0  # seconds that an interrupted command may take to end by itself


def interrupted(words: str) -> NoReturn:
    """Say so in one line, and end with code 130.

    The process ends at once, without Python's own clean-up. The clean-up frees memory of kernels that threads of JAX may still
    run: one interrupt in five ended in a crash. Nothing is lost, as all files are written in one step.

    Parameters
    ----------
    words : str
        What the line says after the program's name.

    Returns
    -------
    NoReturn
        It does not return.
    """
    print(f"\nfedpdm: {words}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(INTERRUPTED)


def heed_interrupts() -> None:
    """Make sure that an interrupt ends this process.

    Python raises KeyboardInterrupt wherever the main thread is. In a callback of a library it is printed and forgotten, and the
    command would go on. So a second interrupt ends the process at once, and a timer does so if the first one is forgotten.
    """
    first = [True]

    def leave(*_: object) -> None:
        if not first[0]:
            interrupted("interrupted.")
        first[0] = False
        timer = threading.Timer(PATIENCE, interrupted, ["interrupted."])
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, leave)
