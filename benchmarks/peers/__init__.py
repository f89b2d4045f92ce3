"""Other simulators of federated learning, each in its own way, on the workloads of `workloads.py`: see `speed.py`."""

import sys
import time
from collections.abc import Callable


def serve(run: Callable[[int], None], accuracy: Callable[[], float]) -> None:
    """For every line with a number, run that many rounds and print the time; the accuracy goes to the standard error."""
    for line in sys.stdin:
        began = time.perf_counter()
        run(int(line))
        report(time.perf_counter() - began, accuracy())


def report(seconds: float, accuracy: float) -> None:
    print(f"seconds {seconds:.4f}", flush=True)
    print(f"accuracy {accuracy:.4f}", file=sys.stderr, flush=True)
