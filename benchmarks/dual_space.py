"""Whole-batch local steps in both spaces, in turn in one process: how many times faster the space of the rows is.

    python benchmarks/dual_space.py [--repeats 7] [--out docs/results/benchmarks/dual_space.json]

The first shape is that of scattering features of MNIST (30 clients of 600 rows). The others show where the choice lies:
the last column says which space a run of 40 rounds with 30 of 100 clients would take.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.algorithms.dual_space import gram_matrices, pays
from fedpdm.algorithms.local import Examples, LocalPlan, solve
from fedpdm.problem import Problem, penalties, softmax

SHAPES = [(30, 600, 3970, 10), (30, 600, 785, 10), (30, 100, 785, 10), (30, 300, 105, 2), (30, 600, 201, 10)]
SHAPES += [(30, 300, 2000, 2), (30, 100, 785, 2), (30, 50, 400, 2), (30, 50, 105, 2), (30, 20, 105, 2), (30, 300, 785, 5)]
PARTICIPATIONS = 12


def compare(clients: int, rows: int, features: int, classes: int, repeats: int) -> dict[str, float | bool | str]:
    """Time one shape in both spaces."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients, rows, features)).astype(np.float32)
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    data = jnp.asarray(x), jnp.asarray(rng.integers(0, classes, (clients, rows)), jnp.int32), jnp.full(clients, rows)
    x0, terms = (jnp.asarray(rng.normal(size=s) / 10, jnp.float32) for s in [(classes, features), (clients, classes, features)])
    problem, plan = Problem(softmax(0.3), penalties.none()), LocalPlan(20, 0, 2.0)

    @jax.jit
    def solved(data, grams, terms):
        def one(row):
            examples = Examples(*data, row[0], grams=grams)
            return solve(problem, plan, examples, x0, row[1], 0.1, jnp.float32(2.0), jax.random.key(0))[0]

        return jax.lax.map(one, (jnp.arange(clients), terms))

    def timed(function, *args):
        start = time.perf_counter()
        found = jax.block_until_ready(function(*args))
        return time.perf_counter() - start, found

    grams = gram_matrices(data[0])
    gap = jnp.max(jnp.abs(solved(data, None, terms) - solved(data, grams, terms)))
    pairs = [(timed(solved, data, None, terms)[0], timed(solved, data, grams, terms)[0]) for _ in range(repeats)]
    return {
        "shape": f"{clients} x {rows} x {features}, {classes} classes",
        "usual_ms": 1000 * statistics.median(usual for usual, _ in pairs),
        "dual_ms": 1000 * statistics.median(dual for _, dual in pairs),
        "ratio": statistics.median(usual / dual for usual, dual in pairs),
        "gram_ms": 1000 * timed(gram_matrices, data[0])[0],
        "largest_difference": float(gap),
        "chosen": pays(rows, features, classes, 20, PARTICIPATIONS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    found = []
    for shape in SHAPES:
        found.append(compare(*shape, flags.repeats))
        print(json.dumps(found[-1]), flush=True)
    if flags.out:
        flags.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
