"""What a client agrees to, from a TOML file of its own; a request beyond it is refused by name, with the reason."""

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from fedpdm.choices import ALGORITHMS
from fedpdm.config import Config, Section
from fedpdm.config.keys import dotted
from fedpdm.config.names import AlgorithmName
from fedpdm.engines.flower.protocol import Refused
from fedpdm.errors import ConfigError
from fedpdm.privacy.plan import Plan

__all__ = ["Policy", "load_policy", "check", "check_plan"]


class Budget(Section):
    epsilon: float = Field(gt=0, description="all that this client's examples may ever cost, in all jobs together")
    delta: float = Field(gt=0, lt=1)
    relation: Literal["add-remove", "replace-one"] = "add-remove"


class Allow(Section):
    algorithms: tuple[AlgorithmName, ...] = Field(default_factory=lambda: tuple(ALGORITHMS))
    mechanisms: tuple[Literal["sound", "none"], ...] = Field(
        default=("sound",), description='"none" lets messages leave without any privacy'
    )
    noise: tuple[Literal["secure", "simulation"], ...] = Field(
        default=("secure",), description='"simulation" is for experiments with public data: its noise protects nothing'
    )


class Limits(Section):
    noise_multiplier_min: float = Field(default=1.0, gt=0, description="least noise over sensitivity of one participation")
    participations_max: int = Field(default=1000, ge=1, description="most participations in one job")
    steps_max: int = Field(default=1000, ge=1)
    step_size_max: float = Field(default=100.0, gt=0)
    clip_max: float = Field(default=10.0, gt=0)


class Books(Section):
    seals: str | None = Field(
        default=None,
        description="folder outside of the state-dir for the seal, which shows an old copy; none: beside the data",
    )


class Time(Section):
    reply_after: float = Field(default=0.0, ge=0, description="seconds from a request to its answer, whatever it is; 0: none")


class Policy(Section):
    """A client's terms. The budget has no default."""

    budget: Budget
    allow: Allow = Field(default_factory=Allow)
    limits: Limits = Field(default_factory=Limits)
    ledger: Books = Field(default_factory=Books)
    time: Time = Field(default_factory=Time)

    @property
    def seals(self) -> Path | None:
        return Path(self.ledger.seals) if self.ledger.seals else None


def load_policy(path: Path) -> Policy:
    """Read the policy file; whatever is wrong with it is a ConfigError of one line."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The policy {path} cannot be read: {error.strerror}. Without a policy nothing is sent.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The policy {path} is not valid TOML: {error}.") from None
    for section in values.values():  # TOML has lists; a policy keeps them as they are
        if isinstance(section, dict):
            section.update({key: tuple(value) for key, value in section.items() if isinstance(value, list)})
    try:
        return Policy.model_validate(values)
    except ValidationError as error:
        where = "; ".join(f"{dotted(e['loc'])}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"The policy {path} does not fit: {where}.") from None


def check(policy: Policy, config: Config, noise: str, taken: int) -> None:
    """Refuse a request that the policy does not allow; `taken` counts the client's participations in this job so far."""
    allow, limits, local = policy.allow, policy.limits, config.local
    _among("algorithm", config.algorithm.name, allow.algorithms)
    _among("mechanism", config.privacy.mechanism, allow.mechanisms)
    _at_most("steps", local.steps, limits.steps_max)
    _at_most("step-size", local.step_size, limits.step_size_max)
    _at_most("participations", taken + 1, limits.participations_max)
    if config.privacy.mechanism == "sound":
        _among("noise", noise, allow.noise)


def check_plan(policy: Policy, plan: Plan, taken: int) -> None:
    """Refuse a mechanism that the policy does not allow: the one that the client itself derived from the request."""
    least = policy.limits.noise_multiplier_min
    _at_most("clip", plan.clip, policy.limits.clip_max)
    if not plan.cost_multiplier() >= least:
        raise Refused(
            "noise",
            f"epsilon = {plan.epsilon:g} over {plan.participations} participations is noise of {plan.cost_multiplier():.4g} "
            f"times the sensitivity; this client's policy asks for at least {least:g}.",
        )
    if taken >= plan.participations:
        raise Refused("participations", f"This job is for {plan.participations} participations, which this client has made.")


def _among(name: str, asked: str, allowed: tuple[str, ...]) -> None:
    if asked not in allowed:
        raise Refused(name, f"{asked!r} was asked for; this client's policy allows {', '.join(allowed)}.")


def _at_most(name: str, asked: float, most: float) -> None:
    if not asked <= most:
        raise Refused(name, f"{asked:g} was asked for; this client's policy allows at most {most:g}.")
