"""The settings of an experiment, section by section, as typed and validated values."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from fedpdm.choices import DIRICHLET_ALPHA, GAMMA, LABELS_PER_CLIENT
from fedpdm.choices.words import Coordinates, Downlink, Mode, Relation, Sampling, ThresholdAim, ValueKind
from fedpdm.config.conditions import check_config, check_data
from fedpdm.config.names import (
    AggregateName,
    AlgorithmName,
    FeatureMapName,
    LossName,
    PartitionName,
    PenaltyName,
    ScalingName,
    field_of,
)
from fedpdm.config.strangers import without_strangers

__all__ = ["Config", "Section"]


class Section(BaseModel):
    """A section of the settings: unknown keys are refused, and values do not change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DataSection(Section):
    name: str = Field(
        default="mnist",
        description='"mnist", "fashion-mnist", "adult", "digits", or the path of your table (.csv, .parquet, .npz, .svm) or of '
        "a folder of images",
    )
    label: str | None = Field(default=None, description="own table: the column to predict; unset: that of the schema")
    client_column: str | None = Field(
        default=None,
        description='own table: the column with a row\'s owner, for partition = "column"; unset: that of the schema',
    )
    schema_file: str | None = Field(
        default=None, description="own table: public bounds and levels, a TOML file; unset: inferred, without privacy"
    )
    test_share: float | None = Field(
        default=None, gt=0, lt=1, description="own table: share of every client's rows to test on; unset: 0.2, or the test_file"
    )
    test_file: str | None = Field(default=None, description="own table: another table to test on")
    unit_column: str | None = Field(
        default=None, description="own table: the column with the person of a row; all rows of a person then count as one"
    )
    event_column: str | None = Field(
        default=None, description="own table: says whether an event was seen; the label is then the time to it"
    )
    min_rows: int | None = Field(
        default=None, ge=2, description="own table: clients with fewer rows become one client; unset: all stay apart"
    )
    clients: int = Field(default=100, ge=1, description='number of clients N; with partition = "column", those of the column')
    partition: PartitionName = Field(
        default="labels", description='how clients get examples: by "labels", "one-class", "dirichlet", "iid" or a "column"'
    )
    labels_per_client: int = field_of(LABELS_PER_CLIENT, "labels: ")
    dirichlet_alpha: float = field_of(DIRICHLET_ALPHA, "dirichlet: ")
    partition_seed: int = Field(default=0, ge=0, description="seed of the partition, separate from the run's own seed")
    scaling: ScalingName = Field(
        default="none",
        description="bounded: divided by the square root of the number of a table's columns, so at most norm 1; the others map "
        "one example to norm 1: after square roots, minus its mean, both, or smoothed too",
    )
    features: FeatureMapName = Field(
        default="raw",
        description="public map of one example; auto: scattering for images, hashed for texts, piecewise for tables",
    )
    # `place_options` adds the maps' options here
    basis: str = Field(
        default="none",
        description="project features onto a basis: none; strokes or shapes (made-up images); auto; an .npz file with public "
        "rows; or private (their noised second moment)",
    )
    basis_size: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="basis: number of directions, at most the number of features; auto: by the noise (docs/features.md)",
    )
    validation: int = Field(
        default=0, ge=0, description="hold out this many training examples and test on them: to tune without test data"
    )
    standardise: bool = Field(
        default=False,
        description="centre and scale the features by means and deviations of the training rows of all clients",
    )
    standard_shrink: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="standardise, with privacy: factor on the weights of the released model, since training cuts long rows",
    )
    radius: float | None = Field(
        default=None,
        gt=0,
        description="cut every example's norm to this; unset: no cut, or 1 under the sound mechanism",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_data(self)
        return self


class ProblemSection(Section):
    loss: LossName = Field(
        default="softmax",
        description="classes: logistic (the paper's, true class only) or softmax; a number: squared, huber, quantile or "
        "poisson; auto: softmax or squared, as the label is",
    )
    beta: float = Field(default=0.0, ge=0, description="weight of the non-convex term sum x^2/(1+x^2)")
    penalty: PenaltyName = Field(default="l1", description="non-smooth term h, through its prox at the server")
    gamma: float = field_of(GAMMA)
    penalty_scale: Literal["mean", "sum"] = Field(
        default="mean",
        description='"mean": gamma on the mean objective; "sum": on the sum over clients, so gamma/N on the mean',
    )
    penalty_by: Literal["prox", "subgradient"] = Field(
        default="prox", description='"prox" at the server, or "subgradient" in every local step (no exact zeros)'
    )
    sparsity: Annotated[float, Field(gt=0)] | Literal["noise"] | None = Field(
        default=None,
        description='weights that the finished model keeps: a share (below 1), a number, or as many as "noise" cannot explain; '
        "unset: all",
    )
    sparsity_by: Literal["weight", "class", "feature", "column"] = Field(
        default="weight",
        description='what sparsity counts: "weight"; "class": weights of each class; "feature": for all classes; "column": '
        "all levels of a table's column",
    )
    class_weights: Literal["balanced"] | list[Annotated[float, Field(gt=0)]] | None = Field(
        default=None, description='the weight of each class: a list, or "balanced" by the rows, without privacy'
    )
    weights: Literal["rows", "clients"] = Field(
        default="clients",
        description='a client\'s share of the objective: "rows": by its number of rows, as in central training; '
        '"clients": all the same',
    )


class AlgorithmSection(Section):
    name: AlgorithmName = Field(default="fedpdm", description="algorithm")
    metric: Literal["plain", "moments"] = Field(
        default="plain",
        description='fedpdm: "plain" distances, or by the second "moments" of all clients\' features: undoes correlations',
    )
    newton: bool = Field(
        default=False,
        description="fedpdm: between rounds the server takes Newton steps, from the sums of all clients' gradients and "
        "curvatures; for models of at most 1,000 weights",
    )

    aggregate: AggregateName = Field(
        default="mean", description="how the server combines messages; all but the mean withstand some hostile clients"
    )

    if TYPE_CHECKING:  # the algorithms' options, which `place_options` adds

        def __getattr__(self, key: str) -> Any: ...


class LocalSection(Section):
    solver: Literal["steps", "newton"] = Field(
        default="steps", description='"steps": gradient steps; "newton": to the tolerance, with all of the client\'s examples'
    )
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
    total: int = Field(default=100, ge=1, description="number of communication rounds T; with a tolerance: the most")
    tolerance: float = Field(
        default=0.0,
        ge=0,
        description="stop when the stationarity measure P per client is below this share of 1 + the model's squared norm; "
        "0: never",
    )
    participants: int = Field(default=30, ge=0, description="clients K that take part in a round; 0: all of them")
    sampling: Sampling = Field(
        default="uniform", description='"uniform": drawn anew in every round; "cycle": all clients in turn, evenly'
    )
    all_first: bool = Field(default=True, description="let every client take part in the first round (S_0 = all)")
    initial_scale: float = Field(default=0.01, ge=0, description="standard deviation of the random first model")


class PrivacySection(Section):
    mechanism: Literal["none", "paper", "sound"] = Field(
        default="none", description='"none"; "sound": a proven guarantee; "paper": as published, nominal only'
    )
    epsilon: float | None = Field(default=None, gt=0, description="total budget of one client; needs a mechanism")
    delta: float = Field(default=1e-5, gt=0, lt=1, description="delta of the guarantee; used with a mechanism")
    relation: Relation = Field(
        default="add-remove", description='neighbouring relation: "add-remove" or "replace-one" of one example'
    )
    mode: Literal["auto", Mode] = Field(
        default="auto", description="the bound on one example's influence; auto follows the local settings"
    )
    unit: Literal["example", "client"] = Field(
        default="example", description='what is protected: one "example", or all of one "client" (with trust = "cohorts")'
    )
    clip: float | None = Field(
        default=None,
        gt=0,
        description="bound C on one example's gradient (unit = client: on a client's mean one); unset: half of the loss's own",
    )
    standard_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="share of the budget for the release before training: data.standardise or a private basis",
    )
    interval_share: float = Field(
        default=0.3, gt=0, lt=1, description="share of the budget for gradients and curvature, with metrics.intervals"
    )
    defaults: Literal["given", "rule"] = Field(
        default="given",
        description='"rule": settings that are not given follow from public sizes and the budget (docs/defaults.md)',
    )
    participations: int = Field(
        default=0, ge=0, description="most participations of one client; 0: its even share of the rounds"
    )
    clients_per_unit: int = Field(default=1, ge=1, description="most clients that hold rows of one person, with a unit column")
    trust: Literal["local", "cohorts"] = Field(
        default="local",
        description='"local": the server sees every message; "cohorts": only sums over cohorts, whose members share the noise',
    )


