"""From a budget to the noise that a cohort shares, with both figures of its guarantee."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedpdm.choices.words import RELATIONS, Relation
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import effective_multiplier, epsilon_of, gdp_epsilon, gdp_mu
from fedpdm.privacy.mechanism import Mechanism, Release
from fedpdm.privacy.sensitivity import Number
from fedpdm.privacy.sharing import shared
from fedpdm.privacy.sums import (
    LEAST_STEPS,
    SMOOTHING,
    Cohort,
    Lattice,
    choose_lattice,
    own_share_multiplier,
    share_sigma,
)
from fedpdm.problem.local_plan import LocalPlan

__all__ = ["Sharing", "SharedNoise", "cohort_figures", "round_up", "share_noise", "two_figures"]

FURTHEST = 1_000_000  # rounds: no step of a falling schedule is smaller than the last one of so many
NEGLIGIBLE = 1e-9  # a noise multiplier below this guarantees nothing worth a number


class Sharing(NamedTuple):
    """How cohorts share the noise.

    Attributes
    ----------
    cohort, largest, budget
        The cohort, the most members that one can have, and whether the budget is for the "sum" or for a member's "own-share".
    dimension, sizes
        Coordinates of a contribution, and the public sizes of all clients.
    bits, scale
        Of the lattice; scale 0: the finest one that leaves room for the sum.
    reach
        The largest mean contribution that there is room for, over what the clip and the local steps allow.
    whole_clients
        Whether the unit is a whole client.
    """

    cohort: Cohort
    largest: int
    budget: str
    dimension: int
    sizes: np.ndarray
    bits: int
    scale: int = 0
    reach: float = 1.0
    whole_clients: bool = False


class SharedNoise(NamedTuple):
    """The guarantee of shared noise, in its two figures, for all planned participations."""

    cohort: Cohort
    budget: str
    lattice: Lattice
    sum_multiplier: float  # z of a sum
    sum_epsilon: float
    own_epsilon: float  # of a member's own share alone
    share_sigma: float  # in the first round

    def adversary(self) -> str:
        """Return the adversary of the sum's figure."""
        return _adversary(self.cohort)

    def against(self) -> str:
        """Return the adversary of the figure that the budget is for."""
        return f"against {self.adversary()}" if self.budget == "sum" else "against everybody, by a client's own noise alone"

    def other_figure(self, before: float = 0.0) -> str:
        """Return a sentence with the figure that the budget is not for; `before` was spent on a schema."""
        if self.budget == "sum":
            figure = round_up(self.own_epsilon + before)
            return f" If the secure sum were broken, a client's own share of the noise guarantees epsilon = {figure:g}."
        return f" Against {self.adversary()} it is epsilon = {round_up(self.sum_epsilon + before):g}."

    def with_own_release(self, multiplier: float, delta: float, relation: Relation) -> "SharedNoise":
        """Count one more release in the figure of a member's own shares; `multiplier` is that of its own share alone."""
        if not math.isfinite(self.own_epsilon) or multiplier <= NEGLIGIBLE:
            return self._replace(own_epsilon=math.inf)
        mu = math.hypot(gdp_mu(self.own_epsilon, delta), 1 / effective_multiplier(multiplier, relation))
        return self._replace(own_epsilon=gdp_epsilon(mu, delta))

    def terms(self) -> dict[str, Any]:
        """Return the assumptions of the guarantee, for a summary."""
        return {
            "cohort": self.cohort._asdict() | {"least": self.cohort.least, "threshold": self.cohort.threshold},
            "sum_epsilon": self.sum_epsilon,
            "own_share_epsilon": self.own_epsilon if math.isfinite(self.own_epsilon) else None,
            "share_sigma": self.share_sigma,
            "lattice": self.lattice._asdict(),
        }


def _adversary(cohort: Cohort) -> str:
    return (
        f"a server that sees only sums over at least {cohort.least} of {cohort.members} cohort members and works with at most "
        f"{cohort.colluding} of the others"
    )


def cohort_figures(modes: dict[str, Any], cohort: Cohort, dimension: int, delta: float) -> dict[str, Any]:
    """Compute both figures of a cohort for the noise of a plan's table, in each relation and for either reading of the budget.

    They depend on the noise multiplier and the participations alone, so one mode with a single release is enough.

    Parameters
    ----------
    modes : dict
        "modes" of `fedpdm.privacy.plan.plan_table`.
    cohort, dimension, delta
        The cohort, the coordinates of a contribution, and the delta of the guarantee.

    Returns
    -------
    dict
        The cohort, its figures, and a sentence that explains them.
    """
    by_relation = next(found for mode, found in modes.items() if mode != "every-step" and "error" not in found)
    figures = []
    for relation in RELATIONS:
        z, times = by_relation[relation]["noise_multiplier"], by_relation[relation]["participations"]
        for budget in ("sum", "own-share"):
            sum_z, of_sum, own = two_figures(z, budget, dimension, cohort, delta, times, relation)
            names = ("relation", "budget", "sum_epsilon", "own_epsilon", "share_multiplier")
            figures.append(dict(zip(names, (relation, budget, of_sum, own, sum_z / math.sqrt(cohort.honest)), strict=True)))
    sentence = (
        f"epsilon, sums: against {_adversary(cohort)}. own share alone: against everybody, by the noise that a member adds "
        "itself, if the secure sum fails. share/sens.: a member's own noise over the sensitivity."
    )
    return cohort._asdict() | {"figures": figures, "sentence": sentence}


