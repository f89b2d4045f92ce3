"""Local solves to a tolerance: Newton's method with conjugate gradients, for linear models of any number of classes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.sparse.linalg import cg

__all__ = ["newton"]

INNER_STEPS = 100  # of conjugate gradients, per Newton step
HALVINGS = 12  # of a step that does not lower the value
ENOUGH = 1e-4  # of the decrease that the slope promises (Armijo)
ROUNDING = 1e-6  # relative error of a value in float32: below it two values cannot be told apart
SMALL = 1e-10  # squared norm of a gradient from which on rounding may keep a step from helping


def newton(
    value: Callable[[Array], Array], gradient: Callable[[Array], Array], start: Array, steps: int, tolerance: float
) -> tuple[Array, Array]:
    r"""Minimise a strongly convex function by damped Newton steps, from `start`.

    A step solves $\nabla^2 \phi(x)\,p = -\nabla\phi(x)$ by conjugate gradients, to a share of
    $\min(0.1, \sqrt{\|\nabla\phi(x)\|})$ of the right side, so no matrix is formed: a product with the Hessian costs about as
    much as a gradient. The step is halved until the value falls enough (Armijo).

    Parameters
    ----------
    value, gradient : callable
        The function and its gradient, of arrays like `start`.
    start : Array
        The first point.
    steps : int
        The most Newton steps.
    tolerance : float
        Stop where the squared norm of the gradient is at most this, or where it is at most 1e-10 and a step did not halve it.

    Returns
    -------
    Array, Array
        The last point, and the number of steps.
    """

    def go_on(carry: tuple[Array, Array, Array, Array]) -> Array:
        _, slope, before, step = carry
        left = jnp.sum(slope**2)
        stalled = (left <= SMALL) & (left > before / 2)
        return (step < steps) & (left > tolerance) & ~stalled

    def body(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        x, slope, _, step = carry
        _, curve = jax.linearize(gradient, x)
        share: Any = jnp.minimum(0.1, jnp.sqrt(jnp.linalg.norm(slope)))  # declared as float, but an array works
        direction, _ = cg(curve, -slope, tol=share, maxiter=INNER_STEPS)
        x = x + _length(value, x, direction, jnp.sum(slope * direction)) * direction
        return x, gradient(x), jnp.sum(slope**2), step + 1

    first = gradient(start)
    x, _, _, taken = jax.lax.while_loop(go_on, body, (start, first, jnp.full((), jnp.inf, first.dtype), jnp.int32(0)))
    return x, taken


def _length(value: Callable[[Array], Array], x: Array, direction: Array, promise: Array) -> Array:
    """Halve the step 1 until the value falls by a share of what the slope promises, up to rounding."""
    before = value(x)
    room = ROUNDING * (1 + jnp.abs(before))

    def too_long(carry: tuple[Array, Array]) -> Array:
        length, halvings = carry
        falls = value(x + length * direction) <= before + ENOUGH * length * promise + room
        return ~falls & (halvings < HALVINGS)

    def halve(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return carry[0] / 2, carry[1] + 1

    return jax.lax.while_loop(too_long, halve, (jnp.asarray(1.0, x.dtype), jnp.int32(0)))[0]
