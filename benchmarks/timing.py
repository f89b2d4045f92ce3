"""Does the time of an answer tell whether a row is there? A two-sample test on a real node, and its control.

    python benchmarks/timing.py --examples 30000 --runs 41

The control is a node whose local loop ends as soon as the tolerance is reached, as it once did. The result goes to
docs/results/benchmarks/timing.json.
"""

import argparse
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
from workloads import RESULTS, commit

from fedpdm import rounds
from fedpdm.algorithms.local import Examples, LocalInfo, LocalPlan
from fedpdm.audit.node import attack_time
from fedpdm.problem.objective import Problem
from fedpdm.runs.folder import atomic_write


def stopping_early(
    problem: Problem, plan: LocalPlan, examples: Examples, x0: Any, linear_term: Any, weight: float, step_size: Any, *_: Any
) -> tuple[Any, LocalInfo]:
    """The full-batch loop with an early exit."""
    rows = examples.features[0], examples.labels[0], jnp.full(examples.labels.shape[1], 1 / examples.labels.shape[1])

    def body(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        x, step, _ = carry
        d = problem.loss.gradient(x, *rows) + linear_term + weight * (x - x0)
        return x - step_size * d, step + 1, jnp.sum(d**2) <= plan.tolerance

    start = (x0, jnp.int32(0), jnp.bool_(False))
    x, steps, _ = jax.lax.while_loop(lambda carry: (carry[1] < plan.steps) & ~carry[2], body, start)
    return x, LocalInfo(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=30_000)
    parser.add_argument("--runs", type=int, default=41, help="answers a side; the first one compiles and does not count")
    parser.add_argument("--control-runs", type=int, default=16)
    options = parser.parse_args()
    loaded = commit()
    node = attack_time(options.examples, options.runs)
    print(node.sentence, flush=True)
    honest, rounds.solve = rounds.solve, stopping_early  # type: ignore[assignment]
    try:
        control = attack_time(options.examples, options.control_runs)
    finally:
        rounds.solve = honest
    print("Control:", control.sentence, flush=True)
    command = (
        f"python benchmarks/timing.py --examples {options.examples} --runs {options.runs} --control-runs {options.control_runs}"
    )
    result = {"command": command, "commit": loaded, "seed": 0, "cpu_seconds": round(time.process_time())}
    result |= {"node": node._asdict(), "control": control._asdict()}
    atomic_write(RESULTS / "timing.json", (json.dumps(result, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
