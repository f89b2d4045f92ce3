"""The cost of one message for a client beyond the algorithm.

    python benchmarks/flower_cost.py --repeat 7 --out docs/results/benchmarks/flower_cost.json

Flower starts a process for every message. "cold" and "warm" are new processes, without and with compiled programs on disk;
"fork" is a fork of the process that has loaded the code before, as a node started by `fedpdm flower node` uses it. The three
take turns. Every figure is the median, in seconds of wall time and of the process's own CPU time (which says more on a machine
that does other things too). "flower" is the import of Flower's own client process before it reads a message; "ours" is the
time after it, from the first import of fedpdm to the finished message.
"""

import argparse
import json
import os
import pickle
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CASES = {
    "digits": [
        "data.name=digits",
        "data.features=raw",
        "data.basis=none",
        "data.scaling=unit",
        "data.partition=iid",
        "data.clients=4",
        "rounds.participants=4",
    ],
    "mnist": [],
}


def child(folder: Path) -> None:
    """One message, in a process of its own."""
    marks = [_now()]
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401 - what `flwr-clientapp` imports

    marks.append(_now())
    from fedpdm.engines.flower.client import client  # noqa: F401
    from fedpdm.engines.flower.client.app import node_of  # noqa: F401
    from fedpdm.engines.flower.compile_cache import use_compile_cache  # noqa: F401

    marks.append(_now())
    _answer(folder)
    _report(folder, [*marks, _now()])


def forks(folder: Path, requests: int) -> None:
    """One message in each fork."""
    from fedpdm.engines.flower.processes.warm import load, serve

    serve(socket.socket(fileno=requests), load)
    begin = _now()
    marks = [begin] * 3
    _answer(folder)
    _report(folder, [*marks, _now()])


def _answer(folder: Path) -> None:
    """Make the message as the ClientApp does."""
    from fedpdm.engines.flower.client import client
    from fedpdm.engines.flower.client.app import node_of
    from fedpdm.engines.flower.compile_cache import use_compile_cache

    node = node_of({"client": 0, "state-dir": str(folder / "state"), "policy": str(folder / "policy.toml")})
    use_compile_cache(node.state_dir)
    reply = client.answer(node, pickle.loads((folder / "request").read_bytes()))
    assert not reply.refused, reply.reason


def _report(folder: Path, marks: list[tuple[float, float]]) -> None:
    names = ("flower", "import", "answer")
    parts = {name: [b - a for a, b in zip(marks[i], marks[i + 1], strict=True)] for i, name in enumerate(names)}
    (folder / "part").write_text(json.dumps(parts))
    (folder / "part").rename(folder / "figures")


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def measure(name: str, repeat: int) -> dict[str, Any]:
    """Cold (nothing compiled) and warm medians for one data set."""
    from fedpdm.engines.flower.client.approve import approve
    from fedpdm.engines.flower.client.policy import load_policy
    from fedpdm.engines.flower.init import job_from
    from fedpdm.engines.flower.server.coordinator import Coordinator
    from fedpdm.engines.flower.server.run_folder import open_run

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "policy.toml").write_text("[budget]\nepsilon = 1000.0\ndelta = 1e-5\n[limits]\nnoise_multiplier_min = 0.01\n")
        job = job_from("demo", CASES[name], slots=None)
        approve(folder / "state", job, load_policy(folder / "policy.toml"))
        run = open_run(folder / "run", job, {})
        request = Coordinator(job, run, None).requests([0])[0]
        run.close()
        (folder / "request").write_bytes(pickle.dumps(request))
        _once(folder)  # prepares the examples
        seen: dict[str, list[dict[str, list[float]]]] = {"cold": [], "warm": [], "fork": []}
        with _warm(folder) as warm:
            for _ in range(repeat):
                shutil.rmtree(folder / "state" / "compiled")
                for kind, runs in seen.items():
                    _forget_messages(folder / "state")
                    runs.append(_fork(folder, warm) if kind == "fork" else _once(folder))
        return {kind: _medians(runs) for kind, runs in seen.items()}


def _forget_messages(state: Path) -> None:
    for path in state.glob("*.sqlite*"):
        path.unlink()


def _once(folder: Path) -> dict[str, list[float]]:
    began = time.perf_counter()
    subprocess.run([sys.executable, __file__, "--child", str(folder)], check=True, timeout=300)
    return _figures(folder, began)


@contextmanager
def _warm(folder: Path) -> Iterator[socket.socket]:
    """The process that the forks come from."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, "--child", str(folder), "--forks", str(far.fileno())]
    with subprocess.Popen(command, pass_fds=[far.fileno()], env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}), far, near:
        far.close()
        assert near.recv(16), "it has loaded the code"
        yield near
        near.close()


def _fork(folder: Path, warm: socket.socket) -> dict[str, list[float]]:
    began = time.perf_counter()
    warm.send(json.dumps([__file__]).encode())
    while not (folder / "figures").exists():
        time.sleep(0.005)
    return _figures(folder, began)


def _figures(folder: Path, began: float) -> dict[str, list[float]]:
    figures = json.loads((folder / "figures").read_text()) | {"whole process": [time.perf_counter() - began, 0.0]}
    (folder / "figures").unlink()
    return figures


def _medians(runs: list[dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    result = {}
    for name in runs[0]:
        wall, cpu = (statistics.median(run[name][kind] for run in runs) for kind in (0, 1))
        result[name] = {"wall": round(wall, 3), "cpu": round(cpu, 3)}
    result["ours"] = {kind: round(result["import"][kind] + result["answer"][kind], 3) for kind in ("wall", "cpu")}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--forks", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--data", nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.child:
        forks(options.child, options.forks) if options.forks else child(options.child)
        return
    results = {name: measure(name, options.repeat) for name in options.data}
    for name, by_state in results.items():
        for state, figures in by_state.items():
            text = ", ".join(f"{part} {value['wall']:.2f} s ({value['cpu']:.2f} CPU)" for part, value in figures.items())
            print(f"{name}, {state}: {text}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
