"""Output that survives its terminal: a command that may go on when the terminal is closed goes on without it."""

import errno
import io
import os
import sys
from typing import Any

__all__ = ["outlive_the_terminal"]


class _Terminal(io.FileIO):
    """A terminal; what is written after it was closed is dropped."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fileno())
        os.close(nothing)
        return memoryview(data).nbytes


def outlive_the_terminal() -> None:
    """Let standard output and standard error be dropped once their terminal is closed.

    A closed terminal sends SIGHUP, which ends the command. `disown` and `trap '' HUP` ask it to go on. Then every line of
    progress would raise an error, and the first one would end the command with a traceback that nobody can read.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.flush()
            raw = _Terminal(stream.fileno(), "w", closefd=False)
            kept = {"encoding": stream.encoding, "errors": stream.errors, "line_buffering": True}
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), **kept))