class CohortsSection(Section):
    """Settings of privacy.trust = "cohorts" (docs/secure-sums.md)."""

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
    compare: bool = Field(
        default=False,
        description="refuse sums that the round's other sums contradict; with new members, leave out who is in many of them",
    )
    budget: Literal["sum", "own-share"] = Field(
        default="sum", description="privacy.epsilon is for the sum, or for a member's own share of the noise alone"
    )
    bits: int = Field(default=32, ge=2, le=32, description="bits b of a word; sums are taken modulo 2^b")
    reach: float = Field(
        default=0.5,
        gt=0,
        description="what words must hold without wrapping: the mean contribution, over the most that clip and steps allow",
    )
    scale: int = Field(
        default=0, ge=0, le=2**24, description="lattice steps per unit, a power of two; 0: the finest that does not wrap"
    )


class CompressionSection(Section):
    uplink: float = Field(default=1.0, gt=0, le=1, description="share of coordinates that a client sends")
    kind: Coordinates = Field(
        default="topk", description="how a client chooses them: topk and randk as in the paper; all but topk are sound"
    )
    downlink: float = Field(default=1.0, gt=0, le=1, description="share of coordinates that the server sends")
    downlink_kind: Downlink = Field(
        default="model",
        description='"model": the largest, the rest is zero (the paper); "difference": the largest changes',
    )
    values: Literal[ValueKind, "auto"] = Field(
        default="float32", description='the type of the sent values; "auto": the coarsest that stays well below the noise'
    )


