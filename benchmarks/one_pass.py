"""Gradients of all rows: all of them at once, block by block, and by the kernel, in turn in one process.

    python benchmarks/one_pass.py      # a few minutes; writes docs/results/benchmarks/one_pass.json

The second part is whole-batch training: 20 steps, at once and by the kernel. The kernel serves the softmax loss. In linearised
mode other losses use blocks, from `MANY_ROWS` rows on.
"""

import json
import math
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.algorithms import LocalPlan, local
from fedpdm.algorithms.local import Examples, solve
from fedpdm.native import SWITCH
from fedpdm.problem import Problem, penalties, softmax

RESULT = Path(__file__).parents[1] / "docs" / "results" / "benchmarks" / "one_pass.json"
REPEATS = 15
# clients, rows, features, classes
SHAPES = [(1, 500_000, 20, 2), (4, 100_000, 10, 2), (8, 50_000, 25, 2), (4, 50_000, 100, 2), (2, 50_000, 400, 2)]
SHAPES += [(8, 30_000, 25, 2), (8, 20_000, 60, 2), (20, 5_000, 100, 2), (4, 50_000, 20, 3), (4, 50_000, 100, 3)]
SHAPES += [(4, 50_000, 20, 5), (2, 50_000, 200, 5), (2, 50_000, 400, 7), (2, 50_000, 785, 10), (4, 10_000, 785, 10)]
SHAPES += [(2, 20_000, 785, 30), (2, 10_000, 785, 100), (30, 600, 785, 10), (20, 600, 3970, 10), (20, 600, 100, 3)]
SHAPES += [(20, 600, 20, 2), (50, 200, 100, 2)]


WHOLE = [(10, 3_000, 105, 2), (4, 10_000, 100, 2), (4, 50_000, 25, 2), (30, 300, 105, 2), (100, 100, 50, 2), (20, 1_000, 20, 5)]
WHOLE += [
    (10, 5_000, 54, 7),
    (30, 600, 785, 10),
    (30, 600, 201, 10),
    (30, 600, 3970, 10),
    (10, 1_000, 785, 12),
    (10, 1_000, 50, 12),
]


def rounds_of(shape: tuple[int, int, int, int], steps: int):
    """The local work of all clients, one after the other, as the simulator does it; 1 step: linearised mode."""
    clients, rows, features, classes = shape
    rng = np.random.default_rng(0)
    rows_of_all = jnp.asarray(rng.normal(size=(clients, rows, features)).astype(np.float32) / features**0.5)
    labels = jnp.asarray(rng.integers(0, classes, (clients, rows)), jnp.int32)
    x0 = jnp.asarray(rng.normal(size=(classes, features)), jnp.float32)
    problem, plan = Problem(softmax(0.5), penalties.none()), LocalPlan(steps, 0, 0.5, linearised=steps == 1)

    def work(x0, rows_of_all, labels):
        def one(client):
            examples = Examples(rows_of_all, labels, jnp.full(clients, rows), client)
            return solve(problem, plan, examples, x0, 0.0, 0.1, jnp.float32(0.5), jax.random.key(0))[0]

        return jax.lax.map(one, jnp.arange(clients))

    return work, (x0, rows_of_all, labels)


def measure(shape: tuple[int, int, int, int], steps: int) -> dict:
    """Processor and clock milliseconds of every way, and the largest difference over the largest weight."""
    work, given = rounds_of(shape, steps)
    ways = {"at once": (2**60, "0"), "blocks": (0, "0"), "kernel": (0, "1")}
    made = {}
    for way, (limit, native) in ways.items():
        if way != "blocks" or steps == 1:
            local.MANY_ROWS, os.environ[SWITCH] = limit, native
            made[way] = jax.jit(lambda *given: work(*given)).lower(*given).compile()
    found = {way: np.asarray(run(*given)) for way, run in made.items()}
    used: dict[str, list[tuple[float, float]]] = {way: [] for way in made}
    for _ in range(REPEATS):
        for way, run in made.items():
            began = time.process_time(), time.perf_counter()
            run(*given).block_until_ready()
            used[way].append((time.process_time() - began[0], time.perf_counter() - began[1]))
    cpu, clock = ({way: round(1e3 * float(np.median([t[i] for t in times])), 2) for way, times in used.items()} for i in (0, 1))
    scale = np.abs(found["at once"]).max()
    return {
        "shape": shape,
        "steps": steps,
        "cpu_ms": cpu,
        "clock_ms": clock,
        "gbytes_per_second": {way: round(4e-6 * steps * math.prod(shape[:3]) / ms, 1) for way, ms in clock.items()},
        "difference": max(float(np.abs(model - found["at once"]).max() / scale) for model in found.values()),
    }


def main() -> None:
    results = []
    for shape, steps in [(shape, 1) for shape in SHAPES] + [(shape, 20) for shape in WHOLE]:
        results.append(measure(shape, steps))
        print(json.dumps(results[-1]), flush=True)
    RESULT.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
