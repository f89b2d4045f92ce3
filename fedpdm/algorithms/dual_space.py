r"""Whole-batch steps in the space of a client's rows, for clients with fewer rows than features.

Every step moves the model by the linear term, by the proximal term and by a combination of the client's rows $A$ (one row per
example). So after any number of steps

$$x = x_0 - u\,v + W A,$$

with a number $u$ and one coefficient per class and row, $W$. A step needs the scores only, and they follow from the Gram matrix
$A A^\top$:

$$S = x_0 A^\top - u\,v A^\top + W\,(A A^\top), \qquad u \leftarrow (1 - w\eta)\,u + \eta, \qquad
W \leftarrow (1 - w\eta)\,W - \eta\,P(S),$$

where $P$ holds the weighted slopes of the loss. These are the iterates of the usual steps, up to rounding: everything that is
proven about them stays true. The Gram matrix is computed once per client.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.problem.local_plan import LocalPlan
from fedpdm.problem.objective import Problem

__all__ = ["gram_matrices", "pays", "serves", "steps_in_dual_space"]

CLEAR_GAIN = 0.5  # share of the usual work below which the other space is chosen: small products are less efficient
STEP = 2**14  # multiplications that take as long as what a step costs besides its own


def serves(problem: Problem, plan: LocalPlan, *hooks: object) -> bool:
    """Tell whether all steps of a local problem can be done in the space of the rows.

    Parameters
    ----------
    problem : Problem
        The loss must be one of linear scores, with its slopes, and nothing else may bend the steps.
    plan : LocalPlan
        All rows in every step, and a fixed number of steps, at least one.
    *hooks : object
        Noise in the gradients, a support, a metric: each must be None.

    Returns
    -------
    bool
        Whether `steps_in_dual_space` gives what the usual steps give.
    """
    return (
        problem.loss.slopes is not None
        and not problem.beta
        and problem.penalty_by == "prox"
        and plan.batch_size == 0
        and plan.steps > 0
        and plan.solver == "steps"
        and not plan.tolerance
        and not plan.linearised
        and not plan.batch_clip
        and all(hook is None for hook in hooks)
    )


def pays(rows: int, features: int, classes: int, steps: int, participations: float) -> bool:
    """Tell whether the space of the rows saves work: multiplications of a client over a whole run, Gram matrix included.

    Parameters
    ----------
    rows, features, classes : int
        Sizes of a client's problem.
    steps : int
        Local steps of a round.
    participations : float
        Rounds that a client takes part in, on average.

    Returns
    -------
    bool
        Whether it does.

    Examples
    --------
    >>> pays(rows=600, features=3970, classes=10, steps=20, participations=12)
    True
    >>> pays(rows=600, features=200, classes=10, steps=20, participations=12)
    False
    >>> pays(rows=20, features=105, classes=2, steps=20, participations=12)
    False
    """
    usual = participations * 2 * steps * rows * features * classes
    gram = rows**2 * features
    dual = participations * (classes * rows * (3 * features + steps * rows) + steps * STEP)
    return gram + dual < CLEAR_GAIN * usual


@jax.jit
def gram_matrices(features: Array) -> Array:
    """Compute every client's Gram matrix.

    Parameters
    ----------
    features : Array
        [clients, rows, features].

    Returns
    -------
    Array
        [clients, rows, rows], in full precision on every device.
    """
    return jax.lax.map(lambda own: jnp.matmul(own, own.T, precision="highest"), features)


def steps_in_dual_space(
    problem: Problem,
    plan: LocalPlan,
    rows: tuple[Array, Array, Array],
    gram: Array,
    x0: Array,
    linear_term: Array | float,
    weight: Array | float,
    step_size: Array,
) -> Array:
    r"""Take the steps of `fedpdm.algorithms.local.solve` in the space of the rows.

    Parameters
    ----------
    problem, plan : Problem, LocalPlan
        As `serves` wants them.
    rows : tuple of Array
        Features, labels and weights of the client's examples.
    gram : Array
        The client's Gram matrix.
    x0, linear_term, weight, step_size : Array
        As in `solve`.

    Returns
    -------
    Array
        The model after the last step.
    """
    features, labels, weights = rows
    slopes = problem.loss.slopes
    assert slopes is not None
    slope = jnp.broadcast_to(jnp.asarray(linear_term, x0.dtype), x0.shape)
    start, drift = jnp.split(jnp.concatenate([x0, slope]) @ features.T, 2)  # one product reads the rows once
    stays = 1 - weight * step_size

    def move(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        along, coefficients = carry
        scores = start - along * drift + coefficients @ gram
        return stays * along + step_size, stays * coefficients - step_size * slopes(scores, labels, weights)

    after_first = jnp.asarray(step_size, x0.dtype), -step_size * slopes(start, labels, weights)
    along, coefficients = jax.lax.fori_loop(1, plan.steps, move, after_first)
    return x0 - along * slope + coefficients @ features
