"""Shell completion: presets, data files, settings and their values."""

from pathlib import Path
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = ["complete_config", "complete_algorithms", "complete_feature_map", "complete_setting"]


def complete_config(incomplete: str) -> list[str]:
    """Complete presets and TOML files.

    Parameters
    ----------
    incomplete : str
        The typed text.

    Returns
    -------
    list of str
        The completions.

    Examples
    --------
    >>> complete_config("pap")
    ['paper-adult', 'paper-mnist']
    """
    from fedpdm.config import preset_names  # imported here: otherwise all commands would wait for it

    folder = incomplete.rpartition("/")[0]
    files = [str(path) for path in Path(folder).glob("*.toml")]
    return [name for name in [*preset_names(), *sorted(files)] if name.startswith(incomplete)]


def complete_algorithms(incomplete: str) -> list[str]:
    """Complete the last name of a list with commas.

    Parameters
    ----------
    incomplete : str
        The typed text.

    Returns
    -------
    list of str
        The completions.

    Examples
    --------
    >>> complete_algorithms("fedavg,sc")
    ['fedavg,scaffold']
    """
    from fedpdm.choices import ALGORITHMS

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in ALGORITHMS if name.startswith(last)]


def complete_feature_map(incomplete: str) -> list[str]:
    """Complete the names of feature maps.

    Parameters
    ----------
    incomplete : str
        The typed text.

    Returns
    -------
    list of str
        The completions.

    Examples
    --------
    >>> complete_feature_map("f")
    ['fourier']
    """
    from fedpdm.choices import FEATURE_MAPS

    return [name for name in (*FEATURE_MAPS, "auto") if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """Complete KEY= with its comment, and after the equals sign the choices of the setting.

    Parameters
    ----------
    incomplete : str
        The typed text.

    Returns
    -------
    list of (str, str)
        Completions and comments.

    Examples
    --------
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
    """Return the words that a setting takes."""
    from fedpdm.config.names import OneOf

    listed = [name for kind in field.metadata if isinstance(kind, OneOf) for name in kind.names()]
    return listed or [value for value in get_args(field.annotation) if isinstance(value, str)]
