"""A job: the whole agreement before training, in one file with one digest. Server and clients hold the same file.

The file `job.toml` has the full settings, the public number of slots, the names of features and classes, the schema of a table,
and the evaluation by clients. A request contains only the digest, so a server cannot change a setting.
"""

import re
import tomllib
import uuid
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomlkit
from pydantic import Field, ValidationError, model_validator

from fedpdm.choices import is_table
from fedpdm.choices.words import PRIVATE_BASIS, Noise
from fedpdm.config import Config, Section
from fedpdm.config.keys import dotted
from fedpdm.data.basis_files import is_file
from fedpdm.data.encoders import encoder_of
from fedpdm.data.features import directions_in, has_public_basis, make_map, options_of
from fedpdm.data.schema import Schema
from fedpdm.engines.flower.job_evaluation import Evaluation
from fedpdm.engines.flower.job_schema import digest_of
from fedpdm.engines.flower.protocol import LONGEST_OFFER
from fedpdm.engines.flower.setting import check_bounds, deployed_setup
from fedpdm.errors import ConfigError
from fedpdm.privacy.basis_release import basis_release
from fedpdm.privacy.first_release import FirstRelease
from fedpdm.privacy.interval_release import LEAST_CLIENTS
from fedpdm.privacy.plan import Plan
from fedpdm.privacy.standard_release import means_release
from fedpdm.rounds import Setup
from fedpdm.setup.resolve import resolve, with_loss

__all__ = ["Evaluation", "Job", "make_job", "parse_job", "read_job", "job_toml", "check_size"]

MOST_SLOTS = 10_000_000
HEAVIEST = 1e3  # weight of a class
MOST_FEATURES = 1000  # of a model with intervals: its curvature has a number for every pair
DEEPEST_KEY = 20
# A key of n parts costs tomllib n^2 of time and memory: 40 kilobytes of a.a.a took half a minute. Linear in the text.
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}){{{DEEPEST_KEY}}}")
MOST_NUMBERS = 2**28  # slots * features: a gigabyte of float32


