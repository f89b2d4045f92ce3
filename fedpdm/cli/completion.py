"""What a shell offers after the tabulator key: presets, data files, settings and their values."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["complete_config", "complete_setting"]


def complete_config(incomplete: str) -> list[str]:
    """Presets, and TOML files.

    >>> complete_config("pap")
    ['paper-adult', 'paper-mnist']
    """
    from fedpdm.config import preset_names  # here, as all commands would wait for it

    folder = incomplete.rpartition("/")[0]
    files = [str(path) for path in Path(folder).glob("*.toml")]
    return [name for name in [*preset_names(), *sorted(files)] if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """KEY= with its comment; behind the equals sign the choices, where there are any.

    >>> complete_setting("rounds.sampling=c")
    [('rounds.sampling=cycle', '')]
    """
    from fedpdm.config import Config

    key, equals, _ = incomplete.partition("=")
    if not equals:
        return [(f"{name}=", field.description or "") for name, field in _fields(Config) if name.startswith(key)]
    choices = [value for name, field in _fields(Config) if name == key for value in get_args(field.annotation)]
    return [(f"{key}={value}", "") for value in choices if isinstance(value, str) and f"{key}={value}".startswith(incomplete)]


def _fields(model: "type[BaseModel]", prefix: str = "") -> Iterator[tuple[str, Any]]:
    from pydantic import BaseModel

    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, field
