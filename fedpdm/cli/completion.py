"""What a shell offers after the tabulator key: presets, data files, settings and their values."""

from pathlib import Path
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = ["complete_config", "complete_algorithms", "complete_feature_map", "complete_setting"]


def complete_config(incomplete: str) -> list[str]:
    """Presets, and TOML files.

    >>> complete_config("pap")
    ['paper-adult', 'paper-mnist']
    """
    from fedpdm.config import preset_names  # here, as all commands would wait for it

    folder = incomplete.rpartition("/")[0]
    files = [str(path) for path in Path(folder).glob("*.toml")]
    return [name for name in [*preset_names(), *sorted(files)] if name.startswith(incomplete)]


def complete_algorithms(incomplete: str) -> list[str]:
    """The last of the names, which have commas between them.

    >>> complete_algorithms("fedavg,sc")
    ['fedavg,scaffold']
    """
    from fedpdm.choices import ALGORITHMS

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in ALGORITHMS if name.startswith(last)]


def complete_feature_map(incomplete: str) -> list[str]:
    """The feature maps.

    >>> complete_feature_map("f")
    ['fourier']
    """
    from fedpdm.choices import FEATURE_MAPS

    return [name for name in (*FEATURE_MAPS, "auto") if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """KEY= with its comment; behind the equals sign the choices, where there are any.

    >>> complete_setting("rounds.sampling=c")
    [('rounds.sampling=cycle', '')]
    >>> complete_setting("algorithm.name=sc")
    [('algorithm.name=scaffold', '')]
    """
    from fedpdm.config import Config
    from fedpdm.config.keys import fields

    key, equals, _ = incomplete.partition("=")
    if not equals:
        return [(f"{name}=", field.description or "") for name, field in fields(Config) if name.startswith(key)]
    words = [word for name, field in fields(Config) if name == key for word in _words(field)]
    return [(f"{key}={word}", "") for word in words if f"{key}={word}".startswith(incomplete)]


def _words(field: "FieldInfo") -> list[str]:
    """The words that a setting takes."""
    from fedpdm.config.names import OneOf

    listed = [name for kind in field.metadata if isinstance(kind, OneOf) for name in kind.names()]
    return listed or [value for value in get_args(field.annotation) if isinstance(value, str)]
