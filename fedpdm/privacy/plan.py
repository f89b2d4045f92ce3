"""From a budget to a mechanism: mode, clip, participations, noise, and the sentence that states the guarantee."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpdm.choices.words import MODES, RELATIONS, Relation
from fedpdm.errors import ConfigError
from fedpdm.privacy import sensitivity as bounds
from fedpdm.privacy.accounting import (
    epsilon_of,
    noise_multiplier_for,
    participations_for,
)
from fedpdm.privacy.mechanism import Mechanism, Release, sound, sound_every_step
from fedpdm.privacy.published import paper_round_epsilon, paper_sensitivity, paper_sigma
from fedpdm.privacy.sensitivity import Curvature, Number
from fedpdm.privacy.shared_noise import SharedNoise, Sharing, round_up, share_noise
from fedpdm.privacy.sharing import member_sensitivity
from fedpdm.problem.local_plan import LocalPlan, travel

__all__ = ["Plan", "choose_mode", "plan_sound", "plan_table", "unit_releases"]


class Plan(NamedTuple):
    """A sound mechanism, ready to run, with the numbers behind its guarantee."""

    privacy: Mechanism
    mode: str
    epsilon: float
    delta: float
    relation: Relation
    participations: int  # R, the most that a client takes part
    releases: int  # Gaussian releases per participation: Q when every step is noised, else 1
    noise_multiplier: float  # z = sigma / sensitivity of one release
    clip: float  # C
    sensitivity: Callable[[float, float], float]  # (step size, examples) -> of one release, with no public slope
    bound: Callable[[Release], Number]  # the same, from all public values of the release
    before: tuple[float, float] = (0.0, 0.0)  # (epsilon, delta) of a schema that was inferred from the rows before training
    shared: SharedNoise | None = None  # if cohorts share the noise
    unit: str | None = None  # the guarantee covers all rows of one such unit, as "patient"; None: one example
    clients_per_unit: int = 1  # most clients that hold rows of one unit
    standard_multiplier: float = 0.0  # z of the release of means and deviations before training; 0: there is none
    interval_multiplier: float = 0.0  # z of the release of gradients and curvature after it; 0: there is none

    @property
    def whole_client(self) -> bool:
        """Whether the unit is all of one client."""
        return self.mode == "client"

    def cost_multiplier(self) -> float:
        """The noise multiplier of one participation as a whole, for a ledger that counts participations.

        Where a unit has rows at q clients, and q - 1 others spend as this one does, it counts as q participations; as q^2 where
        their messages may be added up (`unit_releases`).
        """
        return self.noise_multiplier / math.sqrt(self.releases * unit_releases(self.clients_per_unit, self.shared is not None))

    def standard_cost_multiplier(self) -> float:
        """The same of the release of means and deviations."""
        return self.standard_multiplier / math.sqrt(self.clients_per_unit)

    def interval_cost_multiplier(self) -> float:
        """The same of the release of gradients and curvature."""
        return self.interval_multiplier / math.sqrt(self.clients_per_unit)

    def whose(self) -> str:
        """The unit in words."""
        if self.whole_client:
            return "all examples of one client"
        if self.unit is None:
            return "one example of one client"
        clients = "one client" if self.clients_per_unit == 1 else f"up to {self.clients_per_unit} clients"
        return f"all rows of one {self.unit} at {clients}"

    def terms(self) -> dict[str, Any]:
        """The unit, the relation, the adversary and the assumptions of the guarantee, for a summary."""
        return {
            "relation": self.relation,
            "unit": self.whose(),
            "unit_column": self.unit,
            "adversary": self.shared.adversary() if self.shared else "the server and everyone who sees the messages",
            "noise_multiplier": self.noise_multiplier,
            "participations": self.participations,
            "mode": self.mode,
            "clip": self.clip,
        } | (self.shared.terms() if self.shared else {})

    def training_mu(self) -> float:
        """The mu of all of a client's participations together, in Gaussian differential privacy."""
        return math.sqrt(self.participations * self.releases) / self.noise_multiplier

    def sentence(self, epsilon: float | None = None) -> str:
        """Return the guarantee in words, for schema and training together; `epsilon` is the spending of training."""
        spent = (self.epsilon if epsilon is None else epsilon) + self.before[0]
        one = self.unit is None and not self.whole_client
        it, another = ("it", "another") if one else ("them", "those of another")
        change = f"adding or removing {it}" if self.relation == "add-remove" else f"replacing {it} by {another}"
        delta = self.delta + self.before[1]
        whom = self.shared.against() if self.shared else "against the server and everyone who sees the messages"
        return (
            f"Differential privacy with epsilon = {round_up(spent):g} and delta = {delta:g} for {self.whose()}, "
            f"under {change} ({self.relation}), {whom}."
        ) + (self.shared.other_figure(self.before[0]) if self.shared else "")


