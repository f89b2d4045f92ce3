"""How far a sweep is: cells done, and the time left."""

import sys
import time

from rich.console import Console

from fedpdm.runs.progress import PLAIN_SECONDS

__all__ = ["CellProgress"]

CACHED_SECONDS = 0.02  # a faster cell was read, not run


class CellProgress:
    """One line on standard error: rewritten in a terminal, repeated every few seconds in a pipe."""

    def __init__(self, total: int, enabled: bool = True):
        self._total, self._enabled, self._live = total, enabled, Console(stderr=True).is_terminal
        self._done = self._run = 0
        self._spent, self._said, self._last = 0.0, 0.0, time.monotonic()

    def __enter__(self) -> "CellProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._enabled and self._live:
            print(file=sys.stderr)

    def step(self, name: str) -> None:
        """Count one more finished cell."""
        now = time.monotonic()
        took, self._last = now - self._last, now
        self._done += 1
        if took > CACHED_SECONDS:
            self._run += 1
            self._spent += took
        if self._enabled and (self._live or now - self._said > PLAIN_SECONDS or self._done == self._total):
            self._said = now
            line = f"{self._done}/{self._total} cells, {self._left()}  ({name})"
            print(f"\r{line:79.79}" if self._live else line, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def _left(self) -> str:
        seconds = self._spent / self._run * (self._total - self._done) if self._run else 0.0
        return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"
