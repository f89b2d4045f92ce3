"""Newton steps of the server on the whole objective, between rounds: for runs without privacy.

FedPDM needs hundreds of rounds where hundreds of clients have a few rows each: each of them knows the curvature of a few
directions only. The sum of all curvatures knows them all. So every client sends its gradient and its curvature at x0, a
vector and a matrix, and the server minimises the quadratic model of the objective plus the penalty. FedPDM then goes on from
the new x0, with every client's dual at its gradient there: where x0 is the optimum, this is its fixed point.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.compression.messages import LARGEST
from fedpdm.data.federation import Federation
from fedpdm.data.ragged import real_rows
from fedpdm.problem.inference import MOST_WORK
from fedpdm.problem.losses import Loss
from fedpdm.problem.metric import composite_minimum
from fedpdm.problem.objective import Problem

__all__ = ["NewtonSteps", "newton_steps", "affordable"]

MOST_COORDINATES = 1000  # of a model: its curvature has the square of them
MOST_STEPS, INNER_STEPS = 20, 5000
CLOSE = 1e-10  # of the objective: a step that promises less is not taken
ENOUGH = 1e-4  # of the decrease that a step promises (Armijo)
DAMPING, MOST_DAMPING = 1e-4, 1e4  # shares of the mean curvature: of the first step, and of the last one that is tried
BLOCK = 2**22  # numbers of one kind in memory at a time


class NewtonSteps(NamedTuple):
    """What the steps found, and what they cost.

    Attributes
    ----------
    x0 : ndarray
        The model.
    gradients : ndarray
        [clients, *model] every client's gradient at it.
    steps : int
        Steps that lowered the objective.
    reached : bool
        Whether a further step would promise next to nothing. If not, rounds are better off where they were.
    curvatures, values : int
        How often all clients sent a gradient and a curvature, and how often only their value of the objective.
    """

    x0: np.ndarray
    gradients: np.ndarray
    steps: int
    reached: bool
    curvatures: int
    values: int

    def bytes_of_client(self) -> tuple[int, int]:
        """Bytes that every client sent and received, in 32 bits per number; a curvature is symmetric."""
        size = self.x0.size
        whole = 1 + size + size * (size + 1) // 2
        return 4 * (self.curvatures * whole + self.values), 4 * size * (self.curvatures + self.values)


def affordable(federation: Federation, size: int) -> bool:
    """Whether a curvature of so many coordinates is small enough to be sent and summed, on one host.

    Parameters
    ----------
    federation : Federation
        The clients' rows.
    size : int
        Coordinates of the model.

    Returns
    -------
    bool
        True up to 1,000 coordinates, and 2e10 products.
    """
    return jax.process_count() == 1 and size <= MOST_COORDINATES and int(federation.sizes.sum()) * size**2 <= MOST_WORK


def newton_steps(problem: Problem, federation: Federation, shares: np.ndarray | None, x0: np.ndarray) -> NewtonSteps:
    """Take Newton steps from x0 until one promises next to nothing.

    A step minimises the quadratic model plus the penalty plus a damping term (Levenberg, Marquardt). The damping is ten times
    larger after a step that did not lower the objective, and ten times smaller after one that did.

    Parameters
    ----------
    problem : Problem
        A convex problem of a linear model.
    federation : Federation
        The clients' rows.
    shares : ndarray or None
        [clients] shares of the objective; None: 1/N each.
    x0 : ndarray
        The model to begin with.

    Returns
    -------
    NewtonSteps
        The model, the gradients there, and the cost.
    """
    sums = _Sums(problem, federation, shares)
    with jax.enable_x64(True):
        x, damping, taken, curvatures, values = x0.astype(np.float64), DAMPING, 0, 0, 0
        there = None
        while curvatures < MOST_STEPS:
            there, damping, tried = _step(sums, problem, x, damping)
            curvatures, values = curvatures + 1, values + tried
            if there is None or there is x:
                break
            x, taken = there, taken + 1
        single = x.astype(np.float32)
        gradients = sums.of_clients(single.astype(np.float64)).astype(np.float32)
    return NewtonSteps(single, gradients, taken, there is x, curvatures, values)


def _step(sums: "_Sums", problem: Problem, x: np.ndarray, damping: float) -> tuple[np.ndarray | None, float, int]:
    """One step: the next point, x itself if nothing is left to gain, None if no step helps; the next damping; points tried."""
    value, gradient, curvature = sums.quadratic(x)
    penalty = lambda point: float(problem.penalty.value(jnp.asarray(point)))  # noqa: E731
    before, tried = value + penalty(x), 0
    while damping <= MOST_DAMPING:
        there = np.asarray(_minimum(problem, x, gradient, curvature, damping))
        if not np.abs(there).max() <= LARGEST:  # also NaN: a direction without curvature
            damping *= 10
            continue
        promise = float(np.sum(gradient * (there - x))) + penalty(there) - penalty(x)
        if not -promise > CLOSE * abs(before):
            return x, damping, tried
        tried += 1
        if sums.value(there) + penalty(there) <= before + ENOUGH * promise:
            return there, damping / 10, tried
        damping *= 10
    return None, damping, tried


@partial(jax.jit, static_argnums=0)
def _minimum(problem: Problem, x: Array, gradient: Array, curvature: Array, damping: Array) -> Array:
    """The minimiser of the damped quadratic model at x plus the penalty."""
    size = x.size
    damped = curvature + damping * jnp.trace(curvature) / size * jnp.eye(size)

    def slope(z: Array) -> Array:
        return gradient + (damped @ (z - x).ravel()).reshape(x.shape)

    return composite_minimum(problem.penalty, slope, jnp.linalg.norm(damped, 2), x, most=INNER_STEPS)


@partial(jax.jit, static_argnums=0)
def _of_scores(loss: Loss, scores: Array, labels: Array) -> tuple[Array, Array, Array]:
    """[rows], [rows, m] and [rows, m, m]: value, slope and curvature of every row's loss in its scores."""

    def value(s: Array, y: Array) -> Array:
        return loss.values(jnp.eye(s.size, dtype=s.dtype), s[None], y[None])[0]

    return jax.vmap(lambda s, y: (value(s, y), jax.grad(value)(s, y), jax.hessian(value)(s, y)))(scores, labels)


