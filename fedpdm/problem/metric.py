"""A quadratic function plus a penalty: the prox in another metric, and the steps of Newton's method."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.problem.penalties import Penalty

__all__ = ["composite_minimum", "prox_in_metric"]

INNER_STEPS, INNER_SHARE = 1000, 1e-7


def prox_in_metric(penalty: Penalty, u: Array, step: float | Array, metric: Array, near: Array) -> Array:
    """Compute the prox of a convex penalty in the metric M: argmin_x h(x) + <x - u, (x - u) M> / (2 step).

    See `composite_minimum`, which starts from `near`.

    Parameters
    ----------
    penalty : Penalty
        A convex penalty.
    u : Array
        The point.
    step : float or Array
        The step, above 0.
    metric : Array
        M, symmetric and positive definite.
    near : Array
        The start of the iteration.

    Returns
    -------
    Array
        The minimiser.

    Examples
    --------
    >>> from fedpdm.problem.penalties import l1
    >>> bent = jnp.array([[2.0, 1.0], [1.0, 1.0]])
    >>> print(prox_in_metric(l1(0.5), jnp.array([[1.0, -1.0]]), 1.0, bent, jnp.zeros((1, 2))).round(3))
    [[0.25 0.  ]]
    """
    return composite_minimum(penalty, lambda z: (z - u) @ metric, jnp.linalg.norm(metric, 2), near, step)


def composite_minimum(
    penalty: Penalty,
    slope: Callable[[Array], Array],
    steepest: Array,
    near: Array,
    step: float | Array = 1.0,
    most: int = INNER_STEPS,
) -> Array:
    """Minimise q(x)/step + h(x) for a convex quadratic q, by accelerated proximal gradient steps with restarts.

    Parameters
    ----------
    penalty : Penalty
        h, convex.
    slope : callable
        The gradient of q.
    steepest : Array
        The largest curvature of q.
    near : Array
        The start.
    step : float or Array
        What q is divided by.
    most : int
        The most steps. It stops where one moves the point by less than 1e-7 of its size.

    Returns
    -------
    Array
        The minimiser. The last operation is the penalty's own prox, so zeros are exact.

    References
    ----------
    Brendan O'Donoghue, Emmanuel Candès: Adaptive restart for accelerated gradient schemes (2015).
    """

    def body(carry: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        x, z, momentum, count, _ = carry
        new = penalty.prox(z - slope(z) / steepest, step / steepest)
        onwards = jnp.sum((z - new) * (new - x)) <= 0  # otherwise the momentum points uphill, and is dropped
        after = jnp.where(onwards, (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2, 1.0)
        ahead = jnp.where(onwards, (momentum - 1) / after, 0.0)
        moved = jnp.sum((new - x) ** 2) > INNER_SHARE**2 * jnp.sum(new**2)
        return new, new + ahead * (new - x), after, count + 1, moved

    def go_on(carry: tuple[Array, Array, Array, Array, Array]) -> Array:
        return carry[4] & (carry[3] < most)

    start = (near, near, jnp.asarray(1.0, near.dtype), jnp.int32(0), jnp.bool_(True))
    return jax.lax.while_loop(go_on, body, start)[0]
