"""An experiment as typed, validated values, to and from TOML."""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fedpdm.choices import is_table
from fedpdm.errors import ConfigError

__all__ = ["Config", "load_config", "preset_names", "to_toml", "digest"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DataSection(Section):
    name: str = Field(
        default="mnist", description='"mnist", "adult", "digits", or the path of an own table (.csv, .parquet, .npz, .svm)'
    )
    label: str | None = Field(default=None, description="own table: the column to predict; unset: that of the schema")
    client_column: str | None = Field(
        default=None, description='own table: whose row it is, for partition = "column"; unset: that of the schema'
    )
    schema_file: str | None = Field(
        default=None, description="own table: public bounds and levels, a TOML file; unset: read off the rows, without privacy"
    )
    test_share: float | None = Field(
        default=None, gt=0, lt=1, description="own table: share of every client's rows to test on; unset: 0.2, or the test_file"
    )
    test_file: str | None = Field(default=None, description="own table: another table to test on")
    clients: int = Field(
        default=100, ge=1, description='number of clients N that the examples are dealt to; the column\'s with "column"'
    )
    partition: Literal["labels", "one-class", "dirichlet", "iid", "column"] = Field(
        default="labels", description='how they are dealt: "labels", "one-class", "dirichlet", "iid" or by a "column"'
    )
    labels_per_client: int = Field(default=4, ge=1, description='different labels per client, for partition = "labels"')
    dirichlet_alpha: float = Field(default=0.5, gt=0, description='evenness of the label mix, for partition = "dirichlet"')
    partition_seed: int = Field(default=0, ge=0, description="seed of the dealing, apart from the run's own seed")
    scaling: Literal["none", "bounded", "unit", "root", "centred", "centred-root", "blurred"] = Field(
        default="none",
        description="bounded: divided by the square root of the number of a table's columns, so at most norm 1; the others map "
        "one example to norm 1: after square roots, minus its mean, both, or smoothed too",
    )
    features: Literal["raw", "scattering", "fourier", "piecewise", "auto"] = Field(
        default="raw", description="public map of one example; auto: scattering for images, piecewise for tables"
    )
    scattering_scale: int = Field(default=2, ge=1, le=6, description="scattering: scales J; one feature per 2^J pixels a side")
    scattering_centre: Literal["auto", "none", "strokes"] = Field(
        default="auto",
        description="scattering: strokes takes off what made-up pen strokes have in common; auto: for MNIST and digits",
    )
    fourier_count: int = Field(default=2000, ge=1, description="fourier: number of random cosines")
    fourier_bandwidth: float = Field(default=1.0, gt=0, description="fourier: distance at which two examples are unlike")
    features_seed: int = Field(default=0, ge=0, description="fourier: public seed that the cosines are drawn from")
    basis: str = Field(
        default="none",
        description="project features onto a public basis: none; strokes or shapes (made-up images); auto; or an .npz file of "
        "public rows",
    )
    basis_size: int = Field(default=200, ge=1, description="basis: number of directions (fewer where there are fewer features)")
    validation: int = Field(
        default=0, ge=0, description="hold out this many training examples and test on them: to tune without test data"
    )
    radius: float | None = Field(
        default=None,
        gt=0,
        description="cut every example's norm to this; unset: no cut, or 1 under the sound mechanism",
    )

    @model_validator(mode="after")
    def _table_fits(self) -> Self:
        if not is_table(self.name):
            for key in TABLE_KEYS:
                if (value := getattr(self, key)) is not None:
                    raise ValueError(f"data.{key}={value} is for a table of your own, which data.name={self.name} is not")
            if self.partition == "column":
                raise ValueError(f'data.partition="column" is for a table of your own, which data.name={self.name} is not')
        if self.test_share is not None and self.test_file is not None:
            raise ValueError(f"data.test_share={self.test_share} and data.test_file={self.test_file} exclude each other")
        if self.client_column is not None and self.partition != "column":
            raise ValueError(
                f"data.client_column={self.client_column} has no effect with data.partition={self.partition}: "
                "set data.partition=column"
            )
        return self

    @model_validator(mode="after")
    def _features_fit(self) -> Self:
        if self.features != "raw" and self.scaling != "none":
            raise ValueError(
                f"data.scaling={self.scaling} does not go with data.features={self.features}, which brings examples to norm 1 "
                "itself: remove one of the two (--set data.scaling=)"
            )
        if self.features == "raw" and self.basis not in ("none", "auto"):
            raise ValueError(f"data.basis={self.basis} stands behind a feature map: set data.features, for instance to auto")
        for key, user in FEATURE_KEYS.items():
            value = getattr(self, key)
            if self.features not in (user, "auto") and value != DataSection.model_fields[key].default:
                raise ValueError(
                    f"data.{key}={value} has no effect with data.features={self.features}: set data.features={user}"
                )
        return self


# What is looked at for tables of one's own only
TABLE_KEYS = ("label", "client_column", "schema_file", "test_share", "test_file")

# Which map looks at which option
FEATURE_KEYS = {
    "scattering_scale": "scattering",
    "scattering_centre": "scattering",
    "fourier_count": "fourier",
    "fourier_bandwidth": "fourier",
    "features_seed": "fourier",
}


class ProblemSection(Section):
    loss: Literal["logistic", "softmax"] = Field(
        default="softmax", description='"logistic" (the paper\'s, true class only) or "softmax"'
    )
    beta: float = Field(default=0.0, ge=0, description="weight of the non-convex term sum x^2/(1+x^2)")
    penalty: Literal["none", "l1", "elastic-net", "l2", "mcp", "scad", "l0", "group-lasso", "box"] = Field(
        default="l1", description="non-smooth term h, through its prox at the server"
    )
    gamma: float = Field(default=0.0, ge=0, description="strength of the penalty")
    penalty_scale: Literal["mean", "sum"] = Field(
        default="mean",
        description='"mean": gamma on the mean objective; "sum": on the sum over clients, so gamma/N on the mean',
    )
    penalty_by: Literal["prox", "subgradient"] = Field(
        default="prox", description='"prox" at the server, or "subgradient" in every local step (no exact zeros)'
    )
    penalty_mix: float = Field(default=0.5, ge=0, le=1, description="share of L1 in the elastic net")
    penalty_concavity: float = Field(default=3.7, gt=0, description="concavity of MCP and SCAD (SCAD: above 2)")
    penalty_lower: float = Field(default=-1.0, description="lower limit of the box")
    penalty_upper: float = Field(default=1.0, description="upper limit of the box")


class AlgorithmSection(Section):
    name: Literal["fedpdm", "fedavg", "fedprox", "scaffold", "feddyn"] = Field(default="fedpdm", description="algorithm")
    rho: float = Field(default=1.0, gt=0, description="fedpdm: weight rho of the proximal term")
    mu: float = Field(default=0.1, ge=0, description="fedprox: weight mu of the proximal term")
    alpha: float = Field(default=0.1, gt=0, description="feddyn: weight alpha of the proximal term")
    server_rule: Literal["participants", "cached", "dual-memory"] = Field(
        default="participants",
        description='fedpdm: what the server averages: "participants" (the paper), "cached" or "dual-memory"',
    )


class LocalSection(Section):
    steps: int = Field(default=10, ge=1, description="local steps per round; the most steps when a tolerance is set")
    batch_size: int = Field(default=10, ge=0, description="examples per local step; 0 takes all of the client's examples")
    step_size: float = Field(default=0.1, gt=0, description="local step size eta at round 0")
    schedule: Literal["constant", "inverse-sqrt"] = Field(
        default="constant", description='"constant", or "inverse-sqrt": eta / sqrt(1 + t)'
    )
    tolerance: float = Field(
        default=0.0, ge=0, description="stop when the squared norm of the step's direction is below; 0: never"
    )


class RoundsSection(Section):
    total: int = Field(default=100, ge=1, description="number of communication rounds T")
    participants: int = Field(default=30, ge=0, description="clients K that take part in a round; 0: all of them")
    sampling: Literal["uniform", "cycle"] = Field(
        default="uniform", description='"uniform": drawn anew in every round; "cycle": everybody in turn, evenly'
    )
    all_first: bool = Field(default=True, description="let every client take part in the first round (S_0 = all)")


class PrivacySection(Section):
    mechanism: Literal["none", "paper", "sound"] = Field(
        default="none", description='"none"; "sound": a proven guarantee; "paper": as published, nominal only'
    )
    epsilon: float | None = Field(default=None, gt=0, description="total budget of one client; needs a mechanism")
    delta: float = Field(default=1e-5, gt=0, lt=1, description="delta of the guarantee; used with a mechanism")
    relation: Literal["add-remove", "replace-one"] = Field(
        default="add-remove", description='neighbouring relation: "add-remove" or "replace-one" of one example'
    )
    mode: Literal["auto", "linearised", "contractive", "one-pass", "certified", "every-step", "batch-clipped"] = Field(
        default="auto", description="what bounds one example's influence; auto follows the local settings"
    )
    clip: float | None = Field(
        default=None, gt=0, description="bound C on one example's gradient; unset: half of the loss's own bound"
    )
    participations: int = Field(
        default=0, ge=0, description="most participations of one client; 0: its even share of the rounds"
    )
    trust: Literal["local", "cohorts"] = Field(
        default="local",
        description='"local": every message is seen; "cohorts": only sums over cohorts are, and members share the noise',
    )


class CohortsSection(Section):
    """Looked at with privacy.trust = "cohorts" (docs/secure-sums.md)."""

    size: int = Field(default=0, ge=0, description="members of a cohort, at least; 0: all clients are one cohort")
    colluding: int | None = Field(
        default=None, ge=0, description="members that may work with the server; unset: a tenth, rounded up"
    )
    dropouts: int | None = Field(
        default=None, ge=0, description="members that may be missing in a sum; unset: a tenth, rounded down"
    )
    members: Literal["fixed", "new"] = Field(
        default="fixed", description='"fixed": a cohort keeps its members and state; "new": made anew in every round'
    )
    budget: Literal["sum", "own-share"] = Field(
        default="sum", description="what privacy.epsilon is for: the sum, or a member's own share of the noise alone"
    )
    bits: int = Field(default=32, ge=2, le=32, description="bits b of a word; sums are taken modulo 2^b")
    scale: int = Field(
        default=0, ge=0, le=2**24, description="lattice steps per unit, a power of two; 0: the finest that does not wrap"
    )


# Penalties with a slope wherever they are evaluated (zero at a kink)
SUBGRADIENT_PENALTIES = ("l1", "elastic-net", "l2", "mcp", "scad")

# What a mechanism does not look at must not be set, lest somebody believe that it counts.
UNUSED_PRIVACY_KEYS: dict[str, tuple[str, ...]] = {
    "none": ("epsilon", "relation", "mode", "clip", "participations", "trust"),
    "paper": ("relation", "mode", "participations", "trust"),
    "sound": (),
}


class CompressionSection(Section):
    uplink: float = Field(default=1.0, gt=0, le=1, description="share of coordinates that a client sends")
    kind: Literal["topk", "randk", "shared-randk", "public-topk", "noisy-topk"] = Field(
        default="topk", description="how a client chooses them: topk and randk are the paper's; the sound ones: the last four"
    )
    downlink: float = Field(default=1.0, gt=0, le=1, description="share of coordinates that the server sends")
    downlink_kind: Literal["model", "difference"] = Field(
        default="model",
        description='"model": the largest, the rest is zero (the paper); "difference": the largest changes',
    )
    values: Literal["float32", "float16", "int8", "auto"] = Field(
        default="float32", description='what values are sent in; "auto": the coarsest that stays well below the noise'
    )


class MetricsSection(Section):
    evaluate_every: int = Field(default=1, ge=1, description="rounds between test accuracies")
    diagnose_every: int = Field(
        default=10, ge=0, description="rounds between objective and stationarity, which read all training data; 0: never"
    )
    tail: float = Field(
        default=0.5, gt=0, le=1, description="the averaged model is the mean over this last share of the rounds"
    )


class Config(Section):
    """One experiment. Every key has a default; `fedpdm config show PRESET` prints them all."""

    seed: int = Field(default=0, ge=0, lt=2**31, description="seed of the initial point, the sampling and the batches")
    data: DataSection = Field(default_factory=DataSection)
    problem: ProblemSection = Field(default_factory=ProblemSection)
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection)
    local: LocalSection = Field(default_factory=LocalSection)
    rounds: RoundsSection = Field(default_factory=RoundsSection)
    privacy: PrivacySection = Field(default_factory=PrivacySection)
    cohorts: CohortsSection = Field(default_factory=CohortsSection)
    compression: CompressionSection = Field(default_factory=CompressionSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)

    @model_validator(mode="after")
    def _cohorts_fit(self) -> Self:
        changed = [
            key for key in CohortsSection.model_fields if getattr(self.cohorts, key) != CohortsSection.model_fields[key].default
        ]
        if changed and self.privacy.trust != "cohorts":
            raise ValueError(
                f"cohorts.{changed[0]}={getattr(self.cohorts, changed[0])} has no effect with "
                f"privacy.trust={self.privacy.trust}: set privacy.trust=cohorts"
            )
        if self.cohorts.scale & (self.cohorts.scale - 1):
            raise ValueError(f"cohorts.scale={self.cohorts.scale} is not a power of two: set 0, or for instance {2**20}")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.data.partition != "column" and self.rounds.participants > self.data.clients:
            raise ValueError(
                f"rounds.participants={self.rounds.participants} is more than data.clients={self.data.clients}: "
                "lower the one or raise the other"
            )
        for key in UNUSED_PRIVACY_KEYS[self.privacy.mechanism]:
            value = getattr(self.privacy, key)
            if value != PrivacySection.model_fields[key].default:
                raise ValueError(
                    f'privacy.{key}={value} has no effect with privacy.mechanism="{self.privacy.mechanism}": '
                    f"remove it (--set privacy.{key}=)"
                )
        if self.privacy.mechanism != "none" and self.privacy.epsilon is None:
            raise ValueError(
                f'privacy.mechanism="{self.privacy.mechanism}" needs a budget: set privacy.epsilon, for instance 1.0'
            )
        if self.privacy.mechanism == "sound" and self.compression.kind == "topk" and self.compression.uplink < 1:
            raise ValueError(
                'compression.kind="topk" chooses coordinates by values that are not noised, so the indices themselves tell '
                'about the data, which privacy.mechanism="sound" does not allow: use "shared-randk" (no indices on the wire), '
                '"public-topk", "noisy-topk" or "randk"'
            )
        if self.problem.penalty_by == "subgradient" and self.problem.penalty not in SUBGRADIENT_PENALTIES:
            raise ValueError(
                f'problem.penalty_by="subgradient" does not go with problem.penalty="{self.problem.penalty}", which has no '
                f'slope everywhere: use "prox", or one of {", ".join(SUBGRADIENT_PENALTIES)}'
            )
        return self


