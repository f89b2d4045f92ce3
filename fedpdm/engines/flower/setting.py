"""From settings to what client and server agree on, without anybody's data."""

from fedpdm.config import Config
from fedpdm.data.prepare import radius_of
from fedpdm.engines.flower.protocol import Refused
from fedpdm.privacy.plan import Plan
from fedpdm.rounds import Setup
from fedpdm.setup.build import loss_factory, plain_setup, with_sound_mechanism

__all__ = ["agreed", "deployed_setup"]


def agreed(config: Config) -> Config:
    """The settings with the number of participants that 0 stands for."""
    participants = config.rounds.participants or config.data.clients
    return config.model_copy(update={"rounds": config.rounds.model_copy(update={"participants": participants})})


def deployed_setup(config: Config, examples: int) -> tuple[Setup, Plan | None]:
    """Problem, algorithm, local work and mechanism for a client with so many examples.

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
            "false, plain and 0.",
        )
    if config.problem.weights != "clients":
        raise Refused("settings", 'problem.weights="rows" is for simulation: use "clients".')
    if config.problem.penalty_by == "subgradient":
        raise Refused("settings", 'problem.penalty_by="subgradient" is for simulation: use "prox".')
    if config.compression.downlink_kind == "difference":
        raise Refused("compression", 'compression.downlink_kind="difference" is for simulation: use "model".')

    def no_radius() -> float:
        raise Refused(
            "settings", f"compression.kind={config.compression.kind!r} needs a data.radius: set it, for instance 1.0."
        )

    setup = plain_setup(config, config.data.clients, lambda: radius_of(config) or no_radius())
    if config.privacy.mechanism == "sound":
        return with_sound_mechanism(config, setup, examples, loss_factory(config))
    return setup, None
