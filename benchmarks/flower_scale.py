"""The cost of a round for the server as the number of clients grows: decoding, checking, averaging, and the checkpoint.

    python benchmarks/flower_scale.py --clients 10 100 1000 10000 --out docs/results/benchmarks/flower_scale.json

The replies are real messages of a model of MNIST's size (7,850 coordinates); Flower's own transport is not in these figures.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.compression.wire import encode, make_part
from fedpdm.config import load_config
from fedpdm.engines.flower.job import make_job
from fedpdm.engines.flower.protocol import Reply, pack, unpack
from fedpdm.engines.flower.server.coordinator import Coordinator
from fedpdm.engines.flower.server.run_folder import open_run

SHAPE = (10, 785)


def one(clients: int, rule: str) -> dict[str, Any]:
    """Return CPU seconds of one warm round with this number of replies, and the process's largest memory."""
    settings = [f"data.clients={clients}", "rounds.participants=0", "rounds.total=3", f"algorithm.server_rule={rule}"]
    settings += ["data.name=own", "data.features=raw", "data.basis=none"]
    job = make_job(load_config("demo", settings), 600, [str(k) for k in range(10)], [f"x{j}" for j in range(785)])
    rng = np.random.default_rng(0)
    vectors = []
    for _ in range(min(clients, 100)):  # a hundred different ones are enough
        values = rng.normal(size=SHAPE).astype(np.float32)
        vectors.append(encode([make_part(values, np.ones(SHAPE, bool))]))
    with tempfile.TemporaryDirectory() as folder:
        run = open_run(Path(folder) / "run", job, {})
        server = Coordinator(job, run, None)
        for _ in range(2):  # the second round is the warm one
            began = time.process_time()
            asked = server.requests(range(clients))
            requests = time.process_time() - began
            records = [pack(Reply.of(asked[i], vectors[i % len(vectors)])) for i in range(clients)]
            began = time.process_time()
            server.take(asked, [(i, unpack(Reply, record)) for i, record in enumerate(records)])
            take = time.process_time() - began
        run.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = len(vectors[0])
    return {
        "clients": clients,
        "server_rule": rule,
        "requests_cpu_seconds": round(requests, 3),
        "take_cpu_seconds": round(take, 3),
        "memory_mebibytes": round(memory),
        "mebibytes_up_per_round": round(clients * size / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--rule", nargs="*", default=["participants", "dual-memory"])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(one(int(options.child[0]), options.child[1])))
        return
    results = []
    for rule in options.rule:
        for clients in options.clients:  # a process each, so that its memory is its own
            command = [sys.executable, __file__, "--child", str(clients), rule]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
            print(results[-1], flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