def round_up(epsilon: float) -> float:
    """Round to four significant digits, never below the true value.

    Parameters
    ----------
    epsilon : float
        The value.

    Returns
    -------
    float
        The rounded value.
    """
    if epsilon == 0 or math.isinf(epsilon):
        return epsilon
    digits = 3 - math.floor(math.log10(epsilon))
    return math.ceil(epsilon * 10**digits - 1e-6) / 10**digits


def two_figures(
    z: float,
    budget: str,
    dimension: int,
    cohort: Cohort,
    delta: float,
    participations: int,
    relation: Relation,
    steps: float = 0.0,
) -> tuple[float, float, float]:
    """Compute both figures for the z that a budget needs.

    Parameters
    ----------
    z, budget
        The noise multiplier, and whether it is for the "sum" or the "own-share".
    dimension, cohort
        Coordinates of a contribution, and the cohort.
    delta, participations, relation
        Of the guarantee.
    steps
        A lower bound on the sensitivity in lattice steps.

    Returns
    -------
    float, float, float
        The z of the sum, its epsilon, and the epsilon of a member's own share.

    Examples
    --------
    >>> from fedpdm.privacy.accounting import noise_multiplier_for
    >>> z = noise_multiplier_for(1.0, 1e-5, 60, "add-remove")
    >>> [round(float(f), 2) for f in two_figures(z, "sum", 7850, Cohort(30, 3, 3), 1e-5, 60, "add-remove")[1:]]
    [1.0, 6.02]
    >>> [round(float(f), 2) for f in two_figures(z, "own-share", 7850, Cohort(30, 3, 3), 1e-5, 60, "add-remove")[1:]]
    [0.18, 1.0]
    """
    if budget == "own-share":  # every share has the noise of the local model: sigma_0^2 - (3/S)^2 = (z s)^2
        sum_z = math.sqrt(cohort.honest) * z
        return sum_z, epsilon_of(sum_z, participations, delta, relation), epsilon_of(z, participations, delta, relation)
    own = own_share_multiplier(z, dimension, cohort.honest, steps)
    own_epsilon = epsilon_of(own, participations, delta, relation) if own > NEGLIGIBLE else math.inf
    return z, epsilon_of(z, participations, delta, relation), own_epsilon


def share_noise(
    sharing: Sharing,
    z: float,
    bound: Callable[[Release], Number],
    reach: float,
    local: LocalPlan,
    promise: tuple[float, int, Relation],
) -> tuple[Mechanism, SharedNoise]:
    """Make the mechanism of a cohort's shared noise, and its figures.

    Parameters
    ----------
    sharing
        The cohort and how it shares the noise.
    z
        The noise multiplier that the budget needs: of the sum, or of the own share.
    bound
        Sensitivity of a member's contribution.
    reach
        The norm that the mean contribution of a cohort may have without wrapping.
    local
        How members solve; the first step size is the largest.
    promise
        Delta, participations and relation.

    Returns
    -------
    Mechanism, SharedNoise
        The mechanism and its figures.
    """
    cohort, dimension, sizes = sharing.cohort, sharing.dimension, sharing.sizes
    sum_z, *_ = two_figures(z, sharing.budget, dimension, cohort, *promise)
    if sharing.budget == "own-share":
        # An own share loses (3/S)^2 by itself, a share of a sum only 1/H of that: this addition compensates for it.
        sum_z = math.hypot(sum_z, math.sqrt(cohort.honest * SMOOTHING**2 / dimension))
    none = jnp.float32(0.0)
    first, least = (
        float(bound(Release(jnp.float32(size), jnp.float32(1), none, none, none)))
        for size in (local.step_size, local.step_size / (1 if local.schedule == "constant" else FURTHEST**0.5))
    )
    if sharing.scale:
        lattice = Lattice(sharing.scale, sharing.bits)
    else:
        lattice = choose_lattice(sharing.bits, reach, sum_z, first, dimension, cohort, sharing.largest)
    sigma = float(share_sigma(sum_z, first, dimension, cohort.honest, lattice.scale))
    if sigma * lattice.scale < LEAST_STEPS:
        raise ConfigError(
            f"cohorts.scale={lattice.scale} leaves {sigma * lattice.scale:.3g} lattice steps of noise in a share, fewer than "
            f"the {LEAST_STEPS:g} that the proof needs: raise it, or set cohorts.scale=0."
        )
    privacy = shared(bound, sum_z, dimension, cohort, lattice, float(sizes.mean()), sharing.whole_clients)
    _, sum_epsilon, own_epsilon = two_figures(z, sharing.budget, dimension, cohort, *promise, least * lattice.scale)
    return privacy, SharedNoise(cohort, sharing.budget, lattice, sum_z, sum_epsilon, own_epsilon, sigma)
