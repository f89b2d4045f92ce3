"""The rows of the tables: the description of a choice, for every kind of choice."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpdm.errors import ConfigError

__all__ = ["Option", "Choice", "AlgorithmChoice", "AggregateChoice", "LossChoice", "PenaltyChoice", "FeatureMapChoice"]
__all__ += ["ScalingChoice", "PartitionChoice", "MetricChoice", "CommandChoice"]


@dataclass(frozen=True)
class Option:
    """A setting that some choices have.

    Attributes
    ----------
    key : str
        Its key in the settings, within the section of the choice.
    default : float, int or str
        The value when the key is not set; its type is the type of the setting.
    description : str
        The comment of `fedpdm config show`.
    argument : str
        The name of the factory's argument; empty: the key.
    limits : mapping
        "gt", "ge", "lt" or "le", as in pydantic.
    values : tuple of str
        The words that are allowed; empty: any value of the type.
    """

    key: str
    default: float | int | str
    description: str
    argument: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """One row: something that can be chosen by its name.

    Attributes
    ----------
    name : str
        The word for it in the settings.
    title : str
        What reports and figures call it.
    make : str or callable
        The factory, or where it is: "package.module:function". It takes the options as keyword arguments.
    options : tuple of Option
        Its settings. Choices may share an option.
    summary : str
        What it does, in one sentence.
    """

    name: str
    title: str
    make: str | Callable[..., Any]
    options: tuple[Option, ...] = ()
    summary: str = ""

    def factory(self) -> Callable[..., Any]:
        """Import and return the function that makes it."""
        if not isinstance(self.make, str):
            return self.make
        return _find(self.make, self.name)

    @property
    def module(self) -> str:
        """The name of the module that the factory is in."""
        return self.make.partition(":")[0] if isinstance(self.make, str) else str(getattr(self.make, "__module__", ""))

    @property
    def factory_name(self) -> str:
        """The name of the factory in its module."""
        return self.make.partition(":")[2] if isinstance(self.make, str) else str(getattr(self.make, "__name__", ""))

    def arguments(self, settings: object = None) -> dict[str, Any]:
        """Return the factory's arguments: the options' values in a section or mapping of settings, else their defaults."""
        given = settings if isinstance(settings, Mapping) else {} if settings is None else vars(settings)
        return {option.argument or option.key: given.get(option.key, option.default) for option in self.options}

    def build(self, settings: object = None) -> Any:
        """Make it with the options' values in these settings."""
        return self.factory()(**self.arguments(settings))


@dataclass(frozen=True)
class AlgorithmChoice(Choice):
    """A federated algorithm: the factory returns a `fedpdm.algorithms.Algorithm`.

    Attributes
    ----------
    stateless : bool
        Neither a client nor the server keeps anything about a client between rounds, so cohorts may change in every round.
    """

    stateless: bool = False


@dataclass(frozen=True)
class LossChoice(Choice):
    """A loss: the factory takes `clip` beside its options and returns a `fedpdm.problem.Loss`.

    Attributes
    ----------
    target : str
        "classes", "number" or "time": the kind of label that it learns. The `Loss` says the same.
    """

    target: str = "classes"


@dataclass(frozen=True)
class PenaltyChoice(Choice):
    """A penalty: the factory returns a `fedpdm.problem.Penalty`.

    Attributes
    ----------
    subgradient : bool
        Whether it has a slope everywhere (zero at a kink), so that problem.penalty_by = "subgradient" may use it.
    convex : bool
        Whether it is convex, whatever its options. The `Penalty` says the same.
    """

    subgradient: bool = False
    convex: bool = True


@dataclass(frozen=True)
class FeatureMapChoice(Choice):
    """A public map of one example: the factory returns a `fedpdm.data.features.FeatureMap`.

    Attributes
    ----------
    onnx : str, callable or None
        The function, or where it is, that adds the map to an ONNX graph: `(graph, rows, feature_names, **options) -> node`,
        with features and names without the bias. None: models behind this map cannot be exported to ONNX.
    named : bool
        An ONNX file does not contain the map but names it, and takes mapped features.
    """

    onnx: str | Callable[..., str] | None = None
    named: bool = False

    def onnx_nodes(self) -> Callable[..., str]:
        """Return the function that adds the map to an ONNX graph."""
        return _onnx_nodes(self, "feature map")


@dataclass(frozen=True)
class ScalingChoice(Choice):
    """A scaling of one example: `make` is the function itself, from [rows, n] and the n column names to [rows, n].

    The title completes the sentence "A feature is ..." in a report.

    Attributes
    ----------
    unit : bool
        Whether a row is brought to norm 1 afterwards, with a bias of 0.2 beside it.
    onnx : str, callable or None
        The function, or where it is, that adds it to an ONNX graph: `(graph, columns, names) -> node`.
    """

    unit: bool = True
    onnx: str | Callable[..., str] | None = None

    def onnx_nodes(self) -> Callable[..., str]:
        """Return the function that adds the scaling to an ONNX graph."""
        return _onnx_nodes(self, "scaling")


@dataclass(frozen=True)
class PartitionChoice(Choice):
    """A way to deal examples to clients: `make` is the function itself.

    It takes the labels [examples], the number of clients, `seed` and the options, and returns every client's example indices.
    The title completes the sentence "There are so many clients, ..." in a report; it may name options in braces.
    """


@dataclass(frozen=True)
class AggregateChoice(Choice):
    """How the server combines messages: the factory returns a `fedpdm.algorithms.aggregate.Aggregator`.

    Attributes
    ----------
    withstands : str
        The share of hostile participants that it withstands, in words.
    """

    withstands: str = "none"


@dataclass(frozen=True)
class MetricChoice(Choice):
    """A figure of a model on test rows.

    `make` is the function itself: it takes `fedpdm.metrics.Predictions` and returns a `fedpdm.metrics.Estimate`, the figure
    with its 95 % interval. A run measures every metric that fits its loss.

    Attributes
    ----------
    target : str
        "classes" or "number": the kind of label that it fits.
    lower_is_better : bool
        Smaller values are better.
    """

    target: str = "classes"
    lower_is_better: bool = False

    @property
    def key(self) -> str:
        """The name in summaries."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class CommandChoice(Choice):
    """A command, or a group of commands, of the program `fedpdm`.

    `make` is the function of the command, or the `typer.Typer` of a group. It is imported when the command is used or when help
    is asked for. A command has no title: its help comes from its docstring.
    """


def _onnx_nodes(row: FeatureMapChoice | ScalingChoice, kind: str) -> Callable[..., str]:
    if row.onnx is None:
        raise ConfigError(f"The {kind} {row.name!r} has no ONNX form: its row must name one (onnx=...). Use csv.")
    return row.onnx if callable(row.onnx) else _find(row.onnx, row.name)


def _find(place: str, name: str) -> Callable[..., Any]:
    """Import "package.module:function"."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"The row of {name!r} names {place!r}, which cannot be imported: {error}.") from None