class Job(Section):
    """One training, as every participant holds it. `digest` names it."""

    format: Literal[1] = Field(default=1, description="of this file")
    id: str = Field(pattern=r"^[0-9a-f]{32}$", description="drawn when the job was made: no two jobs are the same")
    noise: Noise = Field(default="secure", description='"simulation": for public data, protects nothing')
    slots: int = Field(ge=1, le=MOST_SLOTS, description="public number of places for rows at every client; n of every bound")
    client_slots: list[Annotated[int, Field(ge=1, le=MOST_SLOTS)]] = Field(
        default_factory=list, description="the same for client 0, 1, ..., where they differ; slots is then the largest"
    )
    unit_rows: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="most rows of one person, if the table names persons; more are left out. Of a time: its bands",
    )
    classes: list[str] = Field(
        min_length=1, max_length=10_000, description="names of the labels 0, 1, ...; or of the one number to learn"
    )
    features: list[str] = Field(min_length=1, max_length=1_000_000, description="the columns before the public map")
    settings: Config
    table: Schema | None = None
    evaluation: Evaluation | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if is_table(self.settings.data.name):
            raise ValueError(f"data.name={self.settings.data.name} is a file, but a node reads only its own data-path")
        basis = self.settings.data.basis
        if is_file(basis):
            raise ValueError(
                f"data.basis={basis} is a file, and a job contains no files: `fedpdm data basis` stores it under its digest"
            )
        if self.settings.data.features == "onnx" and not re.fullmatch(r"[0-9a-f]{64}", encoder_of(self.settings)):
            raise ValueError("data.encoder_digest must be the SHA-256 of the encoder, 64 digits: all nodes use the same file")
        if self.numeric != (self.table is not None and self.table.target is not None):
            raise ValueError("one class stands for a number, whose bounds are in [table.target]: there must be both or neither")
        if self.kind == "time" and self.settings.privacy.trust == "cohorts":
            raise ValueError('a time to an event is not for deployed cohorts yet: set privacy.trust="local"')
        if self.settings.data.basis_size == "auto" and (
            basis == PRIVATE_BASIS or has_public_basis(self.settings.data, self.features)
        ):
            raise ValueError("data.basis_size=auto is for simulation: a job names its number (`fedpdm flower init` writes it)")
        if self.settings.problem.loss == "auto":
            raise ValueError("problem.loss=auto is for simulation: a job names its loss")
        with_loss(self.settings, self.kind)
        if self.table is not None and (tuple(self.classes), tuple(self.features)) != (
            self.table.outputs,
            self.table.feature_names,
        ):
            raise ValueError("classes and features differ from those of the schema in [table]")
        weights = self.settings.problem.class_weights
        if isinstance(weights, list) and (len(weights) != len(self.classes) or max(weights) > HEAVIEST):
            raise ValueError(
                f"problem.class_weights has {len(weights)} weights, up to {max(weights, default=0):g}: a job gives each of its "
                f"{len(self.classes)} classes one of at most {HEAVIEST:g}"
            )
        if self.evaluation is not None and self.settings.privacy.mechanism != "sound":
            raise ValueError('[evaluation] needs privacy.mechanism="sound": its counts are noised like every other release')
        if self.settings.metrics.intervals and self.settings.privacy.mechanism == "sound":
            self._check_intervals()
        if self.client_slots and len(self.client_slots) != (clients := self.settings.data.clients):
            raise ValueError(
                f"client_slots (--slots) has {len(self.client_slots)} numbers, but the job is for {clients} clients: give "
                f"{clients} numbers, or change the number of clients (--set data.clients={len(self.client_slots)} "
                f"--set rounds.participants={len(self.client_slots)})"
            )
        if self.client_slots and max(self.client_slots) != self.slots:
            raise ValueError(f"slots={self.slots} is not the largest of client_slots, {max(self.client_slots)}: make it so")
        if self.kind == "time" and self.unit_rows != self._bands:
            raise ValueError(
                f"unit_rows={self.unit_rows} must be the {self._bands} bands of the time: a subject has a row in each"
            )
        if self.unit_rows > 1 and not self.weighted:
            raise ValueError(f"unit_rows={self.unit_rows} is for a table whose schema names a unit_column")
        if self.settings.data.standardise and (self.table is None or self.settings.data.features != "raw"):
            raise ValueError('data.standardise=true needs the schema of a table and data.features="raw"')
        return self

    def _check_intervals(self) -> None:
        clients, classes = self.settings.data.clients, len(self.classes)
        if clients < LEAST_CLIENTS or classes > 2 or self.settings.privacy.trust == "cohorts":
            raise ValueError(
                "metrics.intervals=true needs a number, a time or two classes, the spread between at least "
                f'{LEAST_CLIENTS} clients, and privacy.trust="local" (with sums over cohorts they exist in simulation only); '
                f"there are {classes} classes and {clients} clients: set metrics.intervals=false"
            )
        if self.settings.data.basis == PRIVATE_BASIS:
            raise ValueError(
                f"metrics.intervals=true does not go with data.basis={PRIVATE_BASIS}: set one of them to another value"
            )
        if len(self.features) > MOST_FEATURES:
            raise ValueError(
                f"{len(self.features)} columns are too many for intervals, {MOST_FEATURES} at most: set them to false"
            )

    @property
    def numeric(self) -> bool:
        """Whether the label is a number."""
        return len(self.classes) == 1

    @property
    def kind(self) -> str:
        """What the label is: "classes", "number" or "time"."""
        return self.table.target.kind if self.table is not None and self.table.target is not None else "classes"

    @property
    def _bands(self) -> int:
        return self.table.target.bands if self.table is not None and self.table.target is not None else 1

    @property
    def weighted(self) -> bool:
        """Whether a slot holds several rows with weights: those of a person, or the bands of a subject's time."""
        return self.unit is not None or self.kind == "time"

    @property
    def unit(self) -> str | None:
        """The column that names persons, if all rows of one count as one."""
        return self.table.unit_column if self.table is not None else None

    @property
    def all_slots(self) -> list[int]:
        """The slots of every client."""
        return self.client_slots or [self.slots] * self.settings.data.clients

    def slots_of(self, client: int) -> int:
        """Return the public number of units at a client: rows, or persons."""
        return self.client_slots[client] if 0 <= client < len(self.client_slots) else self.slots

    def places_of(self, client: int) -> int:
        """Return the public number of rows that a client's slots can hold."""
        return self.slots_of(client) * self.unit_rows

    @cached_property
    def config(self) -> Config:
        """The settings, with the number of participants that 0 means."""
        return resolve(self.settings)

    @cached_property
    def setup(self) -> tuple[Setup, Plan | None]:
        """Problem, algorithm, local work and mechanism, for the public number of slots."""
        by_sums = self.settings.privacy.trust == "cohorts"
        dimension = self.shape[0] * self.shape[1] if by_sums else 0
        return deployed_setup(self.config, min(self.all_slots), dimension, self.unit, self.first_release)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the whole job."""
        return digest_of(self.model_dump(mode="json"))

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The model's columns, after the public map."""
        data = self.settings.data
        return tuple(make_map(data.features, self.features, options_of(data)).names(self.features))

    @property
    def width(self) -> int:
        """The number of the model's columns."""
        return len(self.feature_names)

    @property
    def widest(self) -> int:
        """A bound on the width that needs neither time nor memory."""
        data = self.settings.data
        if data.features == "fourier":
            return options_of(data)["fourier_count"] + 1
        if data.features == "onnx":  # its own width is known when its file is read, which a policy must allow first
            return len(self.features)
        if data.features != "raw" and data.basis != "none":
            size = directions_in(data) if has_public_basis(data, self.features) else 0
            return max(size + 1, len(self.features))
        return len(self.feature_names)

    @property
    def shape(self) -> tuple[int, int]:
        """Classes and columns of the model in training: from the job, never from a node."""
        data = self.settings.data
        return len(self.classes), min(self.width, directions_in(data)) if data.basis == PRIVATE_BASIS else self.width

    @cached_property
    def first_release(self) -> FirstRelease | None:
        """What every client releases before training, if anything."""
        if self.settings.data.basis == PRIVATE_BASIS:
            return basis_release(self.width, 1.0, self.shape[1])
        data = self.settings.data
        return means_release(self.features, data.standard_shrink) if data.standardise else None


