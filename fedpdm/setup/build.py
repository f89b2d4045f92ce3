"""From settings to problem, algorithm, links and mechanism."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.algorithms import Algorithm, LocalPlan
from fedpdm.choices import AGGREGATES, ALGORITHMS, LOSSES, PENALTIES
from fedpdm.choices.words import PRIVATE_BASIS
from fedpdm.compression.links import Links, support_radius
from fedpdm.config import Config
from fedpdm.data import Federation
from fedpdm.data.prepare import radius_of
from fedpdm.data.ragged import real_rows
from fedpdm.errors import ConfigError
from fedpdm.privacy.interval_release import LEAST_CLIENTS
from fedpdm.privacy.mechanism import paper
from fedpdm.privacy.plan import Plan, choose_mode, plan_sound
from fedpdm.privacy.published import paper_round_epsilon
from fedpdm.privacy.sensitivity import Curvature
from fedpdm.privacy.shared_noise import Sharing
from fedpdm.problem import Loss, Problem, penalties
from fedpdm.problem.penalties import Penalty
from fedpdm.rounds import Setup
from fedpdm.setup.budget import after_schema, interval_multiplier, releases_first, standard_multiplier, training_share
from fedpdm.setup.class_weights import weighted_loss
from fedpdm.setup.cohorts import cohort_of, even_share, require_client_unit, sharing_of

__all__ = ["Crowd", "build_setup", "plain_setup", "with_sound_mechanism", "loss_factory"]

PAPER_CLIP = 1.0  # the G of Theorem 1; the paper gives no value

MOMENT_ROWS = 2**16  # rows whose products are taken at once, in float64

RIDGE = 1e-3  # share of the mean eigenvalue that is added to the second moments

CURVATURE_FREE = ("every-step", "linearised", "batch-clipped")  # modes that need only a clip of the loss's gradients

LossFactory = Callable[..., Loss]


def build_penalty(config: Config, clients: int) -> Penalty:
    """Make the penalty h on the mean objective: with penalty_scale "sum" it is divided by the number of clients."""
    p = config.problem
    penalty = PENALTIES.row(p.penalty).build(p)
    if p.penalty == "none":
        return penalty
    # Also by 1, so that both scales share one compiled program
    return penalties.scaled(penalty, 1 / clients if p.penalty_scale == "sum" else 1.0)


def build_algorithm(config: Config, metric: Array | None = None) -> Algorithm:
    """Make the algorithm with its options, and with the metric and the aggregate where they are not the plain ones."""
    row, chosen = ALGORITHMS.row(config.algorithm.name), AGGREGATES.row(config.algorithm.aggregate)
    options = row.arguments(config.algorithm) | ({} if metric is None else {"metric": metric})
    if chosen.name != "mean":
        if "aggregate" not in inspect.signature(row.factory()).parameters:
            raise ConfigError(
                f"algorithm.aggregate={chosen.name} does not fit algorithm.name={row.name}, whose factory takes no "
                "aggregate: use mean, or give it that argument (docs/developer/add-an-algorithm.md)."
            )
        options["aggregate"] = chosen.build(config.algorithm)
    return row.factory()(**options)


def loss_factory(config: Config) -> LossFactory:
    """Return the factory of the settings' loss; a loss that contradicts its row is refused.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    callable
        `clip -> Loss`.
    """
    row = LOSSES.row(config.problem.loss)
    make = functools.partial(row.factory(), **row.arguments(config.problem))
    if (found := make().target) != row.target:
        raise ConfigError(f"The row of the loss {row.name!r} says target={row.target!r}, its Loss {found!r}: change one.")
    return make


def build_setup(
    config: Config, federation: Federation, loss: LossFactory | None = None, penalty: Penalty | None = None
) -> tuple[Setup, Plan | None]:
    """Build problem, algorithm, local work and mechanism from resolved settings.

    Parameters
    ----------
    config : Config
        The settings, resolved (`fedpdm.setup.resolve`).
    federation : Federation
        The clients' examples.
    loss, penalty : optional
        A custom loss (see `fedpdm.problem.custom_model`) or penalty, which replaces the one of the settings.

    Returns
    -------
    Setup, Plan or None
        The setup, and the plan of the sound mechanism.
    """
    if not config.rounds.participants:
        raise ConfigError("rounds.participants=0 stands for all clients: resolve the settings first (fedpdm.setup.resolve).")
    largest = lambda: float(np.linalg.norm(real_rows(federation.features, federation.sizes), axis=1).max())  # noqa: E731
    make_loss = weighted_loss(config, loss or loss_factory(config), federation)
    if loss and config.problem.class_weights is not None:
        raise ConfigError("problem.class_weights is for the losses of this package: weigh the examples in your own loss.")
    needs = {"local.solver=newton": config.local.solver == "newton", "data.standardise=true": config.data.standardise}
    needs['data.basis="private"'] = config.data.basis == PRIVATE_BASIS
    for setting in (setting for setting, yes in needs.items() if yes and make_loss().slopes is None):
        raise ConfigError(f"{setting} needs a linear model, which {make_loss().name!r} is not: remove it.")
    metric = moments(federation) if config.algorithm.metric == "moments" else None
    setup = plain_setup(config, federation.clients, largest, make_loss, penalty, metric)
    if setup.links.has_support and setup.problem.loss.slopes is None:
        raise ConfigError(
            f"compression.kind={config.compression.kind} needs a linear model, which {setup.problem.loss.name!r} is not."
        )
    if config.privacy.mechanism == "paper":
        return with_paper_mechanism(config, setup, federation), None
    if config.privacy.mechanism == "sound":
        cost = federation.schema.cost if federation.schema else None
        first = setup.problem.loss.initial
        size = first().size if first else federation.classes * federation.features.shape[2]
        crowd = Crowd(federation.slots, setup.links.count(size) if setup.links.has_support else size)
        unit = unit_of(config, federation)
        if config.metrics.intervals:
            _require_intervals(config, federation)
        if config.privacy.unit == "client" and cost is not None:
            raise ConfigError(
                'The schema was inferred from the rows for a guarantee about one example, not for privacy.unit="client": '
                "write one by hand (data.schema_file)."
            )
        setup, plan = with_sound_mechanism(after_schema(config, cost), setup, int(federation.sizes.min()), make_loss, crowd)
        plan = plan._replace(unit=unit)
        return setup, plan._replace(before=(cost.epsilon, cost.delta)) if cost else plan
    return setup, None


def _require_intervals(config: Config, federation: Federation) -> None:
    """Refuse intervals that could not be had, before anything is spent on them."""
    p, remedy = config.privacy, "or set metrics.intervals=false"
    if federation.classes > 2:
        raise ConfigError(
            "metrics.intervals=true with privacy is for a number, a time or two classes. The curvature of the "
            f"{federation.classes} classes here has {federation.classes - 1} times as many directions, and noise hides more of "
            f"them. Use two classes, {remedy}."
        )
    if p.unit == "client":
        raise ConfigError(f'metrics.intervals=true protects one example, not privacy.unit="client": change the unit, {remedy}.')
    if p.trust == "cohorts" and p.clients_per_unit > 1:
        raise ConfigError(
            f'metrics.intervals=true with privacy.trust="cohorts" needs persons with rows at one client, not at '
            f"privacy.clients_per_unit={p.clients_per_unit}: use trust=local, {remedy}."
        )
    size = cohort_of(config, federation.clients).members if p.trust == "cohorts" else 1
    if (seen := federation.clients // size) < LEAST_CLIENTS:
        who, way = ("clients", "add clients") if size == 1 else (f"cohorts of {size}", "lower cohorts.size")
        raise ConfigError(
            f"metrics.intervals=true with privacy takes the spread between at least {LEAST_CLIENTS} {who.split()[0]}, and here "
            f"are {seen} {who}: {way}, {remedy}."
        )


def unit_of(config: Config, federation: Federation) -> str | None:
    """Return the name of the guarantee's unit, if it is not one example."""
    most = config.privacy.clients_per_unit
    unit = federation.schema.unit_column if federation.schema else None
    if unit is None:
        if most > 1:
            raise ConfigError(
                f"privacy.clients_per_unit={most} counts clients that hold rows of one person, but no column names persons: "
                "set data.unit_column (--unit), or remove it."
            )
        return None
    if (found := federation.clients_per_person) > most:
        raise ConfigError(
            f"One {unit} has rows at {found} clients, but privacy.clients_per_unit={most}: set a public limit of at least that "
            f"(--set privacy.clients_per_unit={found}, for {found**0.5:.2g} times the noise), or remove rows."
        )
    return unit


