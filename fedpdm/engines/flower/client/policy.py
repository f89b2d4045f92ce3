"""A client's terms, from its own TOML file. A job beyond them is refused by a code; the reason stays in the client's log."""

import math
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from fedpdm.choices import ALGORITHMS, FEATURE_MAPS
from fedpdm.choices.words import DRAWINGS, MODES, PRIVATE_BASIS, Noise, Relation
from fedpdm.config import Config, Section
from fedpdm.config.keys import dotted
from fedpdm.config.names import AlgorithmName, OneOf
from fedpdm.data.basis_files import is_pinned
from fedpdm.data.encoders import encoder_of
from fedpdm.data.features import directions_in, has_public_basis, map_name, options_of, with_basis_chosen
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Refused
from fedpdm.errors import ConfigError
from fedpdm.privacy.plan import Plan
from fedpdm.privacy.sums import Cohort

__all__ = ["Policy", "load_policy", "check_cohort", "check_job", "check_plan"]

DEPLOYED = tuple(mode for mode in MODES if mode != "every-step")  # exact noise cannot be drawn inside of a solver


class BudgetSection(Section):
    epsilon: float = Field(gt=0, description="the most that this client's examples may ever cost, in all jobs together")
    delta: float = Field(gt=0, lt=1)
    relation: Relation = "add-remove"


class JobsSection(Section):
    take: Literal["approved", "within-limits"] = Field(
        default="approved",
        description='"approved": jobs that `fedpdm flower approve` has stored; "within-limits": any job that [allow] and '
        "[limits], which must then name every key, do not forbid",
    )


class AllowSection(Section):
    algorithms: tuple[AlgorithmName, ...] = Field(default_factory=lambda: tuple(ALGORITHMS))
    mechanisms: tuple[Literal["sound", "none"], ...] = Field(
        default=("sound",), description='"none" lets messages leave without any privacy'
    )
    noise: tuple[Noise, ...] = Field(
        default=("secure",), description='"simulation" is for experiments with public data: its noise protects nothing'
    )
    modes: tuple[Annotated[str, OneOf((DEPLOYED,))], ...] = DEPLOYED
    maps: tuple[Annotated[str, OneOf((FEATURE_MAPS,))], ...] = Field(default_factory=lambda: tuple(FEATURE_MAPS))
    bases: tuple[str, ...] = Field(
        default=("none", PRIVATE_BASIS, *DRAWINGS),
        description="drawings, none, private, or sha256:... of a public file, which an approved job may name without an entry",
    )
    encoders: tuple[str, ...] = Field(default=(), description="SHA-256 of public encoders; empty: any in an approved job")
    map_seeds: tuple[int, ...] = Field(default=(), description="seeds of random maps; empty: any in an approved job")

    @field_validator("bases")
    @classmethod
    def _known(cls, bases: tuple[str, ...]) -> tuple[str, ...]:
        known = ("none", PRIVATE_BASIS, *DRAWINGS)
        if wrong := [basis for basis in bases if basis not in known and not is_pinned(basis)]:
            raise ValueError(f"{wrong[0]} is not a basis: expected {', '.join(known)}, or sha256: and 64 hexadecimal digits")
        return bases


class LimitsSection(Section):
    noise_multiplier_min: float = Field(default=1.0, gt=0, description="smallest noise over sensitivity of one participation")
    participations_max: int = Field(default=1000, ge=1, description="most participations in one job")
    rounds_max: int = Field(default=100_000, ge=1)
    steps_max: int = Field(default=1000, ge=1)
    step_size_max: float = Field(default=100.0, gt=0)
    clip_max: float = Field(default=10.0, gt=0)
    radius_max: float = Field(default=100.0, gt=0)
    slots_max: int = Field(default=1_000_000, ge=1)
    fourier_count_max: int = Field(default=20_000, ge=1)
    fourier_bandwidth_min: float = Field(default=1e-3, gt=0)
    fourier_bandwidth_max: float = Field(default=1e3, gt=0)
    basis_size_max: int = Field(default=10_000, ge=1)
    evaluations_max: int = Field(default=100, ge=0, description="evaluations in one job")
    evaluation_noise_multiplier_min: float = Field(default=1.0, gt=0)
    standard_noise_multiplier_min: float = Field(default=1.0, gt=0, description="of the means and deviations before training")
    interval_noise_multiplier_min: float = Field(default=1.0, gt=0, description="of gradients and curvature after training")
    jobs_max: int = Field(default=100, ge=1, description="jobs in the state-dir")
    jobs_per_day: int = Field(default=10, ge=0, description="new jobs that are taken without an operator's approval")
    introductions_per_day: int = Field(default=10_000, ge=1)
    requests_per_day: int = Field(default=10_000, ge=1)
    refusals_per_day: int = Field(default=1000, ge=1)
    bytes_per_day: int = Field(default=10 * 2**30, ge=1, description="of messages that leave")
    disk_bytes_max: int = Field(default=4 * 2**30, ge=2**20, description="of the state-dir")


