"""Dotted keys: `rounds.total` is the key `total` in the section `rounds`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedpdm.errors import ConfigError

__all__ = ["dotted", "put", "remove", "nested", "flat", "fields"]


def dotted(parts: Sequence[object]) -> str:
    """Join the parts of a key in nested values.

    Parameters
    ----------
    parts : sequence
        Names and positions.

    Returns
    -------
    str
        The dotted key.

    Examples
    --------
    >>> dotted(("columns", "age", 0))
    'columns.age.0'
    """
    return ".".join(map(str, parts))


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a key in nested values, and make the sections that it needs.

    Parameters
    ----------
    values : dict
        Nested values, which are changed.
    key : str
        The dotted key.
    value
        The new value.
    """
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{key!r} cannot be set: {section!r} is not a section.")
    values[last] = value


def remove(values: dict[str, Any], key: str) -> None:
    """Remove a key from nested values, if it is set.

    Parameters
    ----------
    values : dict
        Nested values, which are changed.
    key : str
        The dotted key.
    """
    *sections, last = key.split(".")
    for section in sections:
        values = values.get(section, {})
    values.pop(last, None)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into sections.

    Parameters
    ----------
    values : mapping
        Values by dotted key.

    Returns
    -------
    dict
        Nested values.

    Examples
    --------
    >>> nested({"seed": 1, "rounds.total": 5})
    {'seed': 1, 'rounds': {'total': 5}}
    """
    result: dict[str, Any] = {}
    for key, value in values.items():
        put(result, key, value)
    return result


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn sections into dotted keys.

    Parameters
    ----------
    values : mapping
        Nested values.
    prefix : str
        Put before every key.

    Returns
    -------
    dict
        Values by dotted key.

    Examples
    --------
    >>> flat({"seed": 1, "rounds": {"total": 5}})
    {'seed': 1, 'rounds.total': 5}
    """
    result: dict[str, Any] = {}
    for key, value in values.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return result


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted key and the field of every setting of a model.

    Parameters
    ----------
    model : type of BaseModel
        The model.
    prefix : str
        Put before every key.

    Returns
    -------
    iterator of (str, FieldInfo)
        Keys and fields.
    """
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, field