class _Sums:
    """Sums over all clients' rows, in float64, block by block."""

    def __init__(self, problem: Problem, federation: Federation, shares: np.ndarray | None) -> None:
        sizes, self.loss = federation.sizes, problem.loss
        self.rows = real_rows(federation.features, sizes)
        self.labels = real_rows(federation.labels, sizes)
        self.clients = np.repeat(np.arange(len(sizes)), sizes)
        counts = 1.0 if federation.weights is None else real_rows(federation.weights, sizes).astype(np.float64)
        self.own = counts / federation.slots.astype(np.float64)[self.clients]  # what a row counts in its client's mean
        each = np.ones(len(sizes)) if shares is None else shares.astype(np.float64)
        self.weights = self.own * (each / each.sum())[self.clients]

    def _blocks(self, x: np.ndarray) -> Iterator[tuple[slice, np.ndarray, list[np.ndarray]]]:
        """Parts of the rows, with value, slope and curvature of every row's loss."""
        length = max(1, BLOCK // max(len(x) ** 2, x.shape[1]))
        for start in range(0, len(self.labels), length):
            part = slice(start, start + length)
            rows = self.rows[part].astype(np.float64)
            yield part, rows, [np.asarray(found) for found in _of_scores(self.loss, rows @ x.T, self.labels[part])]

    def value(self, x: np.ndarray) -> float:
        return float(sum(self.weights[part] @ values for part, _, (values, _, _) in self._blocks(x)))

    def quadratic(self, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Value, gradient [m, n] and curvature [m n, m n] of the mean loss."""
        m, n = x.shape
        value, gradient, curvature = 0.0, np.zeros((m, n)), np.zeros((m, n, m, n))
        for part, rows, (values, slopes, curves) in self._blocks(x):
            weights, single = self.weights[part], self.rows[part]
            value += float(weights @ values)
            gradient += (weights[:, None] * slopes).T @ rows
            counts = (weights[:, None, None] * curves).astype(np.float32)  # enough for the direction of a step
            for k in range(m):
                for other in range(k, m):
                    block = (single * counts[:, k, other, None]).T @ single
                    curvature[k, :, other] += block
                    if other > k:
                        curvature[other, :, k] += block.T
        return value, gradient, curvature.reshape(m * n, m * n)

    def of_clients(self, x: np.ndarray) -> np.ndarray:
        """[clients, m, n] gradients."""
        found = np.zeros((self.clients.max() + 1, *x.shape))
        for part, rows, (_, slopes, _) in self._blocks(x):
            weighted = slopes * self.own[part][:, None]
            owners, starts = np.unique(self.clients[part], return_index=True)
            for client, own in zip(owners, np.split(np.arange(len(rows)), starts[1:]), strict=True):
                found[client] += weighted[own].T @ rows[own]
        return found
