"""Smooth losses of linear models, with closed-form gradients and the constants that privacy and theory need."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["Loss", "logistic", "softmax", "LOSSES"]


class ValuesFn(Protocol):
    """Loss of each example: `(model [m, n], features [b, n], labels [b]) -> [b]`."""

    def __call__(self, model: Array, features: Array, labels: Array, /) -> Array: ...


class GradientFn(Protocol):
    """Weighted sum of the examples' gradients: `sum_j weights_j grad loss_j(model)`, of the model's shape."""

    def __call__(self, model: Array, features: Array, labels: Array, weights: Array, /) -> Array: ...


class Loss(NamedTuple):
    """One loss of a linear model `X` in R^{m x n}: a row of weights per class.

    Attributes
    ----------
    values, gradient
        See `ValuesFn` and `GradientFn`. Means and masks enter through the weights of the gradient.
    scores
        `(model, features) -> [b, m]`; the predicted class is the largest score, ties by the lower class.
    gradient_bound
        `radius -> bound on ||grad loss_j||` for examples with `||a|| <= radius`, whatever the model.
    smoothness
        `radius -> L` such that every example's gradient is L-Lipschitz in the model when `||a|| <= radius`.
    """

    name: str
    values: ValuesFn
    gradient: GradientFn
    scores: Callable[[Array, Array], Array]
    gradient_bound: Callable[[float], float]
    smoothness: Callable[[float], float]


SMALL_BATCH = 64


def _pick(scores: Array, labels: Array) -> Array:
    return jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]


def _linear_scores(model: Array, features: Array) -> Array:
    return features @ model.T


def logistic() -> Loss:
    r"""The paper's loss: $\ln(1 + \exp(-x_k \cdot a))$ with $k$ the true class of the example.

    The gradient touches the row of the true class only: $-\sigma(-x_k \cdot a)\, a$, so its norm is at most
    $\|a\|$ and its curvature at most $\|a\|^2/4$.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> float(logistic().values(jnp.zeros((3, 2)), jnp.ones((1, 2)), jnp.array([1]))[0])  # ln 2
    0.6931471824645996
    """

    def true_class_scores(model: Array, features: Array, labels: Array) -> Array:
        if features.shape[0] <= SMALL_BATCH:  # gathering rows of the model beats m times the multiplications
            return jnp.sum(model[labels] * features, axis=-1)
        return _pick(_linear_scores(model, features), labels)

    def values(model: Array, features: Array, labels: Array) -> Array:
        return jax.nn.softplus(-true_class_scores(model, features, labels))

    def gradient(model: Array, features: Array, labels: Array, weights: Array) -> Array:
        slopes = -jax.nn.sigmoid(-true_class_scores(model, features, labels)) * weights
        return jax.nn.one_hot(labels, model.shape[0], axis=0, dtype=model.dtype) * slopes @ features

    return Loss(
        "logistic",
        values,
        gradient,
        _linear_scores,
        gradient_bound=lambda radius: radius,
        smoothness=lambda radius: radius**2 / 4,
    )


def softmax() -> Loss:
    r"""Softmax cross-entropy: $-\ln\big(e^{x_k \cdot a} / \sum_l e^{x_l \cdot a}\big)$.

    The gradient is $(p - e_k) a^\top$ with $p$ the class probabilities: norm at most $\sqrt 2\,\|a\|$, curvature at
    most $\|a\|^2/2$.
    """

    def values(model: Array, features: Array, labels: Array) -> Array:
        scores = _linear_scores(model, features)
        return jax.nn.logsumexp(scores, axis=1) - _pick(scores, labels)

    def gradient(model: Array, features: Array, labels: Array, weights: Array) -> Array:
        probabilities = jax.nn.softmax(_linear_scores(model, features), axis=1)
        slopes = probabilities - jax.nn.one_hot(labels, model.shape[0], dtype=model.dtype)
        return (slopes * weights[:, None]).T @ features

    return Loss(
        "softmax",
        values,
        gradient,
        _linear_scores,
        gradient_bound=lambda radius: 2**0.5 * radius,
        smoothness=lambda radius: radius**2 / 2,
    )


LOSSES: dict[str, Callable[[], Loss]] = {"logistic": logistic, "softmax": softmax}
