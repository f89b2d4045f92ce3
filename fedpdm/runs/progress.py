"""A live line in a terminal, a few plain lines in a pipe."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

__all__ = ["Progress"]

PLAIN_SECONDS = 5.0


def _line(row: dict[str, Any]) -> str:
    names = {"test_accuracy": "accuracy", "test_loss": "test loss", "objective": "objective"}
    measured = "".join(f"{name} {row[key]:.4f}  " for key, name in names.items() if key in row)
    sent = (row["uplink_bytes"] + row["downlink_bytes"]) / 1e6
    return f"{measured}non-zeros {row['nonzero_fraction']:.1%}  {sent:.1f} MB"


class Progress:
    """Shows round, test accuracy, objective, non-zeros and bytes so far, on standard error."""

    def __init__(self, rounds: int, enabled: bool = True):
        self._rounds, self._enabled = rounds, enabled
        self._latest: dict[str, Any] = {}
        self._said = 0.0
        console = Console(stderr=True)
        self._live = None
        if enabled and console.is_terminal:
            columns = (
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(20),
                TextColumn("{task.description}"),
            )
            self._live = RichProgress(*columns, TimeRemainingColumn(), console=console)
            self._task = self._live.add_task("compiling", total=rounds)

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        elif self._enabled:
            print("compiling", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, rows: list[dict[str, Any]]) -> None:
        """Add the rows of one chunk; values that are not measured in every round keep their last one."""
        for row in rows:
            self._latest |= row
        done = self._latest["round"]
        if self._live:
            self._live.update(self._task, completed=done, description=_line(self._latest))
        elif self._enabled and (time.monotonic() - self._said > PLAIN_SECONDS or done == self._rounds):
            print(f"round {done}/{self._rounds}  {_line(self._latest)}", file=sys.stderr, flush=True)
            self._said = time.monotonic()