def unit_releases(clients: int, summed: bool) -> int:
    """Return how many releases a round counts as, for a unit with rows at several clients.

    The messages of q clients are q independent releases. In a sum they are one release, which moves by q times the bound of
    one: it counts as q^2. This also covers clients in several sums, since squares of parts add up to less.

    Parameters
    ----------
    clients : int
        q.
    summed : bool
        Messages may be added up.

    Returns
    -------
    int
        The number of releases.

    Examples
    --------
    >>> unit_releases(3, summed=False), unit_releases(3, summed=True)
    (3, 9)
    """
    return clients**2 if summed else clients


def choose_mode(local: LocalPlan, asked: str = "auto") -> str:
    """Return the mode that fits the way the client solves.

    Parameters
    ----------
    local : LocalPlan
        How clients solve.
    asked : str
        privacy.mode of the settings; "auto" chooses.

    Returns
    -------
    str
        The mode.

    Raises
    ------
    ConfigError
        If the requested mode does not fit.
    """
    fitting = "one-pass" if local.batch_size else "certified" if local.tolerance else "contractive"
    if asked == "auto":
        mode = fitting
    elif (asked in ("linearised", "every-step") and not local.batch_size) or asked in (fitting, "batch-clipped"):
        mode = asked
    else:
        raise ConfigError(
            f"privacy.mode={asked!r} does not fit local.batch_size={local.batch_size}, local.tolerance={local.tolerance:g}: "
            f"these settings are {fitting!r}; linearised, contractive, certified and every-step need local.batch_size=0, "
            "certified needs a local.tolerance, contractive and one-pass need none."
        )
    if local.tolerance and mode != "certified":
        raise ConfigError(
            f"local.tolerance={local.tolerance:g} makes the number of steps depend on the data, which privacy.mode={mode!r} "
            "does not allow: set local.tolerance=0.0 (or local.batch_size=0 and privacy.mode=certified)."
        )
    return mode


def plan_sound(
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    participations: int,
    mode: str,
    clip: float,
    curvature: Curvature,
    local: LocalPlan,
    smallest_client: int,
    sharing: Sharing | None = None,
    clients_per_unit: int = 1,
    budget_share: float = 1.0,
) -> Plan:
    """Calibrate the noise so that `participations` participations spend exactly the budget.

    The guarantee is that of `fedpdm.privacy.mechanism.sound` with the sensitivity of the mode, turned into (epsilon, delta)
    by exact Gaussian differential privacy. With a unit column, each of a person's m rows at the client has the weight 1/m
    (`Examples.weights`), and the same bounds hold for all of them together: proof in docs/privacy/proofs.md ("A person as
    the unit").

    Parameters
    ----------
    epsilon, delta, relation
        The budget; replace-one counts double sensitivity.
    participations : int
        R, the most rounds that a client takes part in.
    mode, local
        How clients solve (`choose_mode`).
    clip : float
        C, the bound on one example's gradient (of a batch's gradient in mode "batch-clipped").
    curvature : Curvature
        Of the local problem.
    smallest_client : int
        The fewest examples of a client.
    sharing : Sharing, optional
        How cohorts share the noise.
    clients_per_unit : int
        q: rows of a unit at q clients are q independent releases, so mu and the noise grow by sqrt(q).
    budget_share : float
        The share of mu^2 that is left for training: mu^2 of Gaussian releases adds up.

    Returns
    -------
    Plan
        The mechanism and its numbers.
    """
    bound = _bound(mode, clip, curvature, local, smallest_client)
    releases = local.steps if mode == "every-step" else 1
    times = participations * unit_releases(clients_per_unit, sharing is not None)
    z = noise_multiplier_for(epsilon, delta, times * releases, relation) / math.sqrt(budget_share)
    shared = None
    if sharing:
        bound = member_sensitivity(bound, sharing.sizes)
        longest = float(travel(curvature.weight, jnp.float32(local.step_size), jnp.int32(local.steps))) * clip
        reach = sharing.reach * longest
        privacy, shared = share_noise(sharing, z, bound, reach, local, (delta, times, relation))
    else:
        privacy = sound_every_step(bound, z, local.steps) if mode == "every-step" else sound(bound, z)

    def sensitivity(step_size: float, examples: float) -> float:
        none = jnp.float32(0.0)
        return float(bound(Release(jnp.float32(step_size), jnp.float32(examples), none, none, none)))

    figures = (participations, releases, z, clip, sensitivity, bound)
    return Plan(privacy, mode, epsilon, delta, relation, *figures, shared=shared, clients_per_unit=clients_per_unit)


