"""The cost of one message for a client beyond the algorithm: a new process imports, compiles and answers for every message.

    python benchmarks/flower_cost.py --repeat 7 --out docs/results/benchmarks/flower_cost.json

Every figure is the median over new processes, in seconds of wall time and of the process's own CPU time (which says more on a
machine that does other things too). "flower" is the import of Flower's own client process before it reads a message; "ours"
is the time after it, from the first import of fedpdm to the finished message.
"""

import argparse
import json
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
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
    """One message, as the ClientApp makes it."""
    marks = [_now()]
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401 - what `flwr-clientapp` imports

    marks.append(_now())
    from fedpdm.engines.flower.client import client
    from fedpdm.engines.flower.client.app import node_of
    from fedpdm.engines.flower.compile_cache import use_compile_cache

    marks.append(_now())
    node = node_of({"client": 0, "state-dir": str(folder / "state"), "policy": str(folder / "policy.toml")})
    use_compile_cache(node.state_dir)
    reply = client.answer(node, pickle.loads((folder / "request").read_bytes()))
    marks.append(_now())
    assert not reply.refused, reply.reason
    names = ("flower", "import", "answer")
    print(json.dumps({name: [b - a for a, b in zip(marks[i], marks[i + 1], strict=True)] for i, name in enumerate(names)}))


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
        cold, warm = [], []
        for number in range(2 * repeat):
            if number % 2 == 0:
                shutil.rmtree(folder / "state" / "compiled")
            _forget_messages(folder / "state")
            (cold if number % 2 == 0 else warm).append(_once(folder))
        return {"cold": _medians(cold), "warm": _medians(warm)}


def _forget_messages(state: Path) -> None:
    for path in state.glob("*.sqlite*"):
        path.unlink()


def _once(folder: Path) -> dict[str, list[float]]:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(folder)], capture_output=True, text=True, check=True, timeout=300
    )
    return json.loads(done.stdout.splitlines()[-1]) | {"whole process": [time.perf_counter() - began, 0.0]}


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
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--data", nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.child:
        child(options.child)
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
