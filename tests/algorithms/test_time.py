"""The work of a local solve is the same for all rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.algorithms.local import Examples, LocalPlan, solve
from fedpdm.problem import penalties, softmax
from fedpdm.problem.objective import Problem

STEPS = 40


class Counted:
    """A problem that counts how often its gradient is computed."""

    def __init__(self) -> None:
        self.count = 0
        loss = softmax()

        def gradient(*arguments):
            jax.debug.callback(self._one)
            return loss.gradient(*arguments)

        self.problem = Problem(loss._replace(gradient=gradient), penalties.none())

    def _one(self) -> None:
        self.count += 1


def rows(with_canary: bool) -> Examples:
    """Neighbours: of 20 places one is filled, or none is, so that the gradient at the start is 0."""
    features = np.zeros((1, 20, 3), np.float32)
    if with_canary:
        features[0, 0] = (0.6, 0.6, 0.5)
    return Examples(jnp.asarray(features), jnp.zeros((1, 20), jnp.int32), jnp.array([20]), jnp.int32(0))


def stopping_early(problem, plan, examples, x0, weight, step_size):
    """The broken variant: a loop that ends when the tolerance is reached."""
    everything = examples.features[0], examples.labels[0], jnp.full(20, 1 / 20)

    def body(carry):
        x, step, _ = carry
        d = problem.loss.gradient(x, *everything) + weight * (x - x0)
        return x - step_size * d, step + 1, jnp.sum(d**2) <= plan.tolerance

    x, steps, _ = jax.lax.while_loop(lambda c: (c[1] < plan.steps) & ~c[2], body, (x0, jnp.int32(0), jnp.bool_(False)))
    return x, steps


PLAN = LocalPlan(STEPS, 0, 0.5, tolerance=1e-7)
X0 = jnp.zeros((2, 3))


@pytest.mark.parametrize("with_canary", [True, False])
def test_all_steps_are_computed_and_the_result_is_that_of_stopping_early(with_canary: bool) -> None:
    counted, examples = Counted(), rows(with_canary)
    run = jax.jit(lambda e: solve(counted.problem, PLAN, e, X0, 0.0, 1.0, jnp.float32(0.5), jax.random.key(0)))
    x, info = run(examples)
    jax.effects_barrier()
    assert counted.count == STEPS
    early, steps = stopping_early(Counted().problem, PLAN, examples, X0, 1.0, 0.5)
    assert int(info.steps) == int(steps) < STEPS
    np.testing.assert_allclose(x, early, atol=1e-7)


def test_stopping_early_shows_the_rows() -> None:
    """Negative control: the count of the test above distinguishes the two data sets."""
    seen = []
    for with_canary in (True, False):
        counted = Counted()
        jax.jit(partial(stopping_early, counted.problem, PLAN, x0=X0, weight=1.0, step_size=0.5))(rows(with_canary))
        jax.effects_barrier()
        seen.append(counted.count)
    assert seen[0] != seen[1]
