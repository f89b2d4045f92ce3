"""The paper's measure P: how far models and duals are from a stationary point."""

import jax.numpy as jnp
from jax import Array

from fedpdm.problem.metric import prox_in_metric
from fedpdm.problem.objective import Problem, local_gradients
from fedpdm.problem.sums import add_up

__all__ = ["stationarity", "stationarity_of"]


def stationarity(
    problem: Problem,
    weight: Array | float,
    linear_terms: Array,
    models: Array,
    x0: Array,
    features: Array,
    labels: Array,
    sizes: Array,
    weights: Array | None = None,
    persons: Array | None = None,
    shares: Array | None = None,
    metric: Array | None = None,
) -> Array:
    r"""Return the paper's measure P of the distance from a stationary point.

    $$P = \sum_j \big[\|\nabla f_j(x_j) - \lambda_j + \rho (x_j - x_0)\|^2 + \|x_0 - x_j\|^2\big]
        + \big\|x_0 - \mathrm{prox}_{h/\rho}\big(\tfrac1N\textstyle\sum_j (x_j - \lambda_j/\rho)\big)\big\|^2$$

    `weight` is $\rho$ and `linear_terms` are $-\lambda_j$, so the same formula serves every algorithm that has a
    proximal term; without one (weight 0) the last part is taken with step 1 along the mean gradient. Clients with `shares`
    $p_j$ of the objective count $N p_j$ times in the sum, and $p_j$ takes the place of $1/N$.

    Parameters
    ----------
    problem : Problem
        The objective.
    weight, linear_terms, models, x0 : Array
        The weight of the proximal term; [clients, ...] linear terms and local models; the global model.
    features, labels, sizes, weights, persons : Array
        The clients' rows, as in `fedpdm.algorithms.local.Examples`.
    shares : Array, optional
        [clients] shares of the objective. None: 1/N each.
    metric : Array, optional
        The metric of the proximal term. None: the identity.

    Returns
    -------
    Array
        P, a scalar.
    """
    gradients = local_gradients(problem, models, features, labels, sizes, weights, persons)
    return stationarity_of(problem, weight, linear_terms, models, x0, gradients, shares, metric)


def stationarity_of(
    problem: Problem,
    weight: Array | float,
    linear_terms: Array,
    models: Array,
    x0: Array,
    gradients: Array,
    shares: Array | None = None,
    metric: Array | None = None,
) -> Array:
    """Return `stationarity` for known gradients of every client at its own model.

    Parameters
    ----------
    problem, weight, linear_terms, models, x0, shares, metric
        As in `stationarity`.
    gradients : Array
        [clients, ...] gradients of f_j at x_j.

    Returns
    -------
    Array
        P, a scalar.
    """

    def mean(values: Array) -> Array:
        return add_up(values) / len(values) if shares is None else add_up(values, shares)

    gaps = models - x0
    primal = gradients + linear_terms
    primal = primal + weight * (gaps if metric is None else gaps @ metric)
    if isinstance(weight, Array) or weight:
        back = linear_terms if metric is None else linear_terms @ jnp.linalg.inv(metric)
        centre, step = mean(models + back / weight), 1 / weight
    else:
        centre, step = x0 - mean(primal), 1.0
    prox = problem.penalty.prox(centre, step) if metric is None else prox_in_metric(problem.penalty, centre, step, metric, x0)
    server = x0 - prox
    if shares is None:
        return jnp.sum(primal**2) + jnp.sum(gaps**2) + jnp.sum(server**2)
    return len(models) * jnp.sum(shares * jnp.sum(primal**2 + gaps**2, axis=(1, 2))) + jnp.sum(server**2)
