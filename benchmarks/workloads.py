"""The two workloads that simulators are compared on, as arrays of the right shape. NumPy alone: peers use it too."""

import subprocess
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "benchmarks"  # of all benchmarks


@lru_cache
def commit() -> str:
    """The commit of the code, asked once: at the beginning of a run."""
    told = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True)
    return told.stdout.strip()


CLIENTS, PARTICIPANTS, STEPS, BATCH = 100, 30, 30, 10
EVALUATE_EVERY = 10


class Workload(NamedTuple):
    classes: int
    features: int
    rows: int  # of every client
    test_rows: int
    step_size: float
    rho: float
    beta: float
    gamma: float  # on the mean objective
    rounds: int  # that are timed at once


WORKLOADS = {
    "W-mnist": Workload(10, 785, 600, 10_000, 0.04, 10.0, 0.05, 1e-5, 100),
    "W-adult": Workload(2, 81, 325, 16_281, 0.04, 10.0, 0.05, 1e-5, 500),
}


def arrays(workload: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features [clients, rows, n], labels, test features, test labels: classes apart by a random direction each."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(workload.classes, workload.features)).astype(np.float32)

    def draw(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, workload.classes, shape).astype(np.int32)
        noise = rng.standard_normal((*shape, workload.features), np.float32)
        return (centres[labels] + 3 * noise) / np.float32(3 * workload.features**0.5), labels

    return (*draw(CLIENTS, workload.rows), *draw(workload.test_rows))
