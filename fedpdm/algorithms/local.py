"""The one local solver: every algorithm here minimises the same kind of local problem."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.dual_space import serves, steps_in_dual_space
from fedpdm.algorithms.newton import newton
from fedpdm.native import native_kernels
from fedpdm.problem.local_plan import LocalPlan, step_size_at, travel
from fedpdm.problem.losses import SMALL_BATCH
from fedpdm.problem.objective import Problem, concave_gradient, concave_value

# Gradients of all rows (benchmarks/one_pass.py): the softmax loss has a kernel. With more classes than this, XLA's products are
# as fast where steps find the rows in the cache.
MANY_CLASSES = 12
# The one gradient of linearised mode, for other losses: from so many rows on it is computed block by block. A block uses one
# core, all rows at once use all of them: with fewer rows, less than half of the processor's time is saved.
MANY_ROWS, BLOCK_BYTES = 50_000, 2**17

__all__ = ["Examples", "LocalPlan", "LocalInfo", "solve", "step_size_at", "travel"]


class Examples(NamedTuple):
    """One client's rows inside arrays that may hold many clients.

    It holds the stacked arrays and the client's number, not the client's slice: so a mini-batch is gathered without a copy
    of all the client's data.
    """

    features: Array  # [clients, rows, n]
    labels: Array  # [clients, rows]
    sizes: Array  # [clients]
    client: Array  # the number of this client; a scalar
    weights: Array | None = None  # [clients, rows] the weight of a row if the unit is a person: 1/m for each of its m rows
    persons: Array | None = None  # [clients]
    grams: Array | None = None  # [clients, rows, rows] products of the client's rows, where steps are taken in their space
    unpadded: tuple[Array, Array, Array] | None = None  # if the arrays above are a copy of this client's rows: see `in_line`

    def rows(self, index: Array) -> tuple[Array, Array]:
        return self.features[self.client, index], self.labels[self.client, index]

    def of_rows(self) -> tuple[Any, ...]:
        """What objectives and gradients are computed from."""
        return self.features, self.labels, self.sizes, self.weights, self.persons

    def in_line(self) -> tuple[Array, Array, Array]:
        """All clients' features and labels, one row after the other, and the place of this client's first row; no copies."""
        if self.unpadded is not None:
            return self.unpadded
        rows = self.labels.shape[1]
        return self.features.reshape(-1, self.features.shape[2]), self.labels.reshape(-1), self.client * rows

    @property
    def slots(self) -> Array:
        """The client's public number of units (examples or persons), by which sums over all its rows are divided."""
        return (self.sizes if self.persons is None else self.persons)[self.client]


class GradientNoiseFn(Protocol):
    """Noise that is added to the data gradient of every local step: `(step, shape) -> noise`."""

    def __call__(self, step: Array, shape: tuple[int, ...], /) -> Array: ...


class LocalInfo(NamedTuple):
    """Facts about a local solve that are reported and not kept."""

    steps: Array


def _batches(plan: LocalPlan, examples: Examples, key: Array) -> Callable[[Array], tuple[Array, Array, Array]]:
    """Return the function that gives a step its features, labels and weights."""
    size = examples.sizes[examples.client]
    rows = jnp.arange(examples.labels.shape[1])
    if plan.batch_size == 0:
        own = examples.features[examples.client], examples.labels[examples.client]
        each = 1.0 / size if examples.weights is None else examples.weights[examples.client] / examples.slots
        everything = (*own, jnp.where(rows < size, each, 0.0))
        return lambda step: everything
    # The client's own rows come first, in random order; the padding comes last.
    order = jnp.argsort(jnp.where(rows < size, jax.random.uniform(key, rows.shape), 2.0))
    weights = jnp.full(plan.batch_size, 1.0 / plan.batch_size)

    def batch(step: Array) -> tuple[Array, Array, Array]:
        places = order[(step * plan.batch_size + jnp.arange(plan.batch_size)) % size]
        if examples.weights is None:
            return (*examples.rows(places), weights)
        return (*examples.rows(places), weights * examples.weights[examples.client, places])

    return batch


