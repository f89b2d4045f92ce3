"""Custom losses and models: any JAX function of (parameters, features, labels), as a `Loss` that clients can train."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fedpdm.problem.losses import Loss

__all__ = ["CustomModel", "custom_model"]

Parameters = Any  # any pytree of arrays


class CustomModel(NamedTuple):
    """A model that is not a matrix of weights.

    Attributes
    ----------
    loss
        `clip -> Loss`, a factory as in `fedpdm.choices.LOSSES`; but here `clip` is the largest norm of one example's gradient,
        and infinite (no clipping) by default.
    unravel
        From the vector that is trained (`Simulation.model`, [1, size]) to the parameters.
    ravel
        From a tree like the parameters to a vector: parameters, or whole numbers that name groups for
        `fedpdm.problem.penalties.group_lasso`.
    """

    loss: Callable[..., Loss]
    unravel: Callable[[Any], Parameters]
    ravel: Callable[[Parameters], Array]


def custom_model(
    values: Callable[[Parameters, Array, Array], Array],
    scores: Callable[[Parameters, Array], Array],
    parameters: Parameters,
    name: str = "custom",
) -> CustomModel:
    """Make a model from your own functions; training works on the parameters as one vector.

    Parameters
    ----------
    values
        `(parameters, features [b, n], labels [b]) -> [b]`, the loss of each example, which must depend on that example alone.
    scores
        `(parameters, features [b, n]) -> [b, classes]`; the largest is the predicted class.
    parameters
        The initial parameters: any pytree of float arrays.
    name : str
        Name of the loss in errors.

    Returns
    -------
    CustomModel
        The loss, and the functions that turn parameters into a vector and back.

    Notes
    -----
    With a finite `clip` an example's gradient g is replaced by g min(1, clip/||g||). That bounds its norm, but the result need
    not be the gradient of any function, so local steps need not contract. The sound mechanism then allows only the modes that
    assume nothing about curvature ("every-step", "linearised", "batch-clipped"). An example whose features are all zero is an
    empty slot, and has no gradient; an example with a gradient that is not finite counts as an empty slot.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> def scores(p, features):
    ...     return jnp.tanh(features @ p["in"]) @ p["out"]
    >>> def values(p, features, labels):
    ...     return -jnp.take_along_axis(jax.nn.log_softmax(scores(p, features)), labels[:, None], axis=1)[:, 0]
    >>> start = {"in": jnp.ones((3, 4)), "out": jnp.zeros((4, 2))}
    >>> model = custom_model(values, scores, start)
    >>> loss = model.loss(clip=0.5)
    >>> loss.initial().shape, loss.gradient_bound(1.0)
    ((1, 20), 0.5)
    >>> model.unravel(loss.initial())["in"].shape
    (3, 4)
    """
    start, restore = ravel_pytree(parameters)

    def unravel(vector: Any) -> Parameters:
        return restore(jnp.ravel(jnp.asarray(vector)))

    def vector_values(model: Array, features: Array, labels: Array) -> Array:
        return values(unravel(model), features, labels)

    def one_value(model: Array, example: Array, label: Array) -> Array:
        return vector_values(model, example[None], label[None])[0]

    def make(clip: float = math.inf) -> Loss:
        def gradient(model: Array, features: Array, labels: Array, weights: Array) -> Array:
            weights = weights * jnp.any(features != 0, axis=1)
            if math.isinf(clip):
                return jax.grad(lambda x: jnp.sum(weights * vector_values(x, features, labels)))(model)
            each = jax.vmap(jax.grad(one_value), (None, 0, 0))(model, features, labels)
            return _clipped_sum(each, weights, clip)

        return Loss(
            name,
            vector_values,
            gradient,
            scores=lambda model, features: scores(unravel(model), features),
            gradient_bound=lambda radius: clip,
            smoothness=lambda radius: math.inf,
            initial=lambda: start[None].astype(jnp.float32),
        )

    return CustomModel(make, unravel, lambda tree: ravel_pytree(tree)[0])


def _clipped_sum(each: Array, weights: Array, clip: float) -> Array:
    """The weighted sum of gradients [examples, 1, size], each cut to norm `clip`."""
    norms = jnp.sqrt(jnp.sum(each**2, axis=(1, 2)))
    # leave a gradient that is not finite out of the sum: no factor would bound it, since 0 * inf is NaN
    each = jnp.where(jnp.isfinite(norms)[:, None, None], each, 0.0)
    norms = jnp.where(jnp.isfinite(norms), norms, 1.0)
    # a part in a million below, so that rounding cannot lift a norm above the bound
    factors = weights * jnp.minimum(1.0, clip * (1 - 1e-6) / jnp.maximum(norms, 1e-30))
    return jnp.tensordot(factors, each, axes=1)