def _bound(mode: str, clip: float, curvature: Curvature, local: LocalPlan, smallest_client: int) -> Callable[[Release], Number]:
    """Return the sensitivity of the mode as a function of the release's public values, after a check of its conditions."""
    if mode == "client":  # a whole client: what it moves is cut to where a mean gradient of norm C would lead
        return lambda r: bounds.linearised(clip, curvature.weight, r.step_size, local.steps, 1.0)
    if mode == "linearised":
        return lambda r: bounds.linearised(clip, curvature.weight, r.step_size, local.steps, r.examples)
    if mode == "every-step":
        return lambda r: bounds.every_step(clip, r.examples)
    if mode == "batch-clipped":
        bounds.require_contraction(curvature._replace(smoothness=0.0), local.step_size)
        return lambda r: bounds.batch_clipped(clip, curvature, r.step_size, local.steps)
    bounds.require_contraction(curvature, local.step_size)
    if mode == "contractive":
        return lambda r: bounds.contractive(clip, curvature, r.step_size, local.steps, r.examples)
    if mode == "one-pass":
        most = smallest_client // local.batch_size
        if local.steps > most:
            raise ConfigError(
                f"local.steps={local.steps} with local.batch_size={local.batch_size} goes over the data more than once, but "
                f"the smallest client has {smallest_client} examples: use at most {most} steps, or local.batch_size=0."
            )
        return lambda r: bounds.one_pass(clip, r.step_size, local.batch_size)
    if not curvature.lowest > 0:
        raise ConfigError(
            f"privacy.mode='certified' needs a proximal weight {curvature.weight:g} > problem.beta/2={curvature.beta / 2:g}: "
            "algorithm.rho of fedpdm, feddr and afedpd, mu of fedprox, alpha of feddyn; fedavg and scaffold have none."
        )

    def with_tolerance(r: Release) -> Number:
        tolerance = bounds.reached(clip, curvature, local.tolerance**0.5, r.step_size, local.steps, r.public_slope)
        return bounds.certified(clip, curvature, tolerance, r.examples)

    return with_tolerance


def plan_table(
    epsilon: float | None,
    delta: float,
    participations: int | None,
    noise_multiplier: float | None,
    examples: int,
    clip: float,
    curvature: Curvature,
    local: LocalPlan,
    modes: Sequence[str] = MODES,
) -> dict[str, Any]:
    """Compute, for every mode and relation, the missing one of epsilon, participations and noise.

    Parameters
    ----------
    epsilon, participations, noise_multiplier
        Two of the three; the third is None.
    delta : float
        Of the guarantee.
    examples : int
        Examples of a client.
    clip, curvature, local
        As in `plan_sound`.
    modes : sequence of str
        The modes to plan for.

    Returns
    -------
    dict
        The figures by mode and relation, with sensitivity and sigma, and the paper's figure.
    """
    none = jnp.float32(0.0)
    release = Release(jnp.float32(local.step_size), jnp.float32(examples), none, none, none)
    found: dict[str, Any] = {}
    for mode in modes:
        try:
            sensitivity = float(_bound(mode, clip, curvature, local, examples)(release))
        except ConfigError as error:
            found[mode] = {"error": str(error)}
            continue
        releases = local.steps if mode == "every-step" else 1
        found[mode] = {"sensitivity": sensitivity}
        for relation in RELATIONS:
            solved = _solve(epsilon, delta, participations, noise_multiplier, releases, relation)
            found[mode][relation] = solved | {
                "sensitivity": sensitivity,
                "sigma": solved["noise_multiplier"] * sensitivity,
            }
    return {
        "delta": delta,
        "modes": found,
        "paper": _paper_figure(epsilon, delta, participations, examples, clip, curvature, local),
    }


def _solve(
    epsilon: float | None, delta: float, participations: int | None, z: float | None, releases: int, relation: Relation
) -> dict[str, Any]:
    if participations is None and epsilon and z:
        participations = participations_for(epsilon, delta, z, relation) // releases
    elif z is None and epsilon and participations:
        z = noise_multiplier_for(epsilon, delta, participations * releases, relation)
    elif z and participations:
        epsilon = epsilon_of(z, participations * releases, delta, relation)
    return {"epsilon": epsilon, "participations": participations, "noise_multiplier": z}


def _paper_figure(
    epsilon: float | None,
    delta: float,
    participations: int | None,
    examples: int,
    clip: float,
    curvature: Curvature,
    local: LocalPlan,
) -> dict[str, Any]:
    """The noise that Theorems 1 and 2 would add for the same total epsilon, for comparison only."""
    if epsilon is None or participations is None:
        return {"sentence": "The paper's figure needs --epsilon and --participations."}
    try:
        # Theorem 2 uses K, N and T only through p T, the expected participations.
        per_round = paper_round_epsilon(epsilon, local.steps, local.batch_size, examples, 1, 1, participations)
    except ConfigError as error:
        return {"sentence": f"The paper's figure does not exist here: {error}"}
    sensitivity = paper_sensitivity(curvature.weight, local.step_size, local.steps, clip)
    sigma = paper_sigma(sensitivity, per_round, delta)
    return {
        "round_epsilon": per_round,
        "sensitivity": sensitivity,
        "sigma": sigma,
        "noise_multiplier": sigma / sensitivity,
        "sentence": (
            f"The paper (Theorems 1 and 2, add-remove, nominal, not a guarantee): sigma = {sigma:.4g}, that is "
            f"{sigma / sensitivity:.4g} times a sensitivity of {sensitivity:.4g}, for epsilon = {per_round:.4g} in every round."
        ),
    }
