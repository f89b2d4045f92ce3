"""How a client works on its local problem: the public plan."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

__all__ = ["LocalPlan", "step_size_at", "travel"]


class LocalPlan(NamedTuple):
    """How a client works on its local problem; all of it is public and fixed before the round.

    Attributes
    ----------
    steps
        Number of steps. With a `tolerance` all of them are computed, and those after the end change nothing.
    batch_size
        Examples per step. 0 means all of the client's examples in every step.
    step_size, schedule
        Step size at round 0 and how it falls: "constant", or "inverse-sqrt" for `step_size / sqrt(1 + t)`.
    tolerance
        The paper's nu: stop after the first step whose direction has squared norm <= nu. 0 means fixed steps.
    linearised
        Take one full gradient at x0 and solve the local problem on it, instead of a new gradient in every step.
    batch_clip
        Cut the norm of the data part of every step's gradient to this. 0 means no cut.
    solver
        "steps": gradient steps. "newton": `fedpdm.algorithms.newton` on all of the client's examples, to the tolerance.
    """

    steps: int
    batch_size: int
    step_size: float
    schedule: str = "constant"
    tolerance: float = 0.0
    linearised: bool = False
    batch_clip: float = 0.0
    solver: str = "steps"


def step_size_at(plan: LocalPlan, round_index: Array | int) -> Array:
    """Compute the step size of a round.

    Parameters
    ----------
    plan : LocalPlan
        The plan.
    round_index : int or Array
        The round, from 0.

    Returns
    -------
    Array
        Scalar.
    """
    # A number instead of a branch: runs with either schedule share one compiled program
    falls = {"constant": 0.0, "inverse-sqrt": 1.0}[plan.schedule]
    return plan.step_size / jnp.sqrt(1.0 + falls * jnp.asarray(round_index, jnp.float32))


def travel(weight: float, step_size: Array, steps: Array) -> Array:
    """Compute how far the steps go along a constant gradient: eta sum_{r < Q} (1 - w eta)^r, or eta Q for w = 0.

    Parameters
    ----------
    weight : float
        w, the weight of the proximal term.
    step_size : Array
        eta.
    steps : Array
        Q, the number of steps.

    Returns
    -------
    Array
        The distance.
    """
    if not weight:
        return step_size * steps
    return (1 - (1 - weight * step_size) ** steps) / weight