def plain_setup(
    config: Config,
    clients: int,
    largest_norm: Callable[[], float],
    make_loss: LossFactory | None = None,
    penalty: Penalty | None = None,
    metric: Array | None = None,
) -> Setup:
    """Build problem, algorithm and local work, without a mechanism.

    Parameters
    ----------
    config, clients
        The settings, and the number of clients.
    largest_norm : callable
        Returns the largest norm of an example's features.
    make_loss, penalty : optional
        Replace those of the settings.
    metric : Array, optional
        The metric of the proximal term.

    Returns
    -------
    Setup
        The setup.
    """
    local, algorithm, p = LocalPlan(**config.local.model_dump()), build_algorithm(config, metric), config.problem
    make_loss = make_loss or loss_factory(config)
    if local.solver == "newton" and not algorithm.weight > p.beta / 2:
        raise ConfigError(
            'local.solver="newton" needs a strongly convex local problem: a proximal weight above '
            f"problem.beta/2={p.beta / 2:g}, not {algorithm.weight:g}."
        )
    problem = Problem(make_loss(), penalty or build_penalty(config, clients), p.beta, p.penalty_by)
    return Setup(problem, algorithm, local, links=build_links(config, largest_norm))


def moments(federation: Federation) -> Array:
    """The mean of a a^T over all clients' rows, plus a little of the identity, which makes it safe to invert."""
    rows = real_rows(federation.features, federation.sizes)
    products = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), MOMENT_ROWS):
        part = rows[start : start + MOMENT_ROWS].astype(np.float64)
        products += part.T @ part / len(rows)
    return jnp.asarray(products + RIDGE * np.trace(products) / len(products) * np.eye(len(products)), jnp.float32)