def make_job(config: Config, slots: int, classes: Sequence[str], features: Sequence[str], **others: Any) -> Job:
    """Make a new job with its own id.

    Parameters
    ----------
    config : Config
        The settings.
    slots : int
        The public number of places for rows at every client.
    classes, features : sequence of str
        The names of the classes, and of the columns before the public map.
    **others
        `noise`, `table`, `evaluation`, `client_slots`, `unit_rows` of `Job`.

    Returns
    -------
    Job
        The checked job.
    """
    return _checked(
        {
            "id": uuid.uuid4().hex,
            "slots": slots,
            "classes": list(classes),
            "features": list(features),
            "settings": config.model_dump(),
            **others,
        },
        "The job",
    )


def parse_job(text: str, name: str = "the job") -> Job:
    """Read a job from TOML and check it.

    Parameters
    ----------
    text : str
        The TOML.
    name : str
        The name of the job in error messages.

    Returns
    -------
    Job
        The job.

    Raises
    ------
    ConfigError
        In one line, if the job is not valid.
    """
    if len(text) > LONGEST_OFFER:
        raise ConfigError(f"{name} has {len(text)} characters: a job file has at most {LONGEST_OFFER}.")
    if _DEEP_KEY.search(text):
        raise ConfigError(f"{name} has a key of {DEEPEST_KEY} parts or more: a job file has few.")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError of Python's own
        raise ConfigError(f"{name} is not valid TOML: {error}.") from None
    return _checked(values, name)


def read_job(path: Path) -> Job:
    """Read a job from a file and check it.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Job
        The job.
    """
    try:
        return parse_job(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The job {path} cannot be read: {error}. `fedpdm flower init` makes one.") from None


def _words(error: Any) -> str:
    """Name the place of a mistake, if it is at one place, and say what is wrong."""
    place = f"{dotted(error['loc'])}: " if error["loc"] else ""
    return place + error["msg"].removeprefix("Value error, ")


def _checked(values: dict[str, Any], name: str) -> Job:
    try:
        job = Job.model_validate(values)
    except ValidationError as error:
        wrong = "; ".join(_words(e) for e in error.errors()[:5])
        raise ConfigError(f"{name} does not fit: {wrong}.") from None
    check_bounds(job.settings)
    if job.settings.data.basis == PRIVATE_BASIS:
        assert job.first_release is not None  # refuses too many features
    check_size(job, job.widest, name)
    return job


def check_size(job: Job, width: int, name: str = "the job") -> None:
    """Refuse a job whose rows take more memory than a node may use.

    Parameters
    ----------
    job, width, name
        The job, its columns, and its name in messages.

    Raises
    ------
    ConfigError
        With the numbers.
    """
    if (numbers := job.slots * job.unit_rows * width) > MOST_NUMBERS:
        raise ConfigError(
            f"{name}: {job.slots} slots of {job.unit_rows} x {width} numbers are {numbers}; a node holds {MOST_NUMBERS}."
        )


def job_toml(job: Job) -> str:
    """Return the job's file, with a comment for every key.

    Parameters
    ----------
    job : Job
        The job.

    Returns
    -------
    str
        The TOML.
    """
    document = tomlkit.document()
    document.add(tomlkit.comment("A job of fedpdm: the same file at the server and at every client, identified by its digest"))
    document.add(tomlkit.comment(job.digest))
    document.add(
        tomlkit.comment("A client answers requests for it after `fedpdm flower approve`; a changed file is another job.")
    )
    for key in ("format", "id", "noise", "slots", "client_slots", "unit_rows", "classes", "features"):
        item = tomlkit.item(getattr(job, key))
        document.add(key, item.comment(Job.model_fields[key].description or ""))
    for key in ("settings", "evaluation", "table"):
        if (part := getattr(job, key)) is not None:
            document.add(key, tomlkit.item(part.model_dump(mode="json", exclude_none=True)))
    return tomlkit.dumps(document)
