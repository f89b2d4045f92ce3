"""The end of a command that was interrupted from the keyboard."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

__all__ = ["INTERRUPTED", "heed_interrupts", "interrupted", "when_interrupted"]

INTERRUPTED = 130  # 128 + SIGINT, as shells count
_words = ["interrupted."]  # the last ones are those of the work that is under way


def interrupted(words: str, code: int = INTERRUPTED) -> NoReturn:
    """Say so in one line, and end with code 130, or with that of another signal.

    The process ends at once, without Python's own clean-up. The clean-up frees memory of kernels that threads of JAX may still
    run: one interrupt in five ended in a crash. Nothing is lost, as all files are written in one step.

    Parameters
    ----------
    words : str
        What the line says after the program's name.
    code : int
        128 and the signal's number, as shells count.

    Returns
    -------
    NoReturn
        It does not return.
    """
    with suppress(Exception):  # the interrupt may have come in the middle of a write to the same stream
        sys.stdout.flush()
    with suppress(OSError):  # the terminal was closed
        os.write(2, f"\nfedpdm: {words}\n".encode())
    os._exit(code)


@contextmanager
def when_interrupted(words: str) -> Iterator[None]:
    """Let an interrupt in this block say these words.

    Parameters
    ----------
    words : str
        As in `interrupted`.

    Returns
    -------
    context manager
        Of the block.
    """
    _words.append(words)
    try:
        yield
    finally:
        _words.pop()


def heed_interrupts() -> None:
    """Let an interrupt end this process with one line, wherever it is.

    The handler ends the process itself. Python's own handler raises an exception wherever the main thread is. A callback of a
    library forgets it, and a module of JAX that is being imported turns it into an error of its own, or crashes.
    """
    signal.signal(signal.SIGINT, lambda *_: interrupted(_words[-1]))
