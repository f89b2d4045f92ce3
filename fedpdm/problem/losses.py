"""Smooth losses of linear models, with closed-form gradients and the constants that privacy and theory need."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.problem.prediction import Link, own_shares, softmax_shares

__all__ = ["Loss", "logistic", "softmax", "restricted", "with_class_weights"]


class ValuesFn(Protocol):
    """Loss of each example: `(model [m, n], features [b, n], labels [b]) -> [b]`."""

    def __call__(self, model: Array, features: Array, labels: Array, /) -> Array: ...


class GradientFn(Protocol):
    """Weighted sum of the examples' gradients: `sum_j weights_j grad loss_j(model)`, of the model's shape."""

    def __call__(self, model: Array, features: Array, labels: Array, weights: Array, /) -> Array: ...


class SlopesFn(Protocol):
    """Weighted derivative of each example's loss in its scores: `(scores [m, b], labels [b], weights [b]) -> [m, b]`.

    Classes come first, as sums over the few classes are then done for many examples at a time.
    """

    def __call__(self, scores: Array, labels: Array, weights: Array, /) -> Array: ...


class Native(NamedTuple):
    """The same gradient in a kernel of machine code, by the kernel's name for it."""

    name: str
    clip: float
    gradient: GradientFn  # a loss with another gradient is another loss


class Loss(NamedTuple):
    """One loss of a linear model `X` in R^{m x n}: a row of weights per class.

    Attributes
    ----------
    values, gradient
        See `ValuesFn` and `GradientFn`. Means and masks enter through the weights of the gradient.
    scores
        `(model, features) -> [b, m]`; the predicted class is the largest score, ties by the lower class.
    gradient_bound
        `radius -> bound on ||grad loss_j||` for examples with `||a|| <= radius`, for every model.
    smoothness
        `radius -> L` such that every example's gradient is L-Lipschitz in the model when `||a|| <= radius`.
    slopes
        See `SlopesFn`: the gradient is `slopes(scores) @ features`. Needed for sparse supports, and for steps in the
        space of the rows.
    initial
        The model to begin with, [rows, columns]; None: [classes, features] small random numbers.
    native
        How the kernels of `fedpdm.native` know this loss; None: they do not.
    target
        "classes", "number" or "time": the kind of a label.
    link
        From scores to predictions: probabilities of the classes, or numbers. None: there are only scores, so a saved model
        cannot be applied by `fedpdm predict` or exported to ONNX.
    metrics
        The names of the built-in metrics (`fedpdm.choices.METRICS`) that fit; empty: all that fit the target.
    """

    name: str
    values: ValuesFn
    gradient: GradientFn
    scores: Callable[[Array, Array], Array]
    gradient_bound: Callable[[float], float]
    smoothness: Callable[[float], float]
    slopes: SlopesFn | None = None
    initial: Callable[[], Array] | None = None
    native: Native | None = None
    target: str = "classes"
    link: Link | None = None
    metrics: tuple[str, ...] = ()


SMALL_BATCH = 64


def _pick(scores: Array, labels: Array) -> Array:
    return jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]


def _linear_scores(model: Array, features: Array) -> Array:
    return features @ model.T


