"""Tables of choices, and how another package adds its rows."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from fedpdm.choices.rows import Choice, Option
from fedpdm.errors import ConfigError

__all__ = ["ChoiceTable", "at_fault", "cause", "load_plugins", "on_change", "register", "spelled", "unregister"]

GROUP = "fedpdm.plugins"  # the entry points of other packages


Row = TypeVar("Row", bound=Choice)
_tables: dict[type[Choice], "ChoiceTable[Any]"] = {}
_listeners: list[Callable[[], None]] = []


class ChoiceTable(Mapping[str, Row], Generic[Row]):
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

    def added(self) -> list[Row]:
        """Return the rows of other packages."""
        return [row for row in self.values() if row.name not in self.built_in]

    def options(self) -> dict[str, Option]:
        """Return the options of all rows by key."""
        return {option.key: option for row in self.values() for option in row.options}

    def markdown(self, section: str) -> list[str]:
        """Return the lines of a table in Markdown; `section` is that of the options in the settings."""
        has_options = bool(self.options())
        lines = ["| name | title | what it does |" + " options and defaults |" * has_options, "|---" * (3 + has_options) + "|"]
        for row in self.values():
            options = ", ".join(f"`{section}.{option.key}` = {option.default}" for option in row.options)
            lines.append(f"| `{row.name}` | {row.title} | {row.summary} |" + f" {options} |" * has_options)
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
    row : Choice
        A row of one of the kinds in `fedpdm.choices`. To add the same row again changes nothing; another row of the same
        name is refused.

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


def _table_of(row: object) -> "ChoiceTable[Any]":
    table = next((table for kind, table in _tables.items() if isinstance(row, kind)), None)
    if table is None:
        kinds = ", ".join(kind.__name__ for kind in _tables)
        raise ConfigError(f"Expected {row!r} to be one of {kinds} (fedpdm.choices).")
    return table


def _check(row: Choice, table: "ChoiceTable[Any]") -> None:
    if row.name in table.rows:
        raise ConfigError(f"There is another {table.kind} named {row.name!r}: choose another name.")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", row.name):
        raise ConfigError(f"Expected the {table.kind} {row.name!r} to be named with small letters, digits and hyphens.")
    known = {option.key: option for one in table.rows.values() for option in one.options}
    for option in row.options:
        if known.get(option.key, option) != option:
            raise ConfigError(f"Another row declares the option {option.key!r} of {row.name!r} differently: rename its key.")


def at_fault(error: BaseException) -> str | None:
    """Name the row of another package whose code raised an error, and the cause, in one line.

    Parameters
    ----------
    error : BaseException
        Any error.

    Returns
    -------
    str or None
        The line; None if no frame of the error is in the module or the package of such a row.
    """
    rows = [(table.kind, row) for table in _tables.values() for row in table.added()]
    step, found = error.__traceback__, None
    while step is not None:
        module, code = str(step.tb_frame.f_globals.get("__name__", "")), step.tb_frame.f_code
        owner = _owner(rows, module, code.co_qualname.partition(".")[0])
        found = f"The {owner[0]} {owner[1].name!r} failed in {module}, line {step.tb_lineno}" if owner else found
        step = step.tb_next
    return found and f"{found}: {cause(error)}"


def _owner(rows: list[tuple[str, Choice]], module: str, function: str) -> tuple[str, Choice] | None:
    """The kind and the row of this function; else a row of its module, or of its package."""
    same = [(kind, row) for kind, row in rows if row.module == module]
    exact = [(kind, row) for kind, row in same if row.factory_name == function]
    package = [(kind, row) for kind, row in rows if row.module and module.startswith(f"{row.module.partition('.')[0]}.")]
    return next(iter(exact + same + package), None)


def cause(error: BaseException) -> str:
    """Return the kind and the words of an error, in one line.

    Parameters
    ----------
    error : BaseException
        Any error.

    Returns
    -------
    str
        The words, 300 characters at most.

    Examples
    --------
    >>> cause(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:300] if words else type(error).__name__


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