class LedgerSection(Section):
    seals: str | None = Field(
        default=None,
        description="folder outside of the state-dir for the seal, which reveals an old copy; none: beside the data",
    )


class TimeSection(Section):
    reply_after: float = Field(default=0.0, ge=0, description="seconds from a request to any answer; 0: answer at once")


class AuditSection(Section):
    keep_messages: bool = Field(
        default=False, description="keep requests and answers in the state-dir, for `fedpdm privacy audit --target live`"
    )


class CohortSection(Section):
    """The cohort that this client shares secure sums with (docs/secure-sums.md)."""

    keys: tuple[str, ...] = Field(description="public keys of all members that may be in a sum with this client, its own too")
    size: int = Field(ge=2, description="the fewest members that must be invited")
    colluding: int = Field(ge=0, description="fewest members working with the server that the noise must allow for")
    dropouts: int = Field(ge=0, description="most members that may be missing in a sum")


class Policy(Section):
    """A client's terms. The budget has no default."""

    budget: BudgetSection
    jobs: JobsSection = Field(default_factory=JobsSection)
    allow: AllowSection = Field(default_factory=AllowSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    ledger: LedgerSection = Field(default_factory=LedgerSection)
    time: TimeSection = Field(default_factory=TimeSection)
    audit: AuditSection = Field(default_factory=AuditSection)
    cohort: CohortSection | None = None

    @property
    def seals(self) -> Path | None:
        return Path(self.ledger.seals) if self.ledger.seals else None

    @property
    def takes_offers(self) -> bool:
        return self.jobs.take == "within-limits"


def load_policy(path: Path) -> Policy:
    """Read the policy file.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Policy
        The policy.

    Raises
    ------
    ConfigError
        In one line, if the file is missing or not valid.
    """
    try:
        return _parsed(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"The policy {path} cannot be read: {error.strerror}. Without it a node sends nothing.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The policy {path} is not valid TOML: {error}.") from None


@lru_cache(maxsize=8)
def _parsed(text: str, name: str) -> Policy:
    values = tomllib.loads(text)
    for section in values.values():  # TOML has lists; a policy has tuples
        if isinstance(section, dict):
            section.update({key: tuple(value) for key, value in section.items() if isinstance(value, list)})
    try:
        policy = Policy.model_validate(values)
    except ValidationError as error:
        where = "; ".join(f"{dotted(e['loc'])}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"The policy {name} does not fit: {where}.") from None
    if policy.takes_offers and (missing := _unsaid(policy)):
        raise ConfigError(
            f'The policy {name} takes any job within its limits ([jobs] take = "within-limits"), so it must set all of them; '
            f"these are missing: {', '.join(missing)}."
        )
    return policy


def _unsaid(policy: Policy) -> list[str]:
    parts: tuple[tuple[str, Section], ...] = (("allow", policy.allow), ("limits", policy.limits))
    return [f"{name}.{key}" for name, part in parts for key in type(part).model_fields if key not in part.model_fields_set]


def check_job(policy: Policy, job: Job) -> None:
    """Refuse a job that the policy does not allow. It looks at the job's file alone: it reads no row and takes no memory.

    Parameters
    ----------
    policy, job
        The policy and the job.

    Raises
    ------
    Refused
        With a code of `REFUSALS`.
    """
    allow, limits, config = policy.allow, policy.limits, job.config
    _among("algorithm", config.algorithm.name, allow.algorithms)
    _among("mechanism", config.privacy.mechanism, allow.mechanisms)
    _at_most("rounds", config.rounds.total, limits.rounds_max)
    _at_most("steps", config.local.steps, limits.steps_max)
    _at_most("step-size", config.local.step_size, limits.step_size_max)
    _at_most("radius", config.data.radius or 1.0, limits.radius_max)
    _at_most("slots", job.slots * job.unit_rows, limits.slots_max)
    if config.privacy.mechanism == "sound":
        _among("noise", job.noise, allow.noise)
    _check_map(policy, config, job)
    if job.evaluation is not None:
        _at_most("evaluation", len(job.evaluation.rounds(config.rounds.total)), limits.evaluations_max)
        _at_least("evaluation", job.evaluation.cost_multiplier(config), limits.evaluation_noise_multiplier_min)


def _check_map(policy: Policy, config: Config, job: Job) -> None:
    allow, limits, data = policy.allow, policy.limits, config.data
    name, options = map_name(data.features, job.features), options_of(data)
    _among("map", name, allow.maps)
    basis = data.basis if data.basis == PRIVATE_BASIS else with_basis_chosen(name, options)["basis"]
    if policy.takes_offers or not is_pinned(basis):  # the operator who approved a job has seen the digest in it
        _among("map", basis, allow.bases)
    if basis == PRIVATE_BASIS or has_public_basis(data, job.features):  # "auto" is none of them before raw features
        _at_most("map", directions_in(data), limits.basis_size_max)
    encoder = encoder_of(config)
    if name == "onnx" and (allow.encoders or policy.takes_offers) and encoder not in allow.encoders:
        raise Refused("map", f"The job asks for the encoder {encoder}; this client's policy allows {allow.encoders}.")
    if name == "fourier":
        _at_most("map", options["fourier_count"], limits.fourier_count_max)
        _at_most("map", options["fourier_bandwidth"], limits.fourier_bandwidth_max)
        _at_least("map", options["fourier_bandwidth"], limits.fourier_bandwidth_min)
        seed = options["features_seed"]
        if (allow.map_seeds or policy.takes_offers) and seed not in allow.map_seeds:
            raise Refused("map", f"The job asks for the seed {seed}; this client's policy allows {allow.map_seeds}.")


def check_plan(policy: Policy, plan: Plan, taken: int = 0) -> None:
    """Refuse a mechanism that the policy does not allow. The client itself derived it from the job.

    Parameters
    ----------
    policy, plan
        The policy, and the plan of the job.
    taken : int
        The client's participations in this job so far.

    Raises
    ------
    Refused
        With a code of `REFUSALS`.
    """
    limits = policy.limits
    _among("mode", plan.mode, policy.allow.modes)
    _at_most("clip", plan.clip, limits.clip_max)
    _at_least("noise", plan.cost_multiplier(), limits.noise_multiplier_min)
    if plan.standard_multiplier:
        _at_least("noise", plan.standard_cost_multiplier(), limits.standard_noise_multiplier_min)
    if plan.interval_multiplier:
        _at_least("noise", plan.interval_cost_multiplier(), limits.interval_noise_multiplier_min)
    _at_most("participations", taken + 1, min(plan.participations, limits.participations_max))


def check_cohort(policy: Policy, cohort: Cohort) -> None:
    """Refuse a cohort that the policy does not approve; every invitation is checked for its members.

    Parameters
    ----------
    policy
        Of the client.
    cohort
        Of the job.
    """
    if policy.cohort is None:
        raise Refused(
            "roster", "The job is for secure sums, and this client's policy has no [cohort]: list the members' public keys."
        )
    if len(policy.cohort.keys) < cohort.members:
        raise Refused(
            "roster",
            f"The cohort has {cohort.members} members, and this client's policy lists {len(policy.cohort.keys)} keys: add the "
            "others' (`fedpdm flower identity STATE-DIR` prints one).",
        )
    _at_least("roster", cohort.members, policy.cohort.size)
    _at_least("roster", cohort.colluding, policy.cohort.colluding)
    _at_most("roster", cohort.dropouts, policy.cohort.dropouts)


def _among(name: str, asked: str, allowed: tuple[Any, ...]) -> None:
    if asked not in allowed:
        raise Refused(name, f"The job asks for {asked!r}; this client's policy allows {', '.join(allowed)}.")


def _at_most(name: str, asked: float, most: float) -> None:
    if not asked <= most:
        raise Refused(name, f"The job asks for {asked:g}; this client's policy allows at most {most:g}.")


def _at_least(name: str, asked: float, least: float) -> None:
    if not (asked >= least and not math.isnan(asked)):
        raise Refused(name, f"The job asks for {asked:g}; this client's policy allows no less than {least:g}.")