class AttackSection(Section):
    """Simulated attackers (docs/hostile-clients.md)."""

    kind: Literal["none", "sign-flip", "scaling", "constant", "one-class", "label-flip", "missing-noise", "strongest"] = Field(
        default="none",
        description='what attackers do: "one-class" and "label-flip" change their labels, the others what they send; '
        '"strongest" goes as far against the honest clients as the check of messages lets it',
    )
    clients: int = Field(default=0, ge=0, description="number of clients that attack, drawn by the seed")
    scale: float = Field(
        default=10.0, gt=0, description="sign-flip, scaling: times the honest update; constant: the value of every coordinate"
    )
    checks: bool = Field(default=True, description="with attackers: the server refuses what no honest client could have sent")


class MetricsSection(Section):
    evaluate_every: int = Field(default=1, ge=1, description="rounds between test accuracies")
    diagnose_every: int = Field(
        default=10, ge=0, description="rounds between objective and stationarity, which read all training data; 0: never"
    )
    released: Literal["last", "averaged"] = Field(
        default="last", description='the model that is the result: the "last", or the one "averaged" over the tail'
    )
    threshold: Annotated[float, Field(gt=0, lt=1)] | ThresholdAim | None = Field(
        default=None,
        description="two classes: predict the second one from this probability on; balanced-accuracy: the best value for it "
        "on a tenth of the training rows, which are set apart; unset: 0.5",
    )
    intervals: bool = Field(
        default=False,
        description="an interval for every coefficient; with privacy it takes a share of the budget",
    )
    path: bool = Field(default=False, description="test the finished model with fewer and fewer weights, too")
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
    attack: AttackSection = Field(default_factory=AttackSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_config(self)
        return self

    @model_serializer(mode="wrap")
    def _plain(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_strangers(self, plain(self))