def logistic(clip: float = 1.0) -> Loss:
    r"""The paper's loss: $\ln(1 + \exp(-x_k \cdot a))$ with $k$ the true class of the example.

    The gradient touches the row of the true class only: $-\sigma(-x_k \cdot a)\, a$, so its norm is at most
    $\|a\|$ and its curvature at most $\|a\|^2/4$.

    With `clip` below 1 the slope $\sigma(-x_k \cdot a)$ is cut to `clip` in the gradient (not in the value). A monotone
    function of the score stays monotone when it is cut, so the clipped gradient is still that of a convex function, as
    smooth as before, and its norm is at most $\text{clip}\,\|a\|$.

    Parameters
    ----------
    clip : float
        Bound on the slope of one example, above 0; 1 or more: no clipping.

    Returns
    -------
    Loss
        The loss.

    References
    ----------
    Yiwei Li, Chien-Wei Huang, Shuai Wang, Chong-Yung Chi, Tony Q. S. Quek: Privacy-preserving Federated Primal-Dual Learning
    for Non-convex and Non-smooth Problems with Model Sparsification.

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
        pull = jnp.minimum(jax.nn.sigmoid(-true_class_scores(model, features, labels)), clip)
        return jax.nn.one_hot(labels, model.shape[0], axis=0, dtype=model.dtype) * -(pull * weights) @ features

    def slopes(scores: Array, labels: Array, weights: Array) -> Array:
        pull = jnp.minimum(jax.nn.sigmoid(-_pick(scores.T, labels)), clip)
        return jax.nn.one_hot(labels, scores.shape[0], axis=0, dtype=scores.dtype) * -(pull * weights)

    return Loss(
        "logistic",
        values,
        gradient,
        _linear_scores,
        gradient_bound=lambda radius: min(clip, 1.0) * radius,
        smoothness=lambda radius: radius**2 / 4,
        slopes=slopes,
        native=Native("logistic", clip, gradient),
        link=own_shares,
    )


def softmax(clip: float = 1.0) -> Loss:
    r"""Softmax cross-entropy: $-\ln\big(e^{x_k \cdot a} / \sum_l e^{x_l \cdot a}\big)$.

    The gradient is $(p - e_k) a^\top$ with $p$ the class probabilities: norm at most $\sqrt 2\,\|a\|$, curvature at
    most $\|a\|^2/2$.

    With `clip` below 1 the gradient of an example (not its value) is scaled by $\min(1, \text{clip}/(1 - p_k))$: "gap
    clipping". This is the gradient of $\min_u\, [\ell(s + u e_k) + \text{clip}\,|u|]$, an infimal convolution of convex
    functions of the scores s, hence convex and as smooth as before; its norm is at most $\sqrt 2\,\text{clip}\,\|a\|$.
    Scaling by the gradient's norm instead would not give the gradient of a convex function when there are more than
    two classes, and the contraction that the sensitivity bounds rest on would be lost.

    Parameters
    ----------
    clip : float
        Bound on the slope of one example, above 0; 1 or more: no clipping.

    Returns
    -------
    Loss
        The loss.
    """

    def values(model: Array, features: Array, labels: Array) -> Array:
        scores = _linear_scores(model, features)
        return jax.nn.logsumexp(scores, axis=1) - _pick(scores, labels)

    def slopes(scores: Array, labels: Array, weights: Array) -> Array:
        probabilities = jax.nn.softmax(scores, axis=0)
        true = jax.nn.one_hot(labels, scores.shape[0], axis=0, dtype=scores.dtype)
        if clip < 1:
            gaps = jnp.sum(probabilities * (1 - true), axis=0)  # 1 - p_k, exact also where p_k is close to 1
            weights = weights * jnp.minimum(1.0, clip / jnp.maximum(gaps, clip))
        return (probabilities - true) * weights

    def gradient(model: Array, features: Array, labels: Array, weights: Array) -> Array:
        return slopes(model @ features.T, labels, weights) @ features

    return Loss(
        "softmax",
        values,
        gradient,
        _linear_scores,
        gradient_bound=lambda radius: 2**0.5 * min(clip, 1.0) * radius,
        smoothness=lambda radius: radius**2 / 2,
        slopes=slopes,
        native=Native("softmax", clip, gradient),
        link=softmax_shares,
    )


def restricted(loss: Loss, x0: Array, support: Array, radius: float) -> Loss:
    r"""The loss as a function of the coordinates in `support` alone, the others staying those of `x0`.

    The part of an example's features that class k sees, $a_{M_k}$, is cut to norm `radius`, so the score of class k is
    $x_{0,k} \cdot a + \langle (x - x_0)_k,\ a_{M_k} \min(1, \text{radius}/\|a_{M_k}\|) \rangle$. A function of the scores
    that is convex and smooth stays so under this linear map; every bound of the loss holds with `radius` in place of the
    features' own. The gradient is zero outside of the support.

    Parameters
    ----------
    loss : Loss
        A loss of linear scores.
    x0 : Array
        The model outside the support.
    support : Array
        Bool, of the model's shape.
    radius : float
        Bound on the part of an example's features that one class sees.

    Returns
    -------
    Loss
        The loss.
    """
    slopes = loss.slopes
    assert slopes is not None, f"{loss.name} has no slopes"

    def gradient(model: Array, features: Array, labels: Array, weights: Array) -> Array:
        # in full precision on every device: the bounds need this cut
        norms = jnp.sqrt(jnp.matmul(support.astype(features.dtype), (features**2).T, precision="highest"))
        cut = radius / jnp.maximum(norms, radius)
        scores = x0 @ features.T + cut * (jnp.where(support, model - x0, 0.0) @ features.T)
        return jnp.where(support, (cut * slopes(scores, labels, weights)) @ features, 0.0)

    return loss._replace(gradient=gradient, slopes=None)


def with_class_weights(loss: Loss, weights: Sequence[float]) -> Loss:
    r"""The loss with every example of class k counted $c_k$ times: $c_{k_j}\,\ell_j(x)$.

    A positive factor keeps a loss convex and smooth. The largest one multiplies the bound on an example's gradient and its
    smoothness, and with them the noise of a private run: weights of at most 1 cost nothing.

    Parameters
    ----------
    loss : Loss
        The loss of one example.
    weights : sequence of float
        The factor c_k of every class, positive.

    Returns
    -------
    Loss
        The weighted loss, with its bounds.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> heavy = with_class_weights(softmax(), [0.5, 2.0])
    >>> [f"{value:.3f}" for value in heavy.values(jnp.zeros((2, 1)), jnp.ones((2, 1)), jnp.array([0, 1]))]
    ['0.347', '1.386']
    >>> heavy.gradient_bound(1.0) / softmax().gradient_bound(1.0)
    2.0
    """
    heaviest = max(weights)

    def factors(labels: Array, dtype: Any) -> Array:
        """Compare once per class: then the weights are single numbers in the program, not an array."""
        found = jnp.zeros(labels.shape, dtype)
        for label, weight in enumerate(weights):
            found = jnp.where(labels == label, jnp.asarray(weight, dtype), found)
        return found

    def values(model: Array, features: Array, labels: Array) -> Array:
        return factors(labels, model.dtype) * loss.values(model, features, labels)

    def gradient(model: Array, features: Array, labels: Array, each: Array) -> Array:
        return loss.gradient(model, features, labels, each * factors(labels, each.dtype))

    def slopes(scores: Array, labels: Array, each: Array) -> Array:
        assert loss.slopes is not None, f"{loss.name} has no slopes"
        return loss.slopes(scores, labels, each * factors(labels, each.dtype))

    return loss._replace(
        values=values,
        gradient=gradient,
        gradient_bound=lambda radius: heaviest * loss.gradient_bound(radius),
        smoothness=lambda radius: heaviest * loss.smoothness(radius),
        slopes=slopes if loss.slopes else None,
        native=None,
    )
