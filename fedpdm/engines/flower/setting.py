"""From settings to what client and server agree on, without anybody's data."""

import numpy as np

from fedpdm.config import Config
from fedpdm.data.prepare import radius_of
from fedpdm.engines.flower.protocol import Refused
from fedpdm.errors import ConfigError
from fedpdm.privacy.plan import Plan
from fedpdm.rounds import Setup
from fedpdm.setup.build import Crowd, loss_factory, plain_setup, with_sound_mechanism
from fedpdm.setup.class_weights import weighted_loss

__all__ = ["check_bounds", "deployed_setup"]

# What a job may ask of a node. Beyond it, numbers overflow or take a node's memory, time or disk.
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
    """Refuse settings that no deployment needs and that could harm a node, whatever its policy says."""
    for key, (least, most) in BOUNDS.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(config, section), name, None)  # an option of what was not chosen is not there
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{key}={value!r:.40} is out of bounds: a deployment takes {least:g} to {most:g}.")


def deployed_setup(config: Config, examples: int, dimension: int = 0) -> tuple[Setup, Plan | None]:
    """Problem, algorithm, local work and mechanism for clients with so many examples, and a model of so many coordinates.

    Some settings of the simulator have no place in a deployment; they are refused by name, with the way out.
    """
    if config.privacy.mechanism == "paper":
        raise Refused("mechanism", 'privacy.mechanism="paper" guarantees nothing: it is for simulation. Use "sound".')
    if config.privacy.mode == "every-step":
        raise Refused(
            "mode",
            'privacy.mode="every-step" draws noise inside the local solver, where exact noise is not to be had: use "auto".',
        )
    if config.data.standardise or config.algorithm.metric != "plain" or config.rounds.tolerance:
        raise Refused(
            "settings",
            "data.standardise, algorithm.metric and rounds.tolerance need the rows of all clients in one place: set them to "
            "false, plain and 0, and data.scaling to bounded.",
        )
    if config.problem.weights != "clients":
        raise Refused("settings", 'problem.weights="rows" is for simulation: use "clients".')
    if config.problem.penalty_by == "subgradient":
        raise Refused("settings", 'problem.penalty_by="subgradient" is for simulation: use "prox".')
    if config.privacy.clients_per_unit > 1:
        raise Refused(
            "settings", "privacy.clients_per_unit is for simulation, as no node knows about the others: leave it out."
        )
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
        return with_sound_mechanism(config, setup, examples, make_loss, crowd if dimension else None)
    return setup, None