def preset_names() -> list[str]:
    """The presets that come with the package."""
    return sorted(f.name.removesuffix(".toml") for f in _preset_folder().iterdir() if f.name.endswith(".toml"))


def load_config(source: str = "demo", settings: Iterable[str] = ()) -> Config:
    """Read a preset (by name) or a TOML file (by path), then apply `KEY=VALUE` settings, and validate.

    Examples
    --------
    >>> load_config("demo", ["rounds.total=5"]).rounds.total
    5
    """
    values = _read(source)
    for setting in settings:
        _apply(values, setting)
    return validate(values)


def validate(values: dict[str, Any]) -> Config:
    """A Config from plain nested values; a ConfigError of one line when they do not fit."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(e) for e in error.errors())) from None


def to_toml(config: Config) -> str:
    """The full TOML of a config, with a comment for every key."""
    document = tomlkit.document()
    _fill(document, config)
    return tomlkit.dumps(document)


def digest(config: Config) -> str:
    """A short name of the settings, by which a resumed run recognises its own."""
    # Defaults do not count, so that a key that a later version adds leaves the names of earlier settings as they are.
    text = json.dumps(config.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _preset_folder() -> Any:
    return resources.files("fedpdm") / "presets"


def _read(source: str) -> dict[str, Any]:
    if source in preset_names():
        return tomllib.loads((_preset_folder() / f"{source}.toml").read_text())
    path = Path(source)
    if not path.is_file():
        raise ConfigError(f"No preset and no file named {source!r}. Presets: {', '.join(preset_names())}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} is not valid TOML: {error}.") from None
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}.") from None


def _apply(values: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {setting!r} is not of the form KEY=VALUE, for instance rounds.total=50.")
    if not text.strip():
        _remove(values, key.strip())
        return
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    *sections, last = key.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {setting!r}: {section!r} is not a section.")
    values[last] = value


def _remove(values: dict[str, Any], key: str) -> None:
    """`--set KEY=` takes the key out, so that its default counts."""
    *sections, last = key.split(".")
    for section in sections:
        values = values.get(section, {})
    values.pop(last, None)


def _sentence(error: ErrorDetails) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, list(_keys(Config)), n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else " `fedpdm config show demo` lists all keys."
        return f"Unknown key {key!r}.{hint}"
    if error["type"] == "value_error":
        return str(error.get("ctx", {}).get("error", error["msg"]))
    reason = error["msg"].removeprefix("Input should be ")
    return f"{key}={error['input']!r}: expected {reason}"


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _keys(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def _fill(container: Any, section: BaseModel) -> None:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            table = tomlkit.table()
            _fill(table, value)
            container.add(tomlkit.nl())
            container.add(name, table)
        elif value is None:  # TOML has no null: an unset key is shown as a comment
            container.add(tomlkit.comment(f"{name} =   # {field.description}"))
        else:
            item = tomlkit.item(value)
            container.add(name, item.comment(field.description or ""))
