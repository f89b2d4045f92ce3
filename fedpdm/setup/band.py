"""The limits of an honest message under these settings, if any are known."""

import math

import jax
import jax.numpy as jnp

from fedpdm.config import Config
from fedpdm.privacy.band import Band
from fedpdm.privacy.plan import Plan
from fedpdm.privacy.sensitivity import Curvature
from fedpdm.rounds import Setup
from fedpdm.setup.cohorts import SEVERAL, cohorts_in_a_round

__all__ = ["MEMBERS", "band_of", "no_band_because", "sums_warning"]

MEMBERS = "single members of a secure sum, of which only the sum is seen; a hostile one can spoil its cohort"


def sums_warning(config: Config) -> str | None:
    """Return what to know before a run with secure sums.

    Parameters
    ----------
    config : Config
        The resolved settings.

    Returns
    -------
    str or None
        One line; None without secure sums.
    """
    if config.privacy.trust != "cohorts":
        return None
    cohorts, remedy = cohorts_in_a_round(config), ""
    if cohorts >= SEVERAL and not config.cohorts.compare:
        remedy = f" With {cohorts} cohorts in a round, cohorts.compare=true refuses sums that the others contradict."
    return f"not checked: {MEMBERS}.{remedy} See docs/hostile-clients.md."


def no_band_because(setup: Setup, plan: Plan | None, radius: float | None) -> str | None:
    """Return why nothing is known about an honest message, or None if something is.

    Parameters
    ----------
    setup : Setup
        The settings.
    plan : Plan or None
        That of the sound mechanism, if it is on.
    radius : float or None
        Bound on the norm of every example's features.

    Returns
    -------
    str or None
        The reason.
    """
    local, problem = setup.local, setup.problem
    if local.solver != "steps" or setup.algorithm.metric is not None:
        return "for Newton solves and the metric of moments no limit of an honest message is known"
    if setup.algorithm.solution is None or setup.algorithm.told is None:
        why = "with an adaptive rho no limit of an honest message is known"
        return why if setup.algorithm.name == "fedpdm" else f"{setup.algorithm.name} does not tell the solution of a message"
    if setup.privacy.mechanism == "paper":
        return "the paper's mechanism keeps duals that no message tells"
    if setup.algorithm.state_vector is not None and setup.links.values != "float32":
        return "the client's state adds up messages, and with rounded values the server's copy of it drifts away"
    links, algorithm = setup.links, setup.algorithm
    chosen = links.uplink < 1 and not links.has_support and algorithm.state_vector is None
    if chosen and algorithm.name != "fedpdm" and jax.tree.leaves(jax.eval_shape(algorithm.init_client, jnp.zeros(1))):
        return f"the state of {algorithm.name} moves where nothing is sent, so the server does not know it"
    if problem.penalty_by == "subgradient" and not local.linearised:
        return "the steps of a subgradient have no radius"
    if plan is None and local.tolerance:
        return "without a mechanism the number of local steps depends on the data"
    if plan is None and (radius is None or not math.isfinite(problem.loss.gradient_bound(radius))):
        return "nothing bounds a gradient: set data.radius"
    return None


def band_of(setup: Setup, plan: Plan | None, radius: float | None) -> Band | None:
    """Return the band of these settings; the arguments are those of `no_band_because`.

    Parameters
    ----------
    setup, plan, radius
        As in `no_band_because`.

    Returns
    -------
    Band or None
        The band.
    """
    if no_band_because(setup, plan, radius):
        return None
    local, algorithm, problem = setup.local, setup.algorithm, setup.problem
    seen = setup.links.radius if setup.links.has_support else radius or 1.0
    smoothness = problem.loss.smoothness(seen)
    curvature = Curvature(algorithm.weight, smoothness if math.isfinite(smoothness) else 0.0, problem.beta)
    if plan is not None:
        shares = (plan.shared.sum_multiplier, plan.shared.cohort.honest) if plan.shared else None
        return Band(plan.mode, plan.clip, curvature, local.steps, local.tolerance**0.5, shares=shares)
    clip = problem.loss.gradient_bound(seen)
    return Band("steps", min(clip, local.batch_clip or clip), curvature, local.steps)