def _in_blocks(problem: Problem, examples: Examples, weights: Array, x: Array) -> Array:
    """Compute the gradient of all rows, block by block: a block is in the cache when its second product reads it again."""
    (rows,), (features, labels, first) = weights.shape, examples.in_line()
    width = features.shape[1]
    size = min(rows, max(8, BLOCK_BYTES // (width * x.dtype.itemsize)))

    def add(block: Array, gradient: Array) -> Array:
        start = jnp.minimum(block * size, rows - size)  # the last block begins earlier, and its first rows have been counted
        places = start + jnp.arange(size)
        own = jnp.where(places >= block * size, jax.lax.dynamic_slice_in_dim(weights, start, size), 0.0)
        part, classes = (jax.lax.dynamic_slice_in_dim(array, first + start, size) for array in (features, labels))
        return gradient + problem.loss.gradient(x, part, classes, own)

    return jax.lax.fori_loop(0, -(-rows // size), add, jnp.zeros_like(x))


def _one_pass(
    problem: Problem, plan: LocalPlan, examples: Examples, weights: Array, x0: Array
) -> Callable[[Array], Array] | None:
    """Return how the gradient of all rows is computed if every row is read once; None: all rows at once."""
    rows, known = examples.labels.shape[1], problem.loss.native
    if plan.batch_size or rows == 0 or plan.solver != "steps" or jax.default_backend() != "cpu":
        return None
    types = x0.dtype, examples.features.dtype, examples.labels.dtype
    fits = types == (jnp.float32, jnp.float32, jnp.int32) and len(x0) > 1 and (plan.linearised or len(x0) <= MANY_CLASSES)
    if fits and native_kernels() and known is not None and known.name == "softmax" and known.gradient is problem.loss.gradient:
        from fedpdm.native.gradient import softmax_gradient

        clip = known.clip
        return lambda x: softmax_gradient(*examples.in_line(), weights, x, clip)
    in_blocks = plan.linearised and rows >= MANY_ROWS
    return (lambda x: _in_blocks(problem, examples, weights, x)) if in_blocks else None


def _native_serves(problem: Problem, plan: LocalPlan, key: Array, dtype: Any, *hooks: object) -> bool:
    """Tell whether `fedpdm.native.linear` knows this local problem and is faster on this machine."""
    known = problem.loss.native
    return (
        known is not None
        and known.gradient is problem.loss.gradient
        and 0 < plan.batch_size <= SMALL_BATCH
        and plan.solver == "steps"
        and not plan.linearised
        and (problem.penalty_by == "prox" or problem.penalty.lasso is not None)
        and all(hook is None for hook in hooks)
        and dtype == jnp.float32
        and str(jax.random.key_impl(key)) == "threefry2x32"
        and jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
        and jax.default_backend() == "cpu"
        and native_kernels()
    )


def solve(
    problem: Problem,
    plan: LocalPlan,
    examples: Examples,
    x0: Array,
    linear_term: Array | float,
    weight: Array | float,
    step_size: Array,
    key: Array,
    gradient_noise: GradientNoiseFn | None = None,
    support: Array | None = None,
    metric: Array | None = None,
) -> tuple[Array, LocalInfo]:
    r"""Work on $\min_x f_i(x) + \langle v, x\rangle + \frac w2 \|x - x_0\|^2$ by gradient steps from $x_0$.

    Each step is $x \leftarrow x - \eta\,(\nabla f_i(x; \text{batch}) + v + w (x - x_0))$. The batches of one round are
    disjoint as long as `steps * batch_size` does not exceed the client's size; after that the same order is used again.

    Parameters
    ----------
    problem, plan, examples
        The objective, how it is solved, and the client's rows.
    x0, linear_term, weight : Array
        The global model, v and w.
    step_size : Array
        The eta of this round.
    key : Array
        The random key of the batches.
    gradient_noise : callable, optional
        Noise for the data gradient of every step.
    support : Array, optional
        The coordinates that the steps may move.
    metric : Array, optional
        M: the proximal term is $\frac w2 \langle x - x_0, (x - x_0) M\rangle$. It needs plan.solver = "newton".

    Returns
    -------
    Array, LocalInfo
        The last point, and the number of steps.
    """
    if _native_serves(problem, plan, key, x0.dtype, gradient_noise, support, examples.weights):
        return _solve_natively(problem, plan, examples, x0, linear_term, weight, step_size, key)
    batch_of = _batches(plan, examples, key)
    if examples.grams is not None and serves(problem, plan, gradient_noise, support, metric):
        gram, rows = examples.grams[examples.client], batch_of(jnp.int32(0))
        x = steps_in_dual_space(problem, plan, rows, gram, x0, linear_term, weight, step_size)
        return x, LocalInfo(jnp.int32(plan.steps))
    local = _LocalProblem(problem, plan, batch_of, x0, linear_term, weight, gradient_noise, support, metric)
    if plan.batch_size == 0:
        local = local._replace(one_pass=_one_pass(problem, plan, examples, batch_of(jnp.int32(0))[2], x0))
    if plan.linearised:
        slope = local.on_support(local.smooth_gradient(x0, jnp.int32(0)) + linear_term)
        move = lambda _, x: x - step_size * (slope + weight * (x - x0))  # noqa: E731
        return jax.lax.fori_loop(0, plan.steps, move, x0), LocalInfo(jnp.int32(plan.steps))
    if plan.solver == "newton":
        x, taken = newton(local.value, lambda x: local.direction(x, jnp.int32(0)), x0, plan.steps, plan.tolerance)
        return x, LocalInfo(taken)
    return _gradient_steps(local, step_size)


class _LocalProblem(NamedTuple):
    """The local problem of `solve`, with its gradients; the arguments are those of `solve`."""

    problem: Problem
    plan: LocalPlan
    batch_of: Callable[[Array], tuple[Array, Array, Array]]
    x0: Array
    linear_term: Array | float
    weight: Array | float
    gradient_noise: GradientNoiseFn | None
    support: Array | None
    metric: Array | None
    one_pass: Callable[[Array], Array] | None = None  # the gradient of all rows, if each of them is read once

    def data_gradient(self, x: Array, step: Array) -> Array:
        gradient = self.one_pass(x) if self.one_pass else self.problem.loss.gradient(x, *self.batch_of(step))
        if self.plan.batch_clip:
            norm = jnp.linalg.norm(gradient)
            cut = gradient * jnp.minimum(1.0, self.plan.batch_clip / (norm + 1e-30))
            gradient = jnp.where(jnp.isfinite(norm), cut, 0.0)  # 0 * inf would be NaN
        return gradient if self.gradient_noise is None else gradient + self.gradient_noise(step, x.shape)

    def smooth_gradient(self, x: Array, step: Array) -> Array:
        gradient = self.data_gradient(x, step)
        if self.problem.penalty_by == "subgradient":
            gradient = gradient + jax.grad(self.problem.penalty.value)(x)
        return gradient + self.problem.beta * concave_gradient(x) if self.problem.beta else gradient

    def on_support(self, direction: Array) -> Array:
        return direction if self.support is None else jnp.where(self.support, direction, 0.0)

    def pull(self, x: Array) -> Array:
        return self.weight * (x - self.x0 if self.metric is None else (x - self.x0) @ self.metric)

    def direction(self, x: Array, step: Array) -> Array:
        return self.on_support(self.smooth_gradient(x, step) + self.linear_term + self.pull(x))

    def value(self, x: Array) -> Array:
        """The objective on the first batch; without the penalty."""
        features, labels, weights = self.batch_of(jnp.int32(0))
        data = jnp.sum(self.problem.loss.values(x, features, labels) * weights) + self.problem.beta * concave_value(x)
        return data + jnp.sum(self.linear_term * x) + jnp.sum((x - self.x0) * self.pull(x)) / 2


def _gradient_steps(local: _LocalProblem, step_size: Array) -> tuple[Array, LocalInfo]:
    plan = local.plan

    def until_tolerance(step: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, taken, active = carry
        d = local.direction(x, step)
        return jnp.where(active, x - step_size * d, x), taken + active, active & ~(jnp.sum(d**2) <= plan.tolerance)

    if plan.tolerance:
        # All steps are computed, and those after the end change nothing: the time of an answer would reveal an early exit.
        start = (local.x0, jnp.int32(0), jnp.bool_(True))
        x, steps, _ = jax.lax.fori_loop(0, plan.steps, until_tolerance, start)
    else:
        x = jax.lax.fori_loop(0, plan.steps, lambda step, x: x - step_size * local.direction(x, step), local.x0)
        steps = jnp.int32(plan.steps)
    return x, LocalInfo(steps)


def _solve_natively(
    problem: Problem,
    plan: LocalPlan,
    examples: Examples,
    x0: Array,
    linear_term: Array | float,
    weight: Array | float,
    step_size: Array,
    key: Array,
) -> tuple[Array, LocalInfo]:
    """Do the work of `solve` with a kernel of machine code."""
    from fedpdm.native.linear import Numbers, linear_steps

    known = problem.loss.native
    assert known is not None
    lasso = problem.penalty.lasso if problem.penalty_by == "subgradient" else 0.0
    assert lasso is not None
    numbers = Numbers(weight, step_size, problem.beta, known.clip, plan.batch_clip, plan.tolerance, lasso)
    x, steps = linear_steps(
        (known.name, plan.steps, plan.batch_size),
        numbers,
        (examples.features, examples.labels, examples.sizes),
        examples.client,
        jax.random.key_data(key),
        x0,
        jnp.broadcast_to(jnp.asarray(linear_term, x0.dtype), x0.shape),
    )
    return x, LocalInfo(steps)
