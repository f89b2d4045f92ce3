"""Settings to and from TOML: presets, files, `KEY=VALUE`, and the name of what they say."""

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
    """The presets that come with the package."""
    return sorted(f.name.removesuffix(".toml") for f in _preset_folder().iterdir() if f.name.endswith(".toml"))


def load_config(source: str = "demo", settings: Iterable[str] = ()) -> Config:
    """Read a preset (by name) or a TOML file (by path), then apply `KEY=VALUE` settings, and validate.

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
        data.pop("scaling", None)  # a map that is asked for scales by itself, and takes the place of the preset's scaling
    return validate(values)


def validate(values: dict[str, Any]) -> Config:
    """A Config from plain nested values; a ConfigError of one line when they do not fit."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(e) for e in error.errors())) from None


def to_toml(config: Config) -> str:
    """The full TOML of a config, with a comment for every key."""
    document = tomlkit.document()
    _fill(document, config)
    return tomlkit.dumps(document)


def digest(config: Config) -> str:
    """A short name of the settings, by which a resumed run recognises its own."""
    # Defaults do not count, so that a key that a later version adds leaves the names of earlier settings as they are.
    text = json.dumps(config.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
        remove(values, key.strip())  # so that its default counts
        return
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    try:
        put(values, key.strip(), value)
    except ConfigError as error:
        raise ConfigError(f"--set {setting!r}: {str(error).partition(': ')[2]}") from None


def _sentence(error: ErrorDetails) -> str:
    key = dotted(error["loc"])
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, [name for name, _ in fields(Config)], n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else " `fedpdm config show demo` lists all keys."
        return f"Unknown key {key!r}.{hint}"
    if error["type"] == "value_error":
        return str(error.get("ctx", {}).get("error", error["msg"]))
    reason = error["msg"].removeprefix("Input should be ")
    return f"{key}={error['input']!r}: expected {reason}"


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
