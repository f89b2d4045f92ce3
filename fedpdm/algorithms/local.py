"""The one local solver: every algorithm here minimises the same kind of local problem."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.problem.objective import Problem, concave_gradient

__all__ = ["Examples", "LocalPlan", "LocalInfo", "solve", "step_size_at"]


class Examples(NamedTuple):
    """One client's rows inside arrays that may hold many clients.

    Keeping the stacked arrays and a row number, rather than the client's slice, lets a mini-batch be gathered
    without copying all of the client's data first.
    """

    features: Array  # [clients, rows, n]
    labels: Array  # [clients, rows]
    sizes: Array  # [clients]
    client: Array  # which of them; a scalar

    def rows(self, index: Array) -> tuple[Array, Array]:
        return self.features[self.client, index], self.labels[self.client, index]


class LocalPlan(NamedTuple):
    """How a client works on its local problem; all of it is public and fixed before the round.

    Attributes
    ----------
    steps
        Number of steps, or the most steps when `tolerance` is set.
    batch_size
        Examples per step. 0 means all of the client's examples in every step.
    step_size, schedule
        Step size at round 0 and how it falls: "constant", or "inverse-sqrt" for `step_size / sqrt(1 + t)`.
    tolerance
        The paper's nu: stop after the first step whose direction has squared norm <= nu. 0 means fixed steps.
    """

    steps: int
    batch_size: int
    step_size: float
    schedule: str = "constant"
    tolerance: float = 0.0


class LocalInfo(NamedTuple):
    """What is reported about a local solve (and not kept)."""

    steps: Array


def step_size_at(plan: LocalPlan, round_index: Array | int) -> Array:
    """Step size of round `round_index`, counted from 0."""
    if plan.schedule == "inverse-sqrt":
        return plan.step_size / jnp.sqrt(1.0 + round_index)
    return jnp.asarray(plan.step_size, jnp.float32)


def _one_pass_order(key: Array, rows: int, size: Array) -> Array:
    """A random order of the client's own rows, first; the padding comes last."""
    draws = jax.random.uniform(key, (rows,))
    return jnp.argsort(jnp.where(jnp.arange(rows) < size, draws, 2.0))


def solve(
    problem: Problem,
    plan: LocalPlan,
    examples: Examples,
    x0: Array,
    linear_term: Array | float,
    weight: float,
    step_size: Array,
    key: Array,
) -> tuple[Array, LocalInfo]:
    r"""Work on $\min_x f_i(x) + \langle v, x\rangle + \frac w2 \|x - x_0\|^2$ by gradient steps from $x_0$.

    Each step is $x \leftarrow x - \eta\,(\nabla f_i(x; \text{batch}) + v + w (x - x_0))$. The batches of one round are
    disjoint as long as `steps * batch_size` does not exceed the client's size; beyond that the same order is
    gone through again.
    """
    size = examples.sizes[examples.client]
    rows = examples.labels.shape[1]
    full_batch = plan.batch_size == 0
    order = None if full_batch else _one_pass_order(key, rows, size)

    def data_gradient(x: Array, step: Array) -> Array:
        if order is None:
            features, labels = examples.rows(jnp.arange(rows))
            weights = jnp.where(jnp.arange(rows) < size, 1.0 / size, 0.0)
        else:
            places = (step * plan.batch_size + jnp.arange(plan.batch_size)) % size
            features, labels = examples.rows(order[places])
            weights = jnp.full(plan.batch_size, 1.0 / plan.batch_size)
        return problem.loss.gradient(x, features, labels, weights)

    def direction(x: Array, step: Array) -> Array:
        gradient = data_gradient(x, step)
        if problem.beta:
            gradient = gradient + problem.beta * concave_gradient(x)
        return gradient + linear_term + weight * (x - x0)

    def body(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, step, _ = carry
        d = direction(x, step)
        return x - step_size * d, step + 1, jnp.sum(d**2) <= plan.tolerance

    if plan.tolerance:
        # Under vmap this runs until the slowest client stops, with finished clients masked: the cap bounds it.
        x, steps, _ = jax.lax.while_loop(
            lambda carry: (carry[1] < plan.steps) & ~carry[2], body, (x0, jnp.int32(0), jnp.bool_(False))
        )
    else:
        x = jax.lax.fori_loop(0, plan.steps, lambda step, x: x - step_size * direction(x, step), x0)
        steps = jnp.int32(plan.steps)
    return x, LocalInfo(steps)
