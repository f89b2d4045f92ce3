"""From settings to the agreement of client and server, without any data."""

import numpy as np

from fedpdm.config import Config
from fedpdm.data.prepare import radius_of
from fedpdm.engines.flower.protocol import Refused
from fedpdm.errors import ConfigError
from fedpdm.privacy.first_release import FirstRelease
from fedpdm.privacy.plan import Plan
from fedpdm.privacy.sums import choose_lattice, own_share_multiplier
from fedpdm.rounds import Setup
from fedpdm.setup.budget import releases_first
from fedpdm.setup.build import Crowd, loss_factory, plain_setup, with_sound_mechanism
from fedpdm.setup.class_weights import weighted_loss
from fedpdm.setup.cohorts import most_members

__all__ = ["check_bounds", "deployed_setup"]

# The limits of a job. Beyond them, numbers overflow or take a node's memory, time or disk.
BOUNDS: dict[str, tuple[float, float]] = {
    "data.clients": (1, 1_000_000),
    "data.radius": (1e-3, 1e3),
    "data.fourier_count": (1, 100_000),
    "data.fourier_bandwidth": (1e-3, 1e3),
    "data.basis_size": (1, 100_000),
    "data.features_seed": (0, 2**63 - 1),
    "data.partition_seed": (0, 2**63 - 1),
    "problem.beta": (0, 1e3),
    "problem.gamma": (0, 1e6),
    "problem.huber_threshold": (1e-4, 1e3),
    "problem.quantile_smoothing": (1e-4, 1e3),
    "algorithm.rho": (1e-6, 1e6),
    "algorithm.mu": (0, 1e6),
    "algorithm.alpha": (1e-6, 1e6),
    "local.steps": (1, 100_000),
    "local.batch_size": (0, 10_000_000),
    "local.step_size": (1e-9, 1e6),
    "local.tolerance": (0, 1e6),
    "rounds.total": (1, 1_000_000),
    "privacy.epsilon": (1e-6, 1e4),
    "privacy.delta": (1e-15, 0.1),
    "privacy.clip": (1e-6, 1e3),
    "privacy.participations": (0, 1_000_000),
}


def check_bounds(config: Config) -> None:
    """Refuse settings that no deployment needs and that could harm a node with any policy.

    Parameters
    ----------
    config : Config
        The settings.

    Raises
    ------
    ConfigError
        With the limits of the setting.
    """
    for key, (least, most) in BOUNDS.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(config, section), name, None)  # options of other choices are missing
        if value is not None and not isinstance(value, str) and not least <= value <= most:
            raise ConfigError(f"{key}={value!r:.40} is out of bounds: a deployment takes {least:g} to {most:g}.")


def deployed_setup(
    config: Config, examples: int, dimension: int = 0, unit: str | None = None, first: FirstRelease | None = None
) -> tuple[Setup, Plan | None]:
    """Build problem, algorithm, local work and mechanism of a deployment.

    Parameters
    ----------
    config : Config
        The settings.
    examples : int
        The public number of examples, or persons, of the client that has the fewest.
    dimension : int
        Coordinates of the model; 0: cohorts are refused.
    unit : str or None
        What the guarantee is for all rows of, if not for one row.
    first : FirstRelease, optional
        The release before training.

    Returns
    -------
    Setup, Plan or None
        The setup, and the plan of the sound mechanism.

    Raises
    ------
    Refused
        For settings that only a simulation has; it names a replacement.
    """
    if config.privacy.mechanism == "paper":
        raise Refused("mechanism", 'privacy.mechanism="paper" guarantees nothing: it is for simulation. Use "sound".')
    if config.privacy.mode == "every-step":
        raise Refused(
            "mode",
            'privacy.mode="every-step" draws noise inside the local solver, where exact noise is not possible: use "auto".',
        )
    if config.algorithm.metric != "plain" or config.rounds.tolerance:
        raise Refused(
            "settings",
            "algorithm.metric and rounds.tolerance need the rows of all clients in one place: set them to plain and 0.",
        )
    if releases_first(config) and config.privacy.mechanism != "sound":
        raise Refused(
            "settings", "data.standardise or a private basis without noise shows rows: leave them out, or set an epsilon."
        )
    if config.privacy.trust == "cohorts" and (config.data.standardise or config.problem.weights == "rows"):
        raise Refused(
            "settings",
            'A deployed cohort neither standardises nor knows problem.weights="rows": set data.standardise=false, '
            'data.scaling=bounded and problem.weights="clients"; or set privacy.trust="local", which has both '
            "(docs/secure-sums.md has the reasons).",
        )
    if config.privacy.trust == "cohorts" and releases_first(config) and config.cohorts.budget != "sum":
        raise Refused(
            "settings",
            'A private basis of a deployed cohort comes from a sum whose noise the members share: set cohorts.budget="sum", or '
            "data.basis=none.",
        )
    if config.privacy.trust == "cohorts" and config.privacy.clients_per_unit > 1:
        raise Refused(
            "settings",
            f"privacy.clients_per_unit={config.privacy.clients_per_unit}: in a deployed cohort a person has rows at one member "
            'only, because the parts of several members add up in the sum: set it to 1, or set privacy.trust="local".',
        )
    if config.attack.kind != "none":
        raise Refused("settings", "attack.kind is for simulation: set it to none, and attack.clients to 0.")
    if config.problem.sparsity == "noise":
        raise Refused("settings", 'problem.sparsity="noise" is for simulation: set a share or a number of weights.')
    if config.problem.penalty_by == "subgradient":
        raise Refused("settings", 'problem.penalty_by="subgradient" is for simulation: use "prox".')
    if config.privacy.clients_per_unit > 1 and unit is None:
        raise Refused("settings", "privacy.clients_per_unit needs a unit_column in the schema: remove it.")
    if config.compression.downlink_kind == "difference":
        raise Refused("settings", 'compression.downlink_kind="difference" is for simulation: use "model".')

    def no_radius() -> float:
        raise Refused(
            "settings", f"compression.kind={config.compression.kind!r} needs a data.radius: set it, for instance 1.0."
        )

    make_loss = weighted_loss(config, loss_factory(config))
    setup = plain_setup(config, config.data.clients, lambda: radius_of(config) or no_radius(), make_loss)
    if config.privacy.mechanism == "sound":
        crowd = Crowd(np.full(config.data.clients, float(examples)), dimension)
        setup, plan = with_sound_mechanism(config, setup, examples, make_loss, crowd if dimension else None)
        if plan.shared is not None and first is not None:
            size, bound, cohort = first.size, first.bound / examples, plan.shared.cohort
            noise, largest = (plan.standard_multiplier, bound, size), most_members(config, cohort)
            lattice = choose_lattice(config.cohorts.bits, first.bound, *noise, cohort, largest)
            steps = bound * lattice.scale / 2  # that of the members' agreement is at least half as fine
            z = own_share_multiplier(plan.standard_multiplier, size, cohort.honest, steps)
            plan = plan._replace(shared=plan.shared.with_own_release(z, plan.delta, plan.relation))
        return setup, plan._replace(unit=unit)
    return setup, None