def build_links(config: Config, largest_norm: Callable[[], float]) -> Links:
    """Make the links. Without a bound on the features' norms, and without a mechanism, the largest norm counts as the bound."""
    c = config.compression
    links = Links(**c.model_dump())
    if not links.has_support:
        return links
    # a mechanism's bound must not come from rows; standardised ones are cut to norm 1
    radius = radius_of(config) or (1.0 if config.privacy.mechanism == "sound" else largest_norm())
    return links._replace(radius=support_radius(c.kind, c.uplink, radius))


def with_paper_mechanism(config: Config, setup: Setup, federation: Federation) -> Setup:
    """Add the mechanism of Theorems 1 and 2; the latter needs Q b/|D_i| < 1 for every client."""
    p, r, local, smallest = config.privacy, config.rounds, setup.local, int(federation.sizes.min())
    paper_round_epsilon(
        p.epsilon or math.inf, local.steps, local.batch_size, smallest, r.participants, federation.clients, r.total
    )
    clip = p.clip or PAPER_CLIP
    privacy = paper(
        rho=setup.algorithm.weight,
        clip=clip,
        epsilon=p.epsilon or math.inf,
        delta=p.delta,
        batch_size=local.batch_size,
        share=config.rounds.participants / federation.clients,
        rounds=config.rounds.total,
    )
    return setup._replace(local=local._replace(batch_clip=clip), privacy=privacy)


