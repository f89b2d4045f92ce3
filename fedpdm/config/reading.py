"""Settings to and from TOML: presets, files, `KEY=VALUE`, and their digest."""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import tomlkit
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedpdm.config.keys import dotted, fields, put, remove
from fedpdm.config.sections import Config
from fedpdm.errors import ConfigError

__all__ = ["load_config", "preset_names", "validate", "to_toml", "digest"]


def preset_names() -> list[str]:
    """List the presets of the package.

    Returns
    -------
    list of str
        Their names.
    """
    return sorted(f.name.removesuffix(".toml") for f in _preset_folder().iterdir() if f.name.endswith(".toml"))


def load_config(source: str = "demo", settings: Iterable[str] = ()) -> Config:
    """Read a preset (by name) or a TOML file (by path), then apply `KEY=VALUE` settings, and validate.

    Parameters
    ----------
    source : str
        The name of a preset, or the path of a TOML file.
    settings : iterable of str
        `KEY=VALUE`, applied in order.

    Returns
    -------
    Config
        The validated settings.

    Examples
    --------
    >>> load_config("demo", ["rounds.total=5"]).rounds.total
    5
    """
    values = _read(source)
    asked = set()
    for setting in settings:
        _apply(values, setting)
        asked.add(setting.partition("=")[0].strip())
    data = values.get("data", {})
    if "data.features" in asked and "data.scaling" not in asked and data.get("features", "raw") != "raw":
        data.pop("scaling", None)  # a requested map scales by itself, and replaces the preset's scaling
    return validate(values)


def validate(values: dict[str, Any]) -> Config:
    """Make a Config from plain nested values.

    Parameters
    ----------
    values : dict
        Nested values.

    Returns
    -------
    Config
        The validated settings.

    Raises
    ------
    ConfigError
        In one line, if a value does not fit.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentences(error.errors()))) from None


def to_toml(config: Config) -> str:
    """Return the full TOML of the settings, with a comment for every key.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    str
        The text.
    """
    document = tomlkit.document()
    _fill(document, config)
    return tomlkit.dumps(document)


def digest(config: Config) -> str:
    """Return a short name of the settings, with which a resumed run recognises its own.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    # Leave defaults out: a key that a later version adds then does not change the digest of earlier settings.
    values = config.model_dump(mode="json", exclude_defaults=True)
    if config.data.basis != "none":
        _with_former_default(values.setdefault("data", {}), "basis_size", config.data.basis_size, 200)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _with_former_default(section: dict[str, Any], key: str, value: Any, former: Any) -> None:
    """Leave out the former default instead of today's: old results keep their digest, and new settings do not get it."""
    section[key] = value
    if value == former:
        del section[key]


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
        remove(values, key.strip())  # use its default
        return
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    try:
        put(values, key.strip(), value)
    except ConfigError as error:
        raise ConfigError(f"--set {setting!r}: {str(error).partition(': ')[2]}") from None


def _sentences(errors: list[ErrorDetails]) -> list[str]:
    """One sentence per key: where a setting takes several kinds of values, Pydantic says for each why it is none."""
    known = {name for name, _ in fields(Config)}
    grouped: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        parts = [dotted(error["loc"][: end + 1]) for end in range(len(error["loc"]))]
        grouped.setdefault(next(filter(known.__contains__, parts), dotted(error["loc"])), []).append(error)
    return [
        _sentence(own[0]) if len(own) == 1 else f"{key}={own[0]['input']!r}: expected {' or '.join(map(_reason, own))}"
        for key, own in grouped.items()
    ]


def _reason(error: ErrorDetails) -> str:
    return error["msg"].removeprefix("Input should be ")


def _sentence(error: ErrorDetails) -> str:
    key = dotted(error["loc"])
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, [name for name, _ in fields(Config)], n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else " `fedpdm config show demo` lists all keys."
        return f"Unknown key {key!r}.{hint}"
    if error["type"] == "value_error":
        return str(error.get("ctx", {}).get("error", error["msg"]))
    return f"{key}={error['input']!r}: expected {_reason(error)}"


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
