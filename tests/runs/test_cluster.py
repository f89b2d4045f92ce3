"""A real cluster on loopback, a scheduler and two workers: results are those of this process, and a worker may die."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpdm.config import load_config
from fedpdm.errors import ConfigError, UserError
from fedpdm.runs import cluster
from fedpdm.runs.cluster import each, last_timing, on_cluster
from fedpdm.runs.sweep import run_sweep

SMALL = ["data.name=digits", "data.clients=10", "rounds.participants=4", "rounds.total=4", "metrics.diagnose_every=4"]
LOOPBACK = ("--host", "127.0.0.1", "--no-dashboard")


def contact(file: Path) -> dict[str, str]:
    """What the scheduler has written about itself; nothing until all of it is there."""
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """Of a scheduler with two workers."""
    folder = tmp_path_factory.mktemp("cluster")
    found, dask = folder / "scheduler.json", [sys.executable, "-m", "dask"]
    worker = [*dask, "worker", "--scheduler-file", str(found), *LOOPBACK, "--nthreads", "1", "--no-nanny"]
    commands = [[*dask, "scheduler", *LOOPBACK, "--port", "0", "--scheduler-file", str(found)], worker, worker]
    with (folder / "log").open("w") as log:
        # results of a dead worker are computed again after this time, 30 s unless told
        settings = os.environ | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"}
        started = [subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=settings) for command in commands]
        try:
            while not (known := contact(found)):
                assert started[0].poll() is None, (folder / "log").read_text()
                time.sleep(0.05)
            yield known["address"]
        finally:
            for process in started:
                process.kill()
                process.wait()


def without_times(results):
    return [{key: value for key, value in result.items() if key != "seconds"} for result in results]


def test_a_sweep_is_the_same_to_the_bit_and_goes_on_in_either_place(address, tmp_path):
    configs = [load_config("plain", [*SMALL, f"seed={seed}"]) for seed in range(4)]
    here = run_sweep(configs, tmp_path / "here.jsonl")
    store, said = tmp_path / "both.jsonl", []
    run_sweep(configs[:1], store)
    with on_cluster(address):
        there = run_sweep(configs[:3], store, lambda done, total, config, result: said.append((done, last_timing())))
    assert [done for done, _ in said] == [1, 2, 3]
    assert [timing.seconds > 0 for _, timing in said] == [False, True, True], "the first one was kept"
    assert said[-1][1].workers == 2
    assert without_times(there) == without_times(here[:3])
    assert run_sweep(configs, store)[:3] == there, "what the workers ran is not run again here"
    assert len(store.read_text().splitlines()) == len(configs)


def test_a_worker_that_is_killed_loses_nothing_and_errors_are_said_in_one_line(address, tmp_path):
    first = str(tmp_path / "first")

    def work(item):
        import os as system
        import pathlib

        if item == 2 and not pathlib.Path(first).exists():
            pathlib.Path(first).touch()
            system.kill(system.getpid(), 9)
        return item * item, system.getpid()

    def refuse(item):
        from fedpdm.errors import DataError

        raise DataError(f"Expected {item}.")

    def lack(item):
        import no_such_module  # noqa: F401

    with on_cluster(address):
        found = dict(each(work, range(6)))
        assert {item: square for item, (square, _) in found.items()} == {item: item * item for item in range(6)}
        assert os.getpid() not in {process for _, process in found.values()}
        with pytest.raises(UserError, match=r"Expected 7\."):
            list(each(refuse, [7]))
        with pytest.raises(UserError, match=r"cannot import no_such_module.*Finished runs are stored"):
            list(each(lack, [7]))
    assert list(each(abs, [-1])) == [(-1, 1)], "outside of the block it is done here"


def test_an_interrupt_ends_the_command_and_takes_its_work_off_the_cluster(address, tmp_path):
    began = tmp_path / "began"
    code = f"""
        import pathlib, time
        from fedpdm.cli import interrupt
        from fedpdm.runs.cluster import each, on_cluster
        interrupt.heed_interrupts()

        def work(item):
            pathlib.Path({str(began)!r}).touch()
            time.sleep(0.5)

        with interrupt.when_interrupted("interrupted. Go on."), on_cluster({address!r}):
            list(each(work, range(1000)))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.PIPE, text=True)
    while not began.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert (process.returncode, said.strip()) == (130, "fedpdm: interrupted. Go on.")
    with on_cluster(address):
        assert list(each(abs, [-1])) == [(-1, 1)], "the 1000 items are gone"


def test_what_cannot_work_is_said_before_the_work(monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.2)
    with pytest.raises(ConfigError, match=r"No Dask scheduler answers at --on tcp://127\.0\.0\.1:9 within .*leave --on out"):
        on_cluster("tcp://127.0.0.1:9").__enter__()
    other = cluster._About("name", cluster.versions() | {"jax": "0.1"}, str(Path.cwd()))
    with pytest.raises(ConfigError, match=r"instead of 0\.1, and its results could differ"):
        cluster._work(other, b"")