class Crowd(NamedTuple):
    """Facts about all clients that cohorts need."""

    sizes: np.ndarray  # public
    dimension: int  # coordinates of a contribution


def with_sound_mechanism(
    config: Config, setup: Setup, smallest_client: int, make_loss: LossFactory, crowd: Crowd | None = None
) -> tuple[Setup, Plan]:
    """Add the sound mechanism: clip, noise and participations from the budget alone.

    Parameters
    ----------
    config, setup
        The settings, and the setup without a mechanism.
    smallest_client : int
        The fewest examples of a client.
    make_loss : callable
        `clip -> Loss`.
    crowd : Crowd, optional
        Facts about all clients; needed if cohorts share the noise.

    Returns
    -------
    Setup, Plan
        The setup with its mechanism, and the plan.
    """
    p, radius = config.privacy, radius_of(config) or 1.0
    if p.unit == "client":
        require_client_unit(config)
        mode = "client"
    else:
        mode = choose_mode(setup.local, p.mode)
    if setup.problem.penalty_by == "subgradient" and mode not in ("linearised", "every-step", "client"):
        raise ConfigError(
            'problem.penalty_by="subgradient" puts steps that jump at zero into the local solve, for which '
            f'privacy.mode={mode!r} has no bound: use problem.penalty_by="prox", or privacy.mode="linearised" or "every-step".'
        )
    natural = make_loss(clip=1.0)
    own = natural.gradient_bound(radius) if math.isfinite(natural.smoothness(radius)) else math.inf
    if math.isinf(own):
        require_clip(setup.problem.loss.name, p.clip, mode)
    clip = min(p.clip or own / 2, own)
    seen = setup.links.radius if setup.links.has_support else radius
    if mode == "batch-clipped":
        setup = setup._replace(local=setup.local._replace(batch_clip=clip))
    elif mode != "client":
        loss = make_loss(clip=clip / own if math.isfinite(own) else clip)
        setup = setup._replace(
            problem=setup.problem._replace(loss=loss), local=setup.local._replace(linearised=mode == "linearised")
        )
        clip *= seen / radius  # the bound on the part of the gradient within the support
    sharing = _sharing(config, crowd, mode)
    share = even_share(config, sharing.cohort if sharing else None)
    plan = plan_sound(
        epsilon=p.epsilon or math.inf,
        delta=p.delta,
        relation=p.relation,
        participations=p.participations or share,
        mode=mode,
        clip=clip,
        curvature=Curvature(setup.algorithm.weight, setup.problem.loss.smoothness(seen), config.problem.beta),
        local=setup.local,
        smallest_client=smallest_client,
        budget_share=training_share(config),
        sharing=sharing,
        clients_per_unit=p.clients_per_unit,
    )
    if releases_first(config):
        plan = plan._replace(standard_multiplier=standard_multiplier(config))
    if config.metrics.intervals:
        plan = plan._replace(interval_multiplier=interval_multiplier(config))
    return setup._replace(privacy=plan.privacy), plan


def _sharing(config: Config, crowd: Crowd | None, mode: str) -> Sharing | None:
    if config.privacy.trust == "local":
        return None
    if crowd is None:
        raise ConfigError("privacy.trust=cohorts is not for this engine: use `fedpdm run`, or `fedpdm flower demo --cohort`.")
    return sharing_of(config, crowd.sizes, crowd.dimension, mode)


def require_clip(loss: str, clip: float | None, mode: str) -> None:
    """Refuse modes without a proof for a loss that has a clip on each example's gradient and no other known property."""
    if mode not in (*CURVATURE_FREE, "client"):
        raise ConfigError(
            f"privacy.mode={mode!r} needs the curvature of the loss, which is unknown for {loss!r} with clipped gradients: set "
            f"privacy.mode to one of {', '.join(CURVATURE_FREE)} (and local.batch_size=0 for the first two)."
        )
    if clip is None:
        raise ConfigError(f"Nothing bounds one example's gradient of {loss!r}: set privacy.clip, for instance 1.0.")
