"""The problem that a federation solves: minimise mean_i f_i(x) + h(x)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.problem.losses import Loss
from fedpdm.problem.penalties import Penalty

__all__ = ["Problem", "concave_value", "concave_gradient", "local_objectives", "local_gradients", "accuracy", "measured_on"]


class Problem(NamedTuple):
    r"""$\min_x \frac1N \sum_i f_i(x) + h(x)$ with $f_i(x) = \mathrm{mean}_j\, \ell_j(x) + \beta \sum x^2/(1+x^2)$.

    `penalty` is h on the MEAN objective. A strength gamma that is meant for the sum over N clients (the scale of
    the paper's experiments) becomes gamma / N here. `penalty_by` says who applies it: the server by "prox", or every
    client by a "subgradient" in each local step.
    """

    loss: Loss
    penalty: Penalty
    beta: float = 0.0
    penalty_by: str = "prox"


def concave_value(x: Array) -> Array:
    """Compute sum x^2 / (1 + x^2), the part of the paper's f_i that is not convex and does not depend on data.

    Parameters
    ----------
    x : Array
        A model of any shape.

    Returns
    -------
    Array
        Scalar.
    """
    return jnp.sum(x**2 / (1 + x**2))


def concave_gradient(x: Array) -> Array:
    """Compute 2 x / (1 + x^2)^2, the gradient of `concave_value`. Its curvature lies in [-1/2, 2].

    Parameters
    ----------
    x : Array
        A model of any shape.

    Returns
    -------
    Array
        Of the shape of `x`.
    """
    return 2 * x / (1 + x**2) ** 2


def _weights(labels: Array, sizes: Array, weights: Array | None, persons: Array | None) -> Array:
    """`[clients, rows]`: 1/size on a client's own rows, or a row's weight over the number of persons; 0 on its padding."""
    rows = jnp.arange(labels.shape[1])
    each = 1.0 / sizes[:, None] if weights is None or persons is None else weights / persons[:, None]
    return jnp.where(rows < sizes[:, None], each, 0.0)


def local_objectives(
    problem: Problem,
    x: Array,
    features: Array,
    labels: Array,
    sizes: Array,
    weights: Array | None = None,
    persons: Array | None = None,
) -> Array:
    """Compute f_i(x) of every client at one common model.

    Parameters
    ----------
    problem : Problem
        Loss, penalty and concave term.
    x : Array
        The model.
    features, labels, sizes : Array
        The stacked examples of all clients: [clients, rows, n], [clients, rows], [clients].
    weights, persons : Array, optional
        If rows do not count 1 each: [clients, rows] the weight of a row, and [clients] the number of persons.

    Returns
    -------
    Array
        [clients].
    """

    def one(features: Array, labels: Array, weights: Array) -> Array:
        return jnp.sum(problem.loss.values(x, features, labels) * weights)

    return jax.vmap(one)(features, labels, _weights(labels, sizes, weights, persons)) + problem.beta * concave_value(x)


def local_gradients(
    problem: Problem,
    models: Array,
    features: Array,
    labels: Array,
    sizes: Array,
    weights: Array | None = None,
    persons: Array | None = None,
) -> Array:
    """Compute the full gradient of every f_i at the client's own model.

    Parameters
    ----------
    problem : Problem
        Loss, penalty and concave term.
    models : Array
        [clients, *model].
    features, labels, sizes : Array
        The stacked examples of all clients: [clients, rows, n], [clients, rows], [clients].
    weights, persons : Array, optional
        If rows do not count 1 each: [clients, rows] the weight of a row, and [clients] the number of persons.

    Returns
    -------
    Array
        [clients, *model].
    """
    data_part = jax.vmap(problem.loss.gradient)(models, features, labels, _weights(labels, sizes, weights, persons))
    return data_part + problem.beta * concave_gradient(models)


def accuracy(problem: Problem, x: Array, features: Array, labels: Array) -> Array:
    """Compute the share of examples whose largest score is that of the true class.

    Parameters
    ----------
    problem : Problem
        Loss, penalty and concave term.
    x : Array
        The model.
    features, labels : Array
        [examples, n] and [examples].

    Returns
    -------
    Array
        Scalar.
    """
    # Scores by class, one operation after the other: what XLA fuses here, it does not vectorise.
    scores = jax.lax.optimization_barrier(problem.loss.scores(x, features).T)
    right = jax.lax.optimization_barrier(jnp.argmax(scores, axis=0) == labels)
    return jnp.mean(right)


def measured_on(problem: Problem, x: Array, features: Array, labels: Array) -> Array:
    """Compute what is measured after a round on test examples: the accuracy, or the mean loss if the label is a number.

    Parameters
    ----------
    problem : Problem
        Loss, penalty and concave term.
    x : Array
        The model.
    features, labels : Array
        [examples, n] and [examples].

    Returns
    -------
    Array
        Scalar.
    """
    if problem.loss.target == "classes":
        return accuracy(problem, x, features, labels)
    return jnp.mean(problem.loss.values(x, features, labels))
