"""How choices are declared: options, rows, tables, and rows of other packages. `fedpdm.choices` holds the rows."""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from fedpdm.errors import ConfigError

__all__ = ["Option", "Choice", "AlgorithmChoice", "LossChoice", "PenaltyChoice", "FeatureMapChoice", "Table"]
__all__ += ["register", "unregister", "on_change", "spelled"]

GROUP = "fedpdm.plugins"  # the entry points of other packages


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
        "classes" or "number": the kind of label that it learns. The `Loss` says the same.
    """

    target: str = "classes"


@dataclass(frozen=True)
class PenaltyChoice(Choice):
    """A penalty: the factory returns a `fedpdm.problem.Penalty`.

    Attributes
    ----------
    subgradient : bool
        Whether it has a slope everywhere (zero at a kink), so that problem.penalty_by = "subgradient" may use it.
    """

    subgradient: bool = False


@dataclass(frozen=True)
class FeatureMapChoice(Choice):
    """A public map of one example: the factory returns a `fedpdm.data.features.FeatureMap`.

    Attributes
    ----------
    onnx : str, callable or None
        The function, or where it is, that adds the map to an ONNX graph: `(graph, rows, feature_names, **options) -> node`,
        with features and names without the bias. None: models behind this map cannot be exported to ONNX.
    """

    onnx: str | Callable[..., str] | None = None

    def onnx_nodes(self) -> Callable[..., str]:
        """Return the function that adds the map to an ONNX graph."""
        if self.onnx is None:
            raise ConfigError(f"The feature map {self.name!r} has no ONNX form: its row must name one (onnx=...). Use csv.")
        return self.onnx if callable(self.onnx) else _find(self.onnx, self.name)


Row = TypeVar("Row", bound=Choice)
_tables: dict[type[Choice], "Table[Any]"] = {}
_listeners: list[Callable[[], None]] = []


class Table(Mapping[str, Row], Generic[Row]):
    """Rows by name, in order; rows of other packages come last.

    Examples
    --------
    >>> from fedpdm.choices import ALGORITHMS
    >>> ALGORITHMS["fedpdm"].title, "fedavg" in ALGORITHMS
    ('FedPDM', True)
    """

    def __init__(self, kind: str, rows: Sequence[Row]) -> None:
        self.kind = kind
        self.rows: dict[str, Row] = {row.name: row for row in rows}
        self.built_in = tuple(self.rows)  # the names that come with this package
        _tables[type(rows[0])] = self

    def __getitem__(self, name: str) -> Row:
        load_plugins()
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(tuple(self.rows))

    def __len__(self) -> int:
        load_plugins()
        return len(self.rows)

    def row(self, name: str) -> Row:
        """Return the row of this name; a ConfigError names the choices if there is none."""
        if name not in self:
            raise ConfigError(f"Unknown {self.kind} {name!r}: choose {spelled(tuple(self))}.")
        return self[name]

    def options(self) -> dict[str, Option]:
        """Return the options of all rows by key."""
        return {option.key: option for row in self.values() for option in row.options}

    def markdown(self, section: str) -> list[str]:
        """Return the lines of a table in Markdown; `section` is that of the options in the settings."""
        lines = ["| name | title | what it does | options and defaults |", "|---|---|---|---|"]
        for row in self.values():
            options = ", ".join(f"`{section}.{option.key}` = {option.default}" for option in row.options)
            lines.append(f"| `{row.name}` | {row.title} | {row.summary} | {options} |")
        return lines

    def users(self, key: str) -> list[str]:
        """Return the names of the rows that have this option."""
        return [row.name for row in self.values() if any(option.key == key for option in row.options)]


def spelled(names: Sequence[str]) -> str:
    """Spell out a list of words.

    Parameters
    ----------
    names : sequence of str
        The words.

    Returns
    -------
    str
        The quoted words, with "or" before the last.

    Examples
    --------
    >>> spelled(["l1", "l2", "box"])
    "'l1', 'l2' or 'box'"
    """
    quoted = [repr(name) for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def on_change(listener: Callable[[], None]) -> None:
    """Call the listener now, and whenever a row is added or removed.

    Parameters
    ----------
    listener : callable
        A function without arguments.
    """
    _listeners.append(listener)
    listener()


def register(row: Choice) -> None:
    """Add a row to the table of its kind, so that settings, command line, report and exports know it.

    Parameters
    ----------
    row : AlgorithmChoice, LossChoice, PenaltyChoice or FeatureMapChoice
        The row. To add the same row again changes nothing; another row of the same name is refused.

    Examples
    --------
    >>> from fedpdm.choices import PENALTIES, PenaltyChoice, register, unregister
    >>> row = PenaltyChoice("free", "no penalty at all", "fedpdm.problem.penalties:none")
    >>> register(row)
    >>> "free" in PENALTIES
    True
    >>> unregister(row)
    """
    table = _table_of(row)
    if row == table.rows.get(row.name):
        return
    _check(row, table)
    table.rows[row.name] = row
    try:
        _tell()
    except ConfigError:
        unregister(row)
        raise


def unregister(row: Choice) -> None:
    """Remove a registered row.

    Parameters
    ----------
    row : Choice
        The row; if it is not registered, nothing changes.
    """
    _table_of(row).rows.pop(row.name, None)
    _tell()


def _tell() -> None:
    for listener in _listeners:
        listener()


def _table_of(row: object) -> "Table[Any]":
    table = next((table for kind, table in _tables.items() if isinstance(row, kind)), None)
    if table is None:
        kinds = ", ".join(kind.__name__ for kind in _tables)
        raise ConfigError(f"Expected {row!r} to be one of {kinds} (fedpdm.choices).")
    return table


def _check(row: Choice, table: "Table[Any]") -> None:
    if row.name in table.rows:
        raise ConfigError(f"There is another {table.kind} named {row.name!r}: choose another name.")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", row.name):
        raise ConfigError(f"Expected the {table.kind} {row.name!r} to be named with small letters, digits and hyphens.")
    known = {option.key: option for one in table.rows.values() for option in one.options}
    for option in row.options:
        if known.get(option.key, option) != option:
            raise ConfigError(f"Another row declares the option {option.key!r} of {row.name!r} differently: rename its key.")


def _find(place: str, name: str) -> Callable[..., Any]:
    """Import "package.module:function"."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"The row of {name!r} names {place!r}, which cannot be imported: {error}.") from None


_state = {"plugins": "unread"}


def load_plugins() -> None:
    """Register the rows that installed packages name as entry points of the group "fedpdm.plugins".

    An entry point names a row or a list of rows. It is read once, when a table is first read.
    """
    if _state["plugins"] != "unread":
        return
    _state["plugins"] = "read"
    try:
        for point in entry_points(group=GROUP):
            _load(point)
    except ConfigError:
        _state["plugins"] = "unread"  # the next command repeats the message
        raise


def _load(point: EntryPoint) -> None:
    package = point.dist.name if point.dist else point.value
    try:
        found = point.load()
        for row in found if isinstance(found, list | tuple) else [found]:
            register(row)
    except Exception as error:  # any fault of another package
        raise ConfigError(f"The plugin {point.name!r} of {package} cannot be used: {error} Repair or uninstall it.") from error
