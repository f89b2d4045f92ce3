r"""Losses of a linear model whose label is a number, scaled to [0, 1] by public bounds (`fedpdm.data.schema.Target`).

Every loss is a convex function of one score $s = x \cdot a$. Its slope is a non-decreasing function of the score, so that
cutting the slope to an interval leaves it the gradient of a convex function, as smooth as before: see docs/privacy/proofs.md.
`clip` is a share of the loss's natural bound on that slope; a private run chooses it.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from fedpdm.problem.losses import Loss
from fedpdm.problem.prediction import Link, exponential, identity

__all__ = ["of_one_score", "squared", "huber", "quantile", "poisson"]

ScoreFn = Callable[[Array, Array], Array]


def of_one_score(
    name: str, value: ScoreFn, slope: ScoreFn, steepest: float, curvature: float, link: Link, *metrics: str
) -> Loss:
    """Make the loss of a linear model from its value and slope in the one score.

    Parameters
    ----------
    name : str
        The name.
    value, slope : callable
        `(scores [b], labels [b]) -> [b]`; the slope is cut already.
    steepest, curvature : float
        Bounds on the size of the slope and on how fast it rises.
    link : Link
        From the score to the prediction.
    *metrics : str
        What is measured beside R2, MAE and RMSE.

    Returns
    -------
    Loss
        The loss.
    """

    def values(model: Array, features: Array, labels: Array) -> Array:
        return value((features @ model.T)[:, 0], labels)

    def slopes(scores: Array, labels: Array, weights: Array) -> Array:
        return (slope(scores[0], labels) * weights)[None]

    def gradient(model: Array, features: Array, labels: Array, weights: Array) -> Array:
        return slopes(model @ features.T, labels, weights) @ features

    return Loss(
        name,
        values,
        gradient,
        lambda model, features: features @ model.T,
        gradient_bound=lambda radius: steepest * radius,
        smoothness=lambda radius: curvature * radius**2,
        slopes=slopes,
        target="number",
        link=link,
        metrics=("r2", "mae", "rmse", *metrics),
    )


def squared(clip: float = math.inf) -> Loss:
    r"""Half the squared residual: $\frac12 (x \cdot a - y)^2$. Its minimiser is the conditional mean.

    The slope is the residual, which nothing bounds: its natural bound is 1, the whole range of the label. With a finite `clip`
    the residual is cut to $[-\text{clip}, \text{clip}]$ in the gradient (not in the value): the gradient of a Huber loss,
    convex and $\|a\|^2$-smooth, of norm at most $\text{clip}\,\|a\|$.

    Parameters
    ----------
    clip : float
        Bound on the residual, as a share of the label's range; infinite: no clipping.

    Returns
    -------
    Loss
        The loss.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> squared(clip=0.5).gradient(jnp.ones((1, 1)), jnp.ones((1, 1)), jnp.zeros(1), jnp.ones(1)).tolist()
    [[0.5]]
    """
    return of_one_score(
        "squared", lambda s, y: (s - y) ** 2 / 2, lambda s, y: jnp.clip(s - y, -clip, clip), clip, 1.0, identity
    )


def huber(threshold: float = 0.1, clip: float = 1.0) -> Loss:
    r"""Huber's loss: $r^2/2$ for a residual $|r| \le t$, and $t\,(|r| - t/2)$ beyond. Outliers count linearly.

    The slope is the residual cut to $[-t, t]$, so the gradient's norm is at most $t\,\|a\|$, and it is $\|a\|^2$-smooth.

    Parameters
    ----------
    threshold : float
        t, as a share of the label's range.
    clip : float
        Below 1 the slope is cut to `clip` times t.

    Returns
    -------
    Loss
        The loss.
    """
    steepest = min(clip, 1.0) * threshold

    def value(s: Array, y: Array) -> Array:
        size = jnp.abs(s - y)
        return jnp.where(size <= threshold, size**2 / 2, threshold * (size - threshold / 2))

    return of_one_score("huber", value, lambda s, y: jnp.clip(s - y, -steepest, steepest), steepest, 1.0, identity)


def quantile(level: float = 0.5, smoothing: float = 0.01, clip: float = 1.0) -> Loss:
    r"""The pinball loss of the quantile $\tau$, smoothed: its minimiser is the conditional quantile.

    The pinball loss $\max(-\tau r', (1-\tau) r')$ of $r' = x \cdot a - y$ has a kink, which no bound on curvature allows. Its
    mean over a shift of the residual that is uniform in $[-h, h]$ has the slope $r/2h + \frac12 - \tau$ cut to
    $[-\tau, 1-\tau]$: convex, $\|a\|^2/2h$-smooth, and equal to the pinball loss for $|r| \ge h$. Its gradient has norm at
    most $\max(\tau, 1-\tau)\,\|a\|$.

    Parameters
    ----------
    level : float
        The quantile tau, between 0 and 1.
    smoothing : float
        h, as a share of the label's range.
    clip : float
        Below 1 the slope is cut to `clip` times its interval, which leaves the quantile what it is.

    Returns
    -------
    Loss
        The loss.
    """
    below, above = min(clip, 1.0) * level, min(clip, 1.0) * (1 - level)

    def value(s: Array, y: Array) -> Array:
        r = s - y
        inside = jnp.clip(r, -smoothing, smoothing)
        return (0.5 - level) * r + jnp.abs(r - inside) / 2 + inside**2 / (4 * smoothing) + smoothing / 4

    def slope(s: Array, y: Array) -> Array:
        return jnp.clip((s - y) / (2 * smoothing) + 0.5 - level, -below, above)

    return of_one_score("quantile", value, slope, max(below, above), 1 / (2 * smoothing), identity, "below")


def poisson(clip: float = math.inf) -> Loss:
    r"""Counts with a log link: $e^{x \cdot a} - y\, x \cdot a$, the Poisson likelihood. The mean is $e^{x \cdot a}$.

    The slope $e^{s} - y$ is at least -1, as $y \le 1$, and nothing bounds it above: its natural bound is 1. With a finite
    `clip` it is cut to $[-\text{clip}, \text{clip}]$. Where it is not cut, $e^s \le y + \text{clip}$, so it is
    $(1 + \text{clip})\|a\|^2$-smooth.

    Parameters
    ----------
    clip : float
        Bound on the slope, as a share of the largest count; infinite: no clipping.

    Returns
    -------
    Loss
        The loss.
    """

    def slope(s: Array, y: Array) -> Array:
        return jnp.clip(jnp.exp(s) - jnp.clip(y, 0, 1), -clip, clip)  # the smoothness rests on y <= 1

    return of_one_score("poisson", lambda s, y: jnp.exp(s) - y * s, slope, clip, 1 + clip, exponential, "deviance")
