"""The public description of a table: a small TOML file and its typed form."""

__all__ = [
    "Column",
    "Number",
    "Category",
    "Image",
    "Text",
    "Ignored",
    "Target",
    "Cost",
    "Schema",
    "read_schema",
    "parse_schema",
    "to_toml",
    "describe",
    "some",
]

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from unicodedata import combining, east_asian_width

import tomlkit
from pydantic import Field, ValidationError, model_validator

from fedpdm.config.keys import dotted
from fedpdm.data.columns import (
    KINDS,
    MOST_VALUES,
    Category,
    Column,
    Ignored,
    Image,
    Number,
    SchemaPart,
    Text,
    describe_column,
    some,
)
from fedpdm.data.tables import nearest
from fedpdm.data.target import Target
from fedpdm.errors import DataError


class Cost(SchemaPart):
    """The privacy cost of the schema itself: (epsilon, delta)-DP under adding or removing one row."""

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)


class Schema(SchemaPart):
    """Public knowledge about a table, without a look at its rows.

    Attributes
    ----------
    label, classes
        The column to predict, and its values; label k is `classes[k]`. Empty if the label is a number.
    target
        The public bounds of a label that is a number.
    client
        The column with the owner of a row, if there is one.
    unit_column
        The column with the person (or household, device, ...) of a row, if a guarantee is for all rows of one person.
    bias
        Whether there is a last feature that is always 1.
    from_rows
        Whether bounds and levels were inferred from the rows. They are then as private as the rows, and a run with such a
        schema has no guarantee.
    columns
        The other columns by name, in the order of the features.
    cost
        The cost of a schema that was inferred from private rows with noise; a run counts it in its budget.

    Examples
    --------
    >>> from fedpdm.data.encoding import encode
    >>> from fedpdm.data.tables import table_from_columns
    >>> schema = Schema(
    ...     label="ill",
    ...     classes=["no", "yes"],
    ...     columns={"age": Number(low=0, high=100), "sex": Category(levels=["f", "m"])},
    ... )
    >>> rows = encode(schema, table_from_columns({"age": [25, 130], "sex": ["m", "x"], "ill": ["no", "yes"]}))
    >>> rows.features.tolist(), rows.labels.tolist()
    ([[0.25, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]], [0, 1])
    >>> print(*rows.notes, sep="\\n")
    age: 1 value outside [0, 100] is cut to it
    sex: 1 value is none of the levels (x): all of its indicators are 0
    """

    label: str
    classes: list[str] = Field(default=[])
    client: str | None = None
    unit_column: str | None = None
    bias: bool = True
    from_rows: bool = False
    target: Target | None = None
    columns: dict[str, Column] = Field(min_length=1)
    cost: Cost | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (len(self.classes) < 2) == (self.target is None) or (self.target and self.classes):
            raise ValueError(
                f"the label {self.label!r} needs either classes, at least 2, or a [target] with the bounds low and high of a "
                f"number; there are {len(self.classes)} classes and {'a' if self.target else 'no'} target"
            )
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"a class of {self.classes} occurs twice")
        for role in self.roles:
            if role in self.columns:
                raise ValueError(
                    f"the column {role!r} is the label, the event, the client or the unit, so it must not be among [columns]"
                )
        if len(set(self.roles)) < len(self.roles):
            raise ValueError(
                f"the label {self.label!r}, the client {self.client!r}, the unit {self.unit_column!r} and the event must be "
                "different columns"
            )
        seen = [name for name, column in self.columns.items() if not isinstance(column, Ignored)]
        images = [name for name in seen if isinstance(self.columns[name], Image)]
        if images and len(seen) > 1:
            raise ValueError(
                f"the image {images[0]!r} must be the only column that the model sees, and there are {len(seen)}: make the "
                'others kind = "ignored"'
            )
        if (letters := sum(column.length for column in self.columns.values() if isinstance(column, Text))) > MOST_VALUES:
            raise ValueError(f"the texts have {letters} bytes together, and the limit is {MOST_VALUES}: cut them shorter")
        if self.target and self.target.event and (self.unit_column or not self.bias):
            raise ValueError("a time to an event needs bias = true and no unit_column: its unit is one row")
        return self

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns that are not features: label, client, unit, event."""
        event = self.target.event if self.target else None
        return tuple(name for name in (self.label, self.client, self.unit_column, event) if name is not None)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the rows of a model stand for: the classes, or the label itself if it is a number."""
        return (self.label,) if self.target else tuple(self.classes)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features that a row becomes: "age", "age missing", "sex=f", and "bias" at the end."""
        return tuple(_feature_names(self))


def _feature_names(schema: Schema) -> Iterator[str]:
    for name, column in schema.columns.items():
        yield from column.feature_names(name)
    if schema.target and schema.target.event:
        yield from (f"{schema.label.replace('=', ':')} band={band}" for band in range(2, schema.target.bands + 1))
    if schema.bias:
        yield "bias"


def describe(schema: Schema) -> str:
    """Return the schema in aligned lines, for a person to check.

    Parameters
    ----------
    schema : Schema
        The schema.

    Returns
    -------
    str
        One line per column.
    """
    bounds = schema.target
    label = f"number in [{bounds.low:.9g}, {bounds.high:.9g}]" if bounds else some(schema.classes, 10)
    if bounds and bounds.event:
        label = f"time to {bounds.event!r} in [0, {bounds.high:.9g}], in {bounds.bands} bands"
    rows = [(schema.label, f"label: {label}")]
    if schema.client:
        rows.append((schema.client, "client"))
    if schema.unit_column:
        rows.append((schema.unit_column, "unit: all rows of one unit count as one"))
    rows += [(name or "(no name)", describe_column(column)) for name, column in schema.columns.items()]
    width = min(max(_cells(name) for name, _ in rows), 30)
    return "\n".join(f"  {name}{' ' * (width - _cells(name))}  {text}" for name, text in rows)


def _cells(name: str) -> int:
    """How many cells of a terminal a name takes: emoji and East Asian letters take two, accents none."""
    return sum(2 if east_asian_width(c) in "WF" else not combining(c) for c in name)


def read_schema(path: Path | str) -> Schema:
    """Read a schema from a TOML file.

    Parameters
    ----------
    path : Path or str
        The file.

    Returns
    -------
    Schema
        The schema.

    Raises
    ------
    DataError
        If the file does not exist or is not a valid schema.
    """
    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(
            f"the schema {path} does not exist: `fedpdm data schema TABLE --label COLUMN > {path}` makes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the schema {path} cannot be read: {error}") from None
    return parse_schema(text, str(path))


def parse_schema(text: str, name: str = "schema") -> Schema:
    """Read a schema from TOML.

    Parameters
    ----------
    text : str
        The TOML.
    name : str
        The name of the schema in error messages.

    Returns
    -------
    Schema
        The schema.
    """
    try:
        return Schema.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{name} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = dotted(first["loc"])
        if first["type"] == "union_tag_invalid":
            kind = first["input"].get("kind")
            raise DataError(f'{name}: {place}: kind = "{kind}" is not known: choose one of {", ".join(KINDS)}') from None
        if first["type"] == "extra_forbidden":
            parts = [key for part in (Schema, *KINDS.values(), Target) for key in part.model_fields]
            raise DataError(f"{name}: unknown key {place!r}: {nearest(str(first['loc'][-1]), parts)}") from None
        raise DataError(f"{name}: {place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')}") from None


def to_toml(schema: Schema, comment: str = "") -> str:
    """Return the schema as TOML.

    Parameters
    ----------
    schema : Schema
        The schema.
    comment : str
        Lines of comment above it.

    Returns
    -------
    str
        The TOML.
    """
    document = tomlkit.document()
    for line in comment.splitlines():
        document.add(tomlkit.comment(line))
    left_out = {"columns", "cost", "from_rows", "target", *(["classes"] if schema.target else [])}
    for key, value in schema.model_dump(exclude=left_out, exclude_none=True).items():
        document.add(key, value)
    if schema.target:
        document.add(
            "target", tomlkit.item(schema.target.model_dump(exclude=None if schema.target.event else {"event", "bands"}))
        )
    if schema.from_rows:
        document.add("from_rows", tomlkit.item(True).comment("remove this line when nothing below comes from the rows"))
    if schema.cost:
        document.add("cost", tomlkit.item(schema.cost.model_dump()))
    columns = tomlkit.table(is_super_table=True)
    for name, column in schema.columns.items():
        part = tomlkit.table()
        part.add("kind", column.kind)
        for key, value in column.model_dump(exclude_defaults=True).items():
            part.add(key, int(value) if isinstance(value, float) and math.fabs(value) < 1e15 and value.is_integer() else value)
        columns.add(name, part)
    document.add("columns", columns)
    return tomlkit.dumps(document)
