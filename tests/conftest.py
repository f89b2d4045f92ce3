"""Shared pieces of the tests."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # scikit-learn's own checks then leave nothing out; before anything imports SciPy

from fedpdm.cache import remember_compilations

remember_compilations()  # the tests' processes share what they compile; before anything imports JAX

from fedpdm.choices import Choice, register, unregister  # noqa: E402
from fedpdm.data import Federation, federation_from_arrays  # noqa: E402

settings.register_profile("any-machine", deadline=None)  # a busy machine may take its time
settings.load_profile("any-machine")
collect_ignore = ["toy_package"]  # a package of another author, which `choices/test_add_your_own.py` installs
# Files with few tests that take minutes, most of it spent on waiting for processes. They begin first, beside everything else.
LONG = ("test_flower_processes.py", "test_examples.py", "test_flower_cli.py", "test_package.py", "test_tables_benchmark.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first, then those with the most tests. Without this, xdist leaves one worker with the longest file."""
    tests = Counter(item.path for item in items)
    rank = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: (rank.get(item.path.name, len(LONG)), -tests[item.path]))  # stable: a file keeps its order


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """For files that compile for longer than they run. Later files get thorough code again: its last bits differ."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()


def random_federation(sizes: list[int], features: int = 5, classes: int = 3, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    parts = [
        (rng.normal(size=(n, features)).astype("float32"), rng.integers(0, classes, n).astype("int32")) for n in [*sizes, 40]
    ]
    # every class occurs, so the number of classes is right
    parts[0][1][:classes] = np.arange(classes)[: len(parts[0][1])]
    test = parts.pop()
    return federation_from_arrays(parts, *test)


def fedpdm(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process."""
    return subprocess.run(
        [sys.executable, "-m", "fedpdm.cli.main", *arguments], capture_output=True, text=True, timeout=900, cwd=cwd
    )


@pytest.fixture
def small_federation() -> Federation:
    return random_federation([20, 7, 13])


@pytest.fixture
def registered() -> Iterator[Callable[[Choice], None]]:
    """Register rows, and remove them after the test."""
    rows: list[Choice] = []

    def add(row: Choice) -> None:
        register(row)
        rows.append(row)

    yield add
    for row in rows:
        unregister(row)
