"""Penalties h(x) with their prox: the part of the objective that makes the model sparse.

A penalty is a NamedTuple of pure functions, made by a factory with keyword hyper-parameters;
`fedpdm.choices.PENALTIES` lists all of them by name. The strength is not scaled here: a caller that scales h
(by 1 / clients, say) scales `strength`.

Every prox is a global minimiser for every step, also if the penalty is so concave that the objective has
several local ones. If two points minimise it equally well, the prox returns the one of smaller magnitude.
NaN stays NaN.

Notation: s is the step, λ the strength, γ the concavity, soft(x, t) = sign(x) max(|x| - t, 0).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fedpdm.errors import ConfigError

__all__ = ["Penalty", "none", "l1", "elastic_net", "l2", "mcp", "scad", "l0", "group_lasso", "box"]

Step = float | Array


class Penalty(NamedTuple):
    """A penalty h as pure functions, all of them fit for `jit` and `vmap`.

    Attributes
    ----------
    name
        Its name in `fedpdm.choices.PENALTIES`.
    value
        ``value(x)`` is the scalar h(x), for x of any shape ([classes, features] in practice).
    prox
        ``prox(x, step)`` is argmin_u h(u) + ||u - x||² / (2 step), for step > 0. At step = 0 it is x, or the
        nearest point of the box. The step may be traced.
    subdifferential_distance
        ``subdifferential_distance(x, gradient)`` is the distance of -gradient to the subdifferential of h
        at x (Fréchet's and the limiting one agree for all penalties here), with the shape of x, or one number
        per group. Where gradient is that of a smooth f, x is critical for f + h exactly if all of them are 0.
    convex
        Whether h is convex.
    weak_convexity
        The smallest c >= 0 for which h + (c/2) ||.||² is convex: 0 if h is, inf if there is none. The prox is
        single-valued for step < 1/c.
    lasso
        λ if h is λ ||x||_1, which `fedpdm.native.linear` knows; None: h is another one.

    Examples
    --------
    >>> penalty = l1(strength=0.5)
    >>> x = jnp.array([3.0, -0.5, 0.0])
    >>> print(penalty.value(x), penalty.prox(x, 2.0))
    1.75 [2. 0. 0.]
    """

    name: str
    value: Callable[[Array], Array]
    prox: Callable[[Array, Step], Array]
    subdifferential_distance: Callable[[Array, Array], Array]
    convex: bool
    weak_convexity: float
    lasso: float | None = None


def none() -> Penalty:
    """No penalty, h = 0: prox(x) = argmin_u ||u - x||² / (2s) = x.

    Returns
    -------
    Penalty
        The penalty.
    """
    return box(-math.inf, math.inf)._replace(name="none")


def l1(strength: float) -> Penalty:
    """Lasso, h(x) = λ sum |x_i|: prox(x) = argmin_u λ ||u||_1 + ||u - x||² / (2s) = soft(x, s λ).

    Parameters
    ----------
    strength : float
        λ, at least 0.

    Returns
    -------
    Penalty
        The penalty.

    References
    ----------
    Robert Tibshirani: Regression shrinkage and selection via the lasso (1996).
    """
    return elastic_net(strength, mix=1.0)._replace(name="l1", lasso=_strength(strength))


def l2(strength: float) -> Penalty:
    """Ridge with the factor 1/2, h(x) = (λ/2) ||x||².

    prox(x) = argmin_u (λ/2) ||u||² + ||u - x||² / (2s) = x / (1 + s λ).

    Parameters
    ----------
    strength : float
        λ, at least 0.

    Returns
    -------
    Penalty
        The penalty.
    """
    return elastic_net(strength, mix=0.0)._replace(name="l2")


def elastic_net(strength: float, mix: float = 0.5) -> Penalty:
    """Elastic net, h(x) = λ (mix ||x||_1 + (1 - mix)/2 ||x||²), with mix in [0, 1].

    prox(x) = argmin_u h(u) + ||u - x||² / (2s) = soft(x, s λ mix) / (1 + s λ (1 - mix)).

    Parameters
    ----------
    strength : float
        λ, at least 0.
    mix : float
        Share of L1, in [0, 1].

    Returns
    -------
    Penalty
        The penalty.

    References
    ----------
    Hui Zou, Trevor Hastie: Regularization and variable selection via the elastic net (2005).
    """
    strength = _strength(strength)
    if not 0.0 <= mix <= 1.0:
        raise ConfigError(f"Expected mix={mix} in [0, 1]; use 1 for the lasso, 0 for the ridge.")
    absolute, square = strength * float(mix), strength * (1.0 - float(mix))

    def value(x: Array) -> Array:
        return absolute * jnp.sum(jnp.abs(x)) + square / 2 * jnp.sum(jnp.square(x))

    def prox(x: Array, step: Step) -> Array:
        soft = x - jnp.clip(x, -step * absolute, step * absolute)
        return soft / (1 + step * square)

    def subdifferential_distance(x: Array, gradient: Array) -> Array:
        return _distance(x, gradient + square * x, slope=absolute, radius=absolute)

    return Penalty("elastic-net", value, prox, subdifferential_distance, True, 0.0)


def mcp(strength: float, concavity: float = 3.0) -> Penalty:
    """Minimax concave penalty (Zhang, 2010), with γ > 0; large γ is close to the lasso.

    h(x) = sum of λ|x_i| - x_i² / (2γ) where |x_i| <= γλ, of γλ²/2 beyond.

    prox(x) = argmin_u h(u) + ||u - x||² / (2s), element by element:

    - s < γ (strongly convex): soft(x, sλ) / (1 - s/γ) where |x| <= γλ, x beyond: firm thresholding;
    - s >= γ (concave up to γλ, so that only 0 and x can be minimisers): 0 where |x| <= λ sqrt(sγ), x beyond.
      At equality both are minimisers, and 0 is returned.

    Parameters
    ----------
    strength : float
        λ, at least 0.
    concavity : float
        γ, above 0.

    Returns
    -------
    Penalty
        The penalty.

    References
    ----------
    Cun-Hui Zhang: Nearly unbiased variable selection under minimax concave penalty (2010).
    """
    strength = _strength(strength)
    concavity = _concavity(concavity, limit=0, usual=3.0)

    def value(x: Array) -> Array:
        size = jnp.minimum(jnp.abs(x), concavity * strength)
        return jnp.sum(strength * size - jnp.square(size) / (2 * concavity))

    def prox(x: Array, step: Step) -> Array:
        size = jnp.abs(x)
        curvature = 1 - step / concavity  # of s times the objective, up to γλ
        # The quotient passes |x| exactly at γλ: the minimum joins the two pieces, without a jump by rounding.
        quotient = jnp.maximum(size - step * strength, 0) / jnp.where(curvature > 0, curvature, 1)
        firm = jnp.minimum(size, quotient)
        hard = jnp.where(size <= strength * jnp.sqrt(step * concavity), 0, size)
        return jnp.sign(x) * jnp.where(curvature > 0, firm, hard)

    def subdifferential_distance(x: Array, gradient: Array) -> Array:
        slope = jnp.maximum(strength - jnp.abs(x) / concavity, 0)
        return _distance(x, gradient, slope, radius=strength)

    weak_convexity = 1 / concavity if strength > 0 else 0.0
    return Penalty("mcp", value, prox, subdifferential_distance, weak_convexity == 0, weak_convexity)


def scad(strength: float, concavity: float = 3.7) -> Penalty:
    """Smoothly clipped absolute deviation (Fan and Li, 2001), with γ > 2; large γ is close to the lasso.

    h(x) = sum of λ|x_i| where |x_i| <= λ, of (2γλ|x_i| - x_i² - λ²) / (2(γ - 1)) up to γλ, of λ²(γ + 1)/2
    beyond.

    prox(x) = argmin_u h(u) + ||u - x||² / (2s), element by element:

    - s < γ - 1 (strongly convex): soft(x, sλ) where |x| <= (1 + s)λ, x beyond γλ, and between the two
      ((γ - 1) x - sign(x) sγλ) / (γ - 1 - s);
    - s >= γ - 1 (concave between λ and γλ, so that no minimiser is there): soft(x, sλ) where |x| <= λτ, x
      beyond. τ = (γ + 1 + s)/2 if s <= γ + 1 and sqrt(s (γ + 1)) if not: the arithmetic and the geometric
      mean of s and γ + 1. At |x| = λτ both are minimisers, and soft(x, sλ) is returned.

    Parameters
    ----------
    strength : float
        λ, at least 0.
    concavity : float
        γ, above 2.

    Returns
    -------
    Penalty
        The penalty.

    References
    ----------
    Jianqing Fan, Runze Li: Variable selection via nonconcave penalized likelihood and its oracle properties (2001).
    """
    strength = _strength(strength)
    concavity = _concavity(concavity, limit=2, usual=3.7)

    def bend(x: Array) -> Array:  # the part of |x| between λ and γλ, where h bends
        return jnp.clip(jnp.abs(x) - strength, 0, (concavity - 1) * strength)

    def value(x: Array) -> Array:
        size = jnp.minimum(jnp.abs(x), concavity * strength)
        return jnp.sum(strength * size - jnp.square(bend(x)) / (2 * (concavity - 1)))

    def prox(x: Array, step: Step) -> Array:
        size = jnp.abs(x)
        ratio = step / (concavity - 1)
        curvature = 1 - ratio  # of s times the objective, between λ and γλ
        soft = jnp.maximum(size - step * strength, 0)
        # The quotient passes soft exactly at (1 + s)λ and |x| exactly at γλ.
        quotient = (size - ratio * concavity * strength) / jnp.where(curvature > 0, curvature, 1)
        firm = jnp.minimum(size, jnp.maximum(soft, quotient))
        limit = concavity + 1
        threshold = jnp.where(step <= limit, (limit + step) / 2, jnp.sqrt(step * limit))
        jump = jnp.where(size <= strength * threshold, soft, size)
        return jnp.sign(x) * jnp.where(curvature > 0, firm, jump)

    def subdifferential_distance(x: Array, gradient: Array) -> Array:
        slope = strength - bend(x) / (concavity - 1)
        return _distance(x, gradient, slope, radius=strength)

    weak_convexity = 1 / (concavity - 1) if strength > 0 else 0.0
    return Penalty("scad", value, prox, subdifferential_distance, weak_convexity == 0, weak_convexity)


def l0(strength: float) -> Penalty:
    """Number of non-zeros, h(x) = λ ||x||_0.

    prox(x) = argmin_u λ ||u||_0 + ||u - x||² / (2s) = 0 where |x| <= sqrt(2sλ), x beyond: hard thresholding.
    At equality both are minimisers, and 0 is returned.

    The subdifferential at 0 is the whole line, so every gradient is at distance 0 from it.

    Parameters
    ----------
    strength : float
        λ, at least 0.

    Returns
    -------
    Penalty
        The penalty.
    """
    strength = _strength(strength)

    def value(x: Array) -> Array:
        return strength * jnp.count_nonzero(x)

    def prox(x: Array, step: Step) -> Array:
        return jnp.where(jnp.abs(x) <= jnp.sqrt(2 * step * strength), 0, x)

    def subdifferential_distance(x: Array, gradient: Array) -> Array:
        return _distance(x, gradient, slope=0.0, radius=math.inf if strength > 0 else 0.0)

    weak_convexity = math.inf if strength > 0 else 0.0
    return Penalty("l0", value, prox, subdifferential_distance, weak_convexity == 0, weak_convexity)


def group_lasso(strength: float, groups: ArrayLike | None = None) -> Penalty:
    """Group lasso, h(X) = λ sum_j ||X_j||, X_j the column of feature j in a [classes, features] matrix.

    prox(X)_j = argmin_U λ ||U|| + ||U - X_j||² / (2s) = max(1 - sλ / ||X_j||, 0) X_j: a feature is kept by
    all classes or dropped by all.

    The norms are not scaled by sqrt(group size). Groups run along the first axis; in an x of one dimension each coordinate
    is its own group, which is the lasso. With `groups`, a whole number per coordinate (in the order of `x.ravel()`), X_j is
    the coordinates of number j; those of number -1 have no penalty.

    Parameters
    ----------
    strength : float
        λ, at least 0.
    groups : array-like, optional
        A whole number per coordinate; -1: no penalty.

    Returns
    -------
    Penalty
        The penalty.

    References
    ----------
    Ming Yuan, Yi Lin: Model selection and estimation in regression with grouped variables (2006).
    """
    strength = _strength(strength)
    if groups is None:
        strengths, norms, spread = strength, _column_norms, lambda each, x: each
    else:
        index = np.asarray(groups).ravel()
        if index.dtype.kind not in "iu" or index.min() < -1:
            raise ConfigError("Expected groups of whole numbers from 0, and -1 for coordinates that are left alone.")
        count = int(index.max()) + 1
        index = np.where(index < 0, count, index)  # one more group, without a penalty
        strengths = jnp.full(count + 1, strength).at[count].set(0.0)
        norms = lambda x: jnp.sqrt(jax.ops.segment_sum(jnp.square(x.ravel()), index, count + 1))  # noqa: E731
        spread = lambda each, x: each[index].reshape(x.shape)  # noqa: E731

    def value(x: Array) -> Array:
        return jnp.sum(strengths * norms(x))

    def prox(x: Array, step: Step) -> Array:
        size = norms(x)
        factor = jnp.where(size <= step * strengths, 0, 1 - step * strengths / jnp.where(size == 0, 1, size))
        return x * spread(factor, x)

    def subdifferential_distance(x: Array, gradient: Array) -> Array:
        # At a zero group: the ball of radius λ. Elsewhere: the point λ X_j / ||X_j||.
        size = norms(x)
        outside_ball = jnp.maximum(norms(gradient) - strengths, 0)
        to_point = norms(gradient + x * spread(strengths / jnp.where(size == 0, 1, size), x))
        return jnp.where(size == 0, outside_ball, to_point)

    return Penalty("group-lasso", value, prox, subdifferential_distance, True, 0.0)


def _column_norms(x: Array) -> Array:
    return jnp.abs(x) if jnp.ndim(x) < 2 else jnp.linalg.norm(x, axis=0)


def box(lower: float, upper: float) -> Penalty:
    """Bounds, h(x) = 0 if lower <= x_i <= upper for all i, infinity if not. Bounds may be infinite.

    prox(x) = argmin over lower <= u <= upper of ||u - x||² = min(max(x, lower), upper), for every step.

    The subdifferential is the normal cone: 0 inside, a half-line at a bound. It is empty outside of the box,
    where the distance is infinite.

    Parameters
    ----------
    lower, upper : float
        The bounds, lower < upper; they may be infinite.

    Returns
    -------
    Penalty
        The penalty.
    """
    lower, upper = float(lower), float(upper)
    if not (lower <= upper and lower < math.inf and upper > -math.inf):
        raise ConfigError(f"Expected lower={lower} <= upper={upper}, a number between; swap or widen.")

    def inside(x: Array) -> Array:
        return (x >= lower) & (x <= upper)

    def value(x: Array) -> Array:
        return jnp.where(jnp.all(inside(x)), 0.0, jnp.inf)

    def prox(x: Array, step: Step) -> Array:
        return jnp.clip(x, lower, upper)

    def subdifferential_distance(x: Array, gradient: Array) -> Array:
        upwards = jnp.where(x < upper, jnp.maximum(-gradient, 0), 0)
        downwards = jnp.where(x > lower, jnp.maximum(gradient, 0), 0)
        return jnp.where(inside(x), upwards + downwards, jnp.inf)

    return Penalty("box", value, prox, subdifferential_distance, True, 0.0)


def scaled(penalty: Penalty, factor: float) -> Penalty:
    """The penalty `factor * h`, for factor > 0: exact for every penalty, the concave ones included."""
    return penalty._replace(
        value=lambda x: factor * penalty.value(x),
        prox=lambda x, step: penalty.prox(x, factor * step),
        subdifferential_distance=lambda x, g: factor * penalty.subdifferential_distance(x, g / factor),
        weak_convexity=factor * penalty.weak_convexity,
        lasso=None if penalty.lasso is None else factor * penalty.lasso,
    )


def _distance(x: Array, gradient: Array, slope: Step, radius: float) -> Array:
    """Distance of -gradient to {slope sign(x)} where x != 0, to [-radius, radius] where x = 0."""
    outside_interval = jnp.maximum(jnp.abs(gradient) - radius, 0)
    return jnp.where(x == 0, outside_interval, jnp.abs(gradient + slope * jnp.sign(x)))


def _strength(strength: float) -> float:
    if not (math.isfinite(strength) and strength >= 0):
        raise ConfigError(f"Expected strength={strength} >= 0 and finite; use 0 for no penalty.")
    return float(strength)


def _concavity(concavity: float, *, limit: int, usual: float) -> float:
    if not (math.isfinite(concavity) and concavity > limit):
        raise ConfigError(f"Expected concavity={concavity} > {limit} and finite; {usual} is usual.")
    return float(concavity)
